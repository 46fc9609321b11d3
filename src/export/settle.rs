//! Which rows leave, and which of them trains which turn.

use std::sync::Arc;

use super::validate::verdicts;
use super::{ExcludedLeaf, Needs, Tally};
use crate::session::{Path, Row, Turn};

/// Rows that may leave.
#[derive(Debug)]
pub struct SelectedRows {
    /// The rows in their order.
    pub rows: Arc<[Row]>,
    /// What was refused before, and now.
    pub refused: Vec<ExcludedLeaf>,
    /// Where entropies are needed: whether every trained token has one; otherwise none has. Elsewhere it says nothing.
    pub entropy: bool,
    /// How many of each.
    pub tally: Tally,
}

/// Drops the rows that do not fit, and trains each turn in the first row that is left and holds it. Takes time in turns, not in steps.
///
/// A turn of a dropped row may be context in a later row. There it is trained instead, so that no token is lost.
/// Entropies are needed of all rows or, where not a single trained token has one, of none.
#[must_use]
pub fn settle(rows: Vec<Row>, mut refused: Vec<ExcludedLeaf>, needs: Needs) -> SelectedRows {
    let (mut kept, mut dropped) = keep(&rows, Needs { entropy: false, ..needs });
    let measured = needs.entropy && kept.iter().any(|row| row.trained().any(|turn| has_entropy(turn)));
    if measured {
        // from the beginning, because what was context of a row that now goes may be all that another one trains
        (kept, dropped) = keep(&rows, needs);
    }
    refused.append(&mut dropped);
    let tally = Tally::of(kept.len(), &refused);
    SelectedRows { entropy: measured && !kept.is_empty(), rows: kept.into(), refused, tally }
}

fn keep(rows: &[Row], needs: Needs) -> (Vec<Row>, Vec<ExcludedLeaf>) {
    let (mut kept, mut refused) = (Vec::with_capacity(rows.len()), Vec::new());
    for session in rows.chunk_by(Row::shares_turns) {
        let mut claims = Ledger::new(session[0].turns(), needs);
        for row in session {
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

/// What became of a turn so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Free,
    /// A row that is kept holds it.
    Held,
    /// What is trained on any row that holds it is cut off.
    CutOff,
    /// Neither it nor a turn before it can be trained by another row.
    Barren,
}

/// The turns of a session while its rows are looked at, in order.
struct Ledger {
    verdicts: Vec<Result<(), &'static str>>,
    claims: Vec<Claim>,
    kept: Option<usize>,
}

impl Ledger {
    fn new(turns: &[Arc<Turn>], needs: Needs) -> Self {
        let claims = vec![Claim::Free; turns.len()];
        Self { verdicts: verdicts(turns, needs), claims, kept: needs.kept }
    }

    /// Takes the turns of a row that no row before it holds; returns the first of them. They are the end of the row: who holds a turn
    /// holds all before it.
    fn claim(&mut self, row: &Row) -> Result<u32, &'static str> {
        self.verdicts[row.leaf() as usize]?;
        // where the tokens of the turn at hand end
        let (mut end, mut cut_off) = (row.len(), false);
        // the first turn that would be trained, and where its sampled tokens begin
        let mut first = None;
        for turn in row.upwards() {
            match self.claims[turn.id as usize] {
                Claim::Free => {}
                Claim::Held | Claim::Barren => break,
                Claim::CutOff => {
                    cut_off = true;
                    break;
                }
            }
            if turn.is_trainable() {
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
                _ => Claim::Barren,
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
    use crate::export::fixture::{File, batch, bytes, path, rows, rows_of, turn, turns};
    use crate::session::Fault;

    const ALL: Needs = Needs { logprobs: true, entropy: true, kept: None, int32_ids: false };

    fn trained(settled: &SelectedRows) -> Vec<Vec<bool>> {
        settled.rows.iter().map(|row| row.path().steps.iter().map(|step| step.trained).collect()).collect()
    }

    fn reasons(settled: &SelectedRows) -> Vec<(u32, &'static str)> {
        settled.refused.iter().map(|refused| (refused.leaf, refused.reason)).collect()
    }

    #[test]
    fn a_turn_is_trained_in_the_first_row_that_holds_it() {
        let settled = settle(rows(&rows_of(turns())), Vec::new(), ALL);
        assert_eq!(trained(&settled), [[true, true], [false, true]]);
        assert!(settled.entropy && settled.refused.is_empty(), "both rows are whole");
    }

    #[test]
    fn a_refused_row_leaves_its_turns_to_the_next() {
        let mut turns = turns();
        turns[1].logprobs = Box::default();
        let settled = settle(rows(&rows_of(turns)), Vec::new(), ALL);
        assert_eq!(trained(&settled), [[true, true]]);
        assert_eq!(reasons(&settled), [(1, "missing_logprobs")]);
    }

    #[test]
    fn a_row_that_had_nothing_to_train_gets_it_when_another_goes_for_its_entropies() {
        let mut turns = turns();
        turns[1].entropy = Box::default();
        turns[2].about.fault = Some(Fault::Aborted);
        let settled = settle(rows(&rows_of(turns)), Vec::new(), ALL);
        assert_eq!(trained(&settled), [[true, false]]);
        assert_eq!(reasons(&settled), [(1, "missing_entropy")]);
        assert_eq!(settled.rows[0].leaf(), 2);
    }

    #[test]
    fn entropies_are_needed_of_all_or_of_none() {
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

    /// A session of turns: each behind an earlier one or a root, some at fault, some without numbers.
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

    /// The same by walking over every path: which paths leave, and which of their turns are trained.
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
        fn turns_are_claimed_as_if_every_path_were_walked_over(
            paths in forest(), logprobs in any::<bool>(), kept in prop::option::of(0..12_usize),
        ) {
            let needs = Needs { logprobs, entropy: false, kept, int32_ids: false };
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
            prop_assert_eq!(settled.rows.len() + settled.refused.len(), count, "every row is somewhere");
            let mut times: HashMap<*const Turn, usize> = HashMap::new();
            for step in settled.rows.iter().flat_map(|row| row.path().steps).filter(|step| step.turn.is_trainable()) {
                *times.entry(Arc::as_ptr(&step.turn)).or_default() += usize::from(step.trained);
            }
            prop_assert!(times.values().all(|times| *times == 1), "no token twice, none lost from a row that is there");
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
            // Parquet's encoders are slow in tests; it has its own test for this
            for format in Format::ALL.into_iter().filter(|format| *format != Format::Parquet) {
                let [once, again] = [(), ()].map(|()| bytes(format.export(batch(paths.clone()))));
                prop_assert_eq!(once, again, "{:?} gives the same twice", format);
            }
        }
    }
}
