// SPDX-License-Identifier: Apache-2.0
//! The advantages of the rows of an export.

use std::sync::Arc;

use super::group_request::stored_reward;
use super::mean_entropy::MeanEntropy;
use super::options::AdvantageEstimator;
use super::returns::{TurnReturn, row_returns};
use super::row_index::RowIndex;
use super::teacher::log_ratios;
use super::{AdvantageOptions, GroupStats, RequestError, RewardSource};
use crate::export::Batch;
use crate::session::{Advantages, Row};

/// A row of a group: its position, and its reward. Without a reward its turns may have rewards.
type Member = (usize, Option<f64>);

/// Gives each row of an export its advantages. Rows that the format refuses later count in their groups, so an advantage does not depend on
/// the format. The time is linear in turns, not in steps.
///
/// # Errors
///
/// The errors of [`AdvantageOptions::check`]; `invalid_parameter` if a row is in none of the requested groups; `not_found` for a requested
/// sample without a row; `missing_reward`, `invalid_reward`, `missing_scores` and `incomparable_turn` as for `POST /v1/advantages`.
pub fn add_advantages(batch: &mut Batch, options: &AdvantageOptions) -> Result<(), RequestError> {
    options.check()?;
    let rows = &mut batch.rows;
    if options.estimator == AdvantageEstimator::Distill {
        if !options.groups.is_empty() {
            return Err(RequestError::invalid("groups", "the advantages of distill do not depend on groups"));
        }
        return set_token_advantages(rows);
    }
    let groups =
        if options.groups.is_empty() { by_first_prompt(rows, options.rewards)? } else { requested(rows, options)? };
    let entropies = entropies(rows, options);
    match options.rewards {
        RewardSource::Path => set_path_advantages(rows, &groups, &entropies, options),
        RewardSource::Turns => set_turn_advantages(rows, &groups, &entropies, options)?,
    }
    Ok(())
}

/// Gives the trained tokens of each row the advantage of its reward.
fn set_path_advantages(
    rows: &mut [Row],
    groups: &[Vec<Member>],
    entropies: &[MeanEntropy],
    options: &AdvantageOptions,
) {
    for group in groups {
        let rewards: Vec<f64> = group.iter().filter_map(|(_, reward)| *reward).collect();
        let stats = GroupStats::new(&rewards);
        for ((at, _), reward) in group.iter().zip(rewards) {
            let advantage = options.advantage(stats.advantage(reward, options.normalize_std), entropies[*at].nats);
            rows[*at].set_advantages(Advantages::Path(single(advantage)), entropies[*at].incomplete);
        }
    }
}

/// Gives each trained turn the advantage of its return. A turn that moves to another row, because a format refuses its own, keeps it.
fn set_turn_advantages(
    rows: &mut [Row],
    groups: &[Vec<Member>],
    entropies: &[MeanEntropy],
    options: &AdvantageOptions,
) -> Result<(), RequestError> {
    let mut found: Vec<Vec<(u32, f32)>> = vec![Vec::new(); rows.len()];
    for group in groups {
        let returns = |(at, reward): &Member| row_returns(&rows[*at], *reward, options.discount);
        let returns: Vec<Vec<TurnReturn>> = group.iter().map(returns).collect::<Result<_, _>>()?;
        let values: Vec<f64> = returns.iter().flatten().map(|turn| turn.value).collect();
        let stats = GroupStats::new(&values);
        for ((at, _), turns) in group.iter().zip(returns) {
            let advantage = |turn: TurnReturn| {
                let grpo = stats.advantage(turn.value, options.normalize_std);
                (turn.turn, single(options.advantage(grpo, entropies[*at].nats)))
            };
            found[*at] = turns.into_iter().map(advantage).collect();
        }
    }
    let mut first = 0;
    for session in rows.chunk_by_mut(Row::shares_turns) {
        let mut advantages = vec![f32::NAN; session[0].turns().len()];
        let of_session = &found[first..first + session.len()];
        of_session.iter().flatten().for_each(|(turn, advantage)| advantages[*turn as usize] = *advantage);
        let advantages: Arc<[f32]> = advantages.into();
        for (row, entropy) in session.iter_mut().zip(&entropies[first..]) {
            row.set_advantages(Advantages::Turns(Arc::clone(&advantages)), entropy.incomplete);
        }
        first += session.len();
    }
    Ok(())
}

/// Gives each trained token the negative reverse KL divergence from the teacher whose scores the rows have.
fn set_token_advantages(rows: &mut [Row]) -> Result<(), RequestError> {
    for session in rows.chunk_by_mut(Row::shares_turns) {
        let mut advantages: Vec<Option<Box<[f32]>>> = vec![None; session[0].turns().len()];
        for row in &*session {
            for turn in row.trained() {
                let ratios = log_ratios(turn, row.scores(turn).map(|scores| &**scores));
                let ratios = ratios.map_err(|problem| problem.of_turn(row.session(), turn.id))?;
                advantages[turn.id as usize] = Some(ratios.into_iter().map(single).collect());
            }
        }
        let advantages: Arc<[_]> = advantages.into();
        session.iter_mut().for_each(|row| row.set_advantages(Advantages::Tokens(Arc::clone(&advantages)), false));
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "trainers keep advantages in float32")]
fn single(advantage: f64) -> f32 {
    advantage as f32
}

/// EGPO's `H` of each row; without an entropy for GRPO.
fn entropies(rows: &[Row], options: &AdvantageOptions) -> Vec<MeanEntropy> {
    if options.estimator != AdvantageEstimator::Egpo {
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
fn by_first_prompt(rows: &[Row], rewards: RewardSource) -> Result<Vec<Vec<Member>>, RequestError> {
    let mut groups: Vec<Vec<Member>> = Vec::new();
    for (at, (row, group)) in rows.iter().zip(crate::export::groups(rows)).enumerate() {
        groups.resize_with(groups.len().max(group + 1), Vec::new);
        groups[group].push((at, stored(row, rewards)?));
    }
    Ok(groups)
}

/// The stored reward of a row, which it may lack if its turns are rewarded.
fn stored(row: &Row, rewards: RewardSource) -> Result<Option<f64>, RequestError> {
    if rewards == RewardSource::Turns && row.reward().is_none() {
        return Ok(None);
    }
    stored_reward(row.session(), row.leaf(), row.reward()).map(Some)
}

/// The requested groups, which must have all rows.
fn requested(
    rows: &[Row],
    AdvantageOptions { groups, rewards, .. }: &AdvantageOptions,
) -> Result<Vec<Vec<Member>>, RequestError> {
    let mut index = RowIndex::new(rows);
    let mut found = Vec::with_capacity(groups.len());
    for (at, group) in groups.iter().enumerate() {
        let mut members = Vec::with_capacity(group.samples.len());
        for (place, sample) in group.samples.iter().enumerate() {
            let place = format!("groups[{at}].samples[{place}]");
            let row = index.take(&sample.session, sample.leaf).map_err(|error| error.below(&place))?;
            let given = sample.reward.map(Some);
            let reward = given.map_or_else(|| stored(&rows[row], *rewards), Ok).map_err(|error| error.below(&place))?;
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
