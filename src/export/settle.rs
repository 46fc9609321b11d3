// SPDX-License-Identifier: Apache-2.0
//! Selects the rows to export, and the row that trains each turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::validate::{numbers, verdicts};
use super::{ExcludedLeaf, Lack, Needs, images, repeated_rows};
use crate::session::{Path, Row, Turn};

/// The rows to export.
#[derive(Debug)]
pub struct SelectedRows {
    /// The rows in their order.
    pub rows: Arc<[Row]>,
    /// The leaves that were refused before and now.
    pub refused: Vec<ExcludedLeaf>,
    /// If entropies are needed: whether every trained token has one; otherwise none has. Meaningless if they are not needed.
    pub entropy: bool,
    /// The counts of both.
    pub tally: RowCounts,
}

/// Exported rows and excluded leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Exported rows.
    pub rows: usize,
    /// Excluded leaves by reason.
    pub refused: BTreeMap<&'static str, usize>,
    /// Exported rows that lack what others have or what was asked for, by the [`Lack`].
    pub incomplete: BTreeMap<&'static str, usize>,
}

impl RowCounts {
    pub(super) fn new(rows: usize, leaves: &[ExcludedLeaf]) -> Self {
        let mut refused = BTreeMap::new();
        for leaf in leaves {
            *refused.entry(leaf.reason).or_default() += 1;
        }
        Self { rows, refused, incomplete: BTreeMap::new() }
    }

    /// Counts exported rows that lack something.
    pub(super) fn add_incomplete(&mut self, lacks: impl Iterator<Item = Lack>) {
        lacks.for_each(|lack| *self.incomplete.entry(lack.name()).or_default() += 1);
    }
}

/// Drops the rows that do not meet `needs`, and trains each turn in the first remaining row that holds it. The time is linear in turns,
/// not in steps.
///
/// A turn of a dropped row may be context in a later row. It is trained there instead, so that no token is lost.
/// If at least one trained token has an entropy, all rows need entropies; otherwise none does. A turn that was cut off and resumed is
/// trained only if it has the needed values; it decides nothing for other turns.
#[must_use]
pub fn settle(rows: Vec<Row>, mut refused: Vec<ExcludedLeaf>, needs: Needs) -> SelectedRows {
    let (mut kept, mut dropped) = keep(&rows, Needs { entropy: false, ..needs });
    let measured =
        needs.entropy && kept.iter().any(|row| row.trained().any(|turn| turn.is_trainable() && has_entropy(turn)));
    if measured {
        // start again: a row that is dropped now leaves its turns to another row, which may have had nothing to train
        (kept, dropped) = keep(&rows, needs);
    }
    refused.append(&mut dropped);
    let repeated = repeated_rows(&kept);
    kept.iter_mut().zip(repeated).for_each(|(row, repeats)| row.marks.repeats_sample = repeats);
    let mut tally = RowCounts::new(kept.len(), &refused);
    tally.add_incomplete(kept.iter().filter(|row| row.lacks_scores()).map(|_| Lack::Scores));
    tally.add_incomplete(images::rows_without_bytes(&kept).map(|_| Lack::Images));
    SelectedRows { entropy: measured && !kept.is_empty(), rows: kept.into(), refused, tally }
}

fn keep(rows: &[Row], needs: Needs) -> (Vec<Row>, Vec<ExcludedLeaf>) {
    let (mut kept, mut refused) = (Vec::with_capacity(rows.len()), Vec::new());
    for session in rows.chunk_by(Row::shares_turns) {
        let session = Row::without_resumed(session, |turn| numbers(turn, needs).is_err());
        let mut claims = TurnClaims::new(&session[0], needs);
        for row in &*session {
            match claims.claim(row) {
                Ok(first) => kept.push(row.trained_from(first)),
                Err(reason) => {
                    refused.push(ExcludedLeaf { session: Arc::clone(row.session()), leaf: row.leaf(), reason });
                }
            }
        }
    }
    (kept, refused)
}

/// The state of a turn during the selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Free,
    /// A kept row holds it.
    Held,
    /// All tokens that a row with this turn would train are cut off.
    CutOff,
    /// Neither it nor a turn before it can be trained by another row.
    Untrainable,
}

/// The turns of a session while its rows are selected, in order.
struct TurnClaims<'a> {
    /// A row of the session.
    session: &'a Row,
    verdicts: Vec<Result<(), &'static str>>,
    claims: Vec<Claim>,
    kept: Option<usize>,
}

impl<'a> TurnClaims<'a> {
    /// The turns of the session of `row`.
    fn new(row: &'a Row, needs: Needs) -> Self {
        let claims = vec![Claim::Free; row.turns().len()];
        Self { session: row, verdicts: verdicts(row, needs), claims, kept: needs.kept }
    }

    /// Claims the turns of a row that no earlier row holds, and returns the first one that the row trains. A row that holds a turn also
    /// holds all turns before it, so the claimed turns are the last ones of the row.
    fn claim(&mut self, row: &Row) -> Result<u32, &'static str> {
        self.verdicts[row.leaf() as usize]?;
        // the position after the tokens of the current turn
        let (mut end, mut cut_off) = (row.len(), false);
        // the first turn that would be trained, and the position of its sampled tokens
        let mut first = None;
        for turn in row.upwards() {
            match self.claims[turn.id as usize] {
                Claim::Free => {}
                Claim::Held | Claim::Untrainable => break,
                Claim::CutOff => {
                    cut_off = true;
                    break;
                }
            }
            if self.session.export_trains(turn) {
                first = Some((turn.id, end - turn.response.len()));
            }
            end -= turn.prompt.len() + turn.response.len();
        }
        cut_off |= match (first, self.kept) {
            (Some((_, position)), Some(kept)) => position - row.prompt_len() >= kept,
            _ => false,
        };
        for turn in row.upwards() {
            let claim = &mut self.claims[turn.id as usize];
            if *claim != Claim::Free {
                break;
            }
            *claim = match first {
                Some((first, _)) if turn.id >= first && cut_off => Claim::CutOff,
                Some((first, _)) if turn.id >= first => Claim::Held,
                _ => Claim::Untrainable,
            };
        }
        match first {
            _ if cut_off => Err("truncated"),
            Some((first, _)) => Ok(first),
            None => Err("no_trained_tokens"),
        }
    }
}

fn has_entropy(turn: &Turn) -> bool {
    turn.entropy.iter().any(|entropy| entropy.is_finite())
}

/// Whether a trained token of the path has an entropy.
pub(super) fn is_measured(path: &Path) -> bool {
    path.steps.iter().any(|step| step.trained && has_entropy(&step.turn))
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;
    use crate::export::Format;
    use crate::export::fixture::{ALL, File, batch, bytes, path, rows, rows_of, turn, turns};
    use crate::session::Fault;

    fn trained(settled: &SelectedRows) -> Vec<Vec<bool>> {
        settled.rows.iter().map(|row| row.path().steps.iter().map(|step| step.trained).collect()).collect()
    }

    fn reasons(settled: &SelectedRows) -> Vec<(u32, &'static str)> {
        settled.refused.iter().map(|refused| (refused.leaf, refused.reason)).collect()
    }

    #[test]
    fn turn_is_trained_in_the_first_row_that_holds_it() {
        let settled = settle(rows(&rows_of(turns())), Vec::new(), ALL);
        assert_eq!(trained(&settled), [[true, true], [false, true]]);
        assert!(settled.entropy && settled.refused.is_empty(), "both rows have all values");
    }

    #[test]
    fn turns_of_a_refused_row_are_trained_in_the_next() {
        let mut turns = turns();
        turns[1].logprobs = Box::default();
        let settled = settle(rows(&rows_of(turns)), Vec::new(), ALL);
        assert_eq!(trained(&settled), [[true, true]]);
        assert_eq!(reasons(&settled), [(1, "missing_logprobs")]);
    }

    #[test]
    fn row_without_trained_tokens_is_kept_if_an_earlier_one_lacks_entropies() {
        let mut turns = turns();
        turns[1].entropy = Box::default();
        turns[2].about.fault = Some(Fault::Aborted);
        let settled = settle(rows(&rows_of(turns)), Vec::new(), ALL);
        assert_eq!(trained(&settled), [[true, false]]);
        assert_eq!(reasons(&settled), [(1, "missing_entropy")]);
        assert_eq!(settled.rows[0].leaf(), 2);
    }

    #[test]
    fn entropies_are_needed_in_all_rows_or_in_none() {
        let mut turns = turns();
        turns.iter_mut().for_each(|turn| turn.entropy = Box::default());
        let settled = settle(rows(&rows_of(turns)), Vec::new(), ALL);
        assert!(!settled.entropy && settled.rows.len() == 2, "none has any");
    }

    #[test]
    fn refused_rows_stay_refused() {
        let before = ExcludedLeaf { session: "t".into(), leaf: 4, reason: "aborted" };
        let mut turns = turns();
        turns[2].about.fault = Some(Fault::Broken);
        let settled = settle(rows(&rows_of(turns)), vec![before], ALL);
        assert_eq!(reasons(&settled), [(4, "aborted"), (2, "no_trained_tokens")]);
    }

    /// A random session: each turn continues an earlier one or is a root; some have a fault, some lack logprobs or entropies.
    fn forest() -> impl Strategy<Value = Vec<Path>> {
        let spec = (any::<u32>(), 0..3usize, 0..4usize, 0..12u8);
        proptest::collection::vec(spec, 1..12).prop_map(|specs| {
            let mut lines: Vec<Vec<Arc<Turn>>> = Vec::new();
            for (id, (parent, prompt, response, what)) in specs.into_iter().enumerate() {
                let parent = Some(parent as usize % (id + 1)).filter(|parent| *parent < id);
                let mut line = parent.map_or_else(Vec::new, |parent| lines[parent].clone());
                let prompt = vec![7; prompt + usize::from(parent.is_none())];
                let parent = parent.map(|parent| u32::try_from(parent).unwrap());
                let mut turn = turn(u32::try_from(id).unwrap(), parent, &prompt, &vec![8; response]);
                match what {
                    0 => turn.about.fault = Some(Fault::Disconnected),
                    1 => turn.logprobs = Box::default(),
                    2 => turn.entropy = Box::default(),
                    _ => {}
                }
                line.push(Arc::new(turn));
                lines.push(line);
            }
            lines.iter().map(|line| path(&line.iter().collect::<Vec<_>>())).collect()
        })
    }

    /// The same result by a walk over every path: for each exported path, which of its turns are trained.
    fn naive(paths: &[Path], needs: Needs) -> Vec<Option<Vec<bool>>> {
        let mut taken: HashSet<*const Turn> = HashSet::new();
        let mut one = |path: &Path| {
            let trained = |turn: &Arc<Turn>| turn.is_trainable() && !taken.contains(&Arc::as_ptr(turn));
            let flags: Vec<bool> = path.steps.iter().map(|step| trained(&step.turn)).collect();
            let steps = || path.steps.iter().zip(&flags).filter(|(_, trained)| **trained);
            let lacks = steps().any(|(step, _)| needs.logprobs && step.turn.logprobs.len() != step.turn.response.len());
            let first = flags.iter().position(|trained| *trained)?;
            let before: usize =
                path.steps[..first].iter().map(|step| step.turn.prompt.len() + step.turn.response.len()).sum();
            let position = before + path.steps[first].turn.prompt.len() - path.prompt_len();
            if lacks || needs.kept.is_some_and(|kept| position >= kept) {
                return None;
            }
            taken.extend(steps().map(|(step, _)| Arc::as_ptr(&step.turn)).collect::<Vec<_>>());
            Some(flags)
        };
        paths.iter().map(&mut one).collect()
    }

    proptest! {
        #[test]
        fn claims_equal_those_of_a_walk_over_every_path(
            paths in forest(), logprobs in any::<bool>(), kept in prop::option::of(0..12_usize),
        ) {
            let needs = Needs { logprobs, kept, ..Needs::default() };
            let settled = settle(rows(&paths), Vec::new(), needs);
            let flags = |row: &Row| (row.leaf(), row.path().steps.iter().map(|step| step.trained).collect::<Vec<_>>());
            let own: Vec<_> = settled.rows.iter().map(flags).collect();
            let expected: Vec<_> =
                paths.iter().zip(naive(&paths, needs)).filter_map(|(path, flags)| Some((path.leaf().id, flags?))).collect();
            prop_assert_eq!(own, expected);
        }

        #[test]
        fn masks_count_each_token_once(paths in forest(), needs in prop_oneof![Just(ALL), Just(Needs::default())]) {
            let count = paths.len();
            let settled = settle(rows(&paths), Vec::new(), needs);
            prop_assert_eq!(settled.rows.len() + settled.refused.len(), count, "every row is exported or refused");
            let mut times: HashMap<*const Turn, usize> = HashMap::new();
            for step in settled.rows.iter().flat_map(|row| row.path().steps).filter(|step| step.turn.is_trainable()) {
                *times.entry(Arc::as_ptr(&step.turn)).or_default() += usize::from(step.trained);
            }
            prop_assert!(times.values().all(|times| *times == 1), "each token of an exported row is trained once");
        }

        #[test]
        fn exports_train_each_distinct_token_once(paths in forest()) {
            let strict = settle(rows(&paths), Vec::new(), ALL);
            let mut distinct: HashMap<*const Turn, i64> = HashMap::new();
            for step in strict.rows.iter().flat_map(|row| row.path().steps).filter(|step| step.turn.is_trainable()) {
                distinct.insert(Arc::as_ptr(&step.turn), i64::try_from(step.turn.response.len()).unwrap());
            }
            let expected: i64 = distinct.values().sum();
            let verl = File::of(Format::Verl.export(batch(paths.clone())));
            prop_assert_eq!(verl.integers("response_mask").iter().sum::<i64>(), expected);
            let areal = File::of(Format::Areal.export(batch(paths.clone())));
            prop_assert_eq!(areal.integers("loss_mask").iter().sum::<i64>(), expected);
            // Parquet's encoders are slow in tests; parquet.rs has a separate test
            for format in Format::all().iter().filter(|format| **format != Format::Parquet) {
                let [once, again] = [(), ()].map(|()| bytes(format.export(batch(paths.clone()))));
                prop_assert_eq!(once, again, "{:?} gives the same bytes twice", format);
            }
        }
    }
}
