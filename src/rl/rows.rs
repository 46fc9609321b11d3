//! The advantages of the rows of an export.

use super::group_request::stored_reward;
use super::mean_entropy::MeanEntropy;
use super::options::AdvantageEstimator;
use super::row_index::RowIndex;
use super::{AdvantageOptions, GroupRequest, GroupStats, RequestError};
use crate::export::{Batch, Format};
use crate::session::Row;

/// A row of a group: its position, and its reward.
type Member = (usize, f64);

/// Gives each row of an export its advantage. Rows that the format refuses later count in their groups, so an advantage does not depend on
/// the format. The time is linear in turns, not in steps.
///
/// # Errors
///
/// The errors of [`AdvantageOptions::check`]; `invalid_parameter` if the format has no advantages, or if a row is in none of the requested
/// groups; `not_found` for a requested sample without a row; `missing_reward` and `invalid_reward` as for `POST /v1/advantages`.
pub fn add_advantages(batch: &mut Batch, format: Format, options: &AdvantageOptions) -> Result<(), RequestError> {
    if !format.has_advantages() {
        let message = format!("{format} has no advantages; {} have", Format::names(Format::has_advantages));
        return Err(RequestError::invalid("", &message));
    }
    options.check()?;
    let rows = &mut batch.rows;
    let groups = if options.groups.is_empty() { by_first_prompt(rows)? } else { requested(rows, &options.groups)? };
    let entropies = entropies(rows, options);
    for group in groups {
        let rewards: Vec<f64> = group.iter().map(|(_, reward)| *reward).collect();
        let stats = GroupStats::new(&rewards);
        for (at, reward) in group {
            let advantage = options.advantage(stats.advantage(reward, options.normalize_std), entropies[at].nats);
            rows[at].set_advantage(advantage, entropies[at].incomplete);
        }
    }
    Ok(())
}

/// EGPO's `H` of each row; without an entropy for GRPO.
fn entropies(rows: &[Row], options: &AdvantageOptions) -> Vec<MeanEntropy> {
    if options.estimator == AdvantageEstimator::Grpo {
        return vec![MeanEntropy::default(); rows.len()];
    }
    let sessions = rows.chunk_by(Row::shares_turns);
    let of_session = |session: &[Row]| {
        let known = MeanEntropy::by_turn(session[0].turns(), options);
        session.iter().map(|row| known[row.leaf() as usize]).collect::<Vec<_>>()
    };
    sessions.flat_map(of_session).collect()
}

/// The groups of the export: rows with the same first prompt, with their stored rewards.
fn by_first_prompt(rows: &[Row]) -> Result<Vec<Vec<Member>>, RequestError> {
    let mut groups: Vec<Vec<Member>> = Vec::new();
    for (at, (row, group)) in rows.iter().zip(crate::export::groups(rows)).enumerate() {
        groups.resize_with(groups.len().max(group + 1), Vec::new);
        groups[group].push((at, stored_reward(row.session(), row.leaf(), row.reward())?));
    }
    Ok(groups)
}

/// The requested groups, which must have all rows.
fn requested(rows: &[Row], groups: &[GroupRequest]) -> Result<Vec<Vec<Member>>, RequestError> {
    let mut index = RowIndex::new(rows);
    let mut found = Vec::with_capacity(groups.len());
    for (at, group) in groups.iter().enumerate() {
        let mut members = Vec::with_capacity(group.samples.len());
        for (place, sample) in group.samples.iter().enumerate() {
            let place = format!("groups[{at}].samples[{place}]");
            let row = index
                .take(&sample.session, sample.leaf)
                .map_err(|message| RequestError::new("not_found", place.clone(), message))?;
            let stored = || stored_reward(rows[row].session(), rows[row].leaf(), rows[row].reward());
            let reward = sample.reward.map_or_else(stored, Ok).map_err(|error| error.below(&place))?;
            members.push((row, reward));
        }
        found.push(members);
    }
    match index.first_left() {
        None => Ok(found),
        Some(row) => {
            let (session, leaf) = (rows[row].session(), rows[row].leaf());
            let message = format!(
                "the export has the path that ends in turn {leaf} of session {session:?}, and no group has it: list it with its `leaf`, or \
                 set include_branches to false"
            );
            Err(RequestError::invalid("groups", &message))
        }
    }
}
