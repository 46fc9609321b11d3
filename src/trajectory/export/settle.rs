//! Which rows leave, and which of them trains which turn.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Needs, Refused, Tally, validate};
use crate::trajectory::{Path, Turn};

/// Rows that may leave.
#[derive(Debug)]
pub struct Settled {
    /// The rows in their order.
    pub rows: Arc<[Path]>,
    /// What was refused before, and now.
    pub refused: Vec<Refused>,
    /// Where entropies are needed: whether every trained token has one; otherwise none has. Elsewhere it says nothing.
    pub entropy: bool,
    /// How many of each.
    pub tally: Tally,
}

/// Drops the rows that do not fit, and trains each turn in the first row that is left and holds it.
///
/// A turn of a dropped row may stand in a later one, as context so far. There it is trained instead, so that no token is lost unseen.
/// Entropies are needed of all rows or, where not a single trained token has one, of none.
#[must_use]
pub fn settle(rows: Vec<Path>, mut refused: Vec<Refused>, needs: Needs) -> Settled {
    let (mut kept, mut dropped) = keep(&rows, Needs { entropy: false, ..needs });
    let measured = needs.entropy && kept.iter().any(is_measured);
    if measured {
        // from the beginning, because what was context of a row that now goes may be all that another one trains
        (kept, dropped) = keep(&rows, needs);
    }
    refused.append(&mut dropped);
    let tally = Tally::of(kept.len(), &refused);
    Settled { entropy: measured && !kept.is_empty(), rows: kept.into(), refused, tally }
}

fn keep(rows: &[Path], needs: Needs) -> (Vec<Path>, Vec<Refused>) {
    let mut taken: HashSet<*const Turn> = HashSet::new();
    let (mut kept, mut refused) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        let mut row = row.clone();
        for step in &mut row.steps {
            step.trained = step.turn.is_trainable() && !taken.contains(&Arc::as_ptr(&step.turn));
        }
        match validate(&row, needs) {
            Ok(()) => {
                taken.extend(row.steps.iter().filter(|step| step.trained).map(|step| Arc::as_ptr(&step.turn)));
                kept.push(row);
            }
            Err(reason) => {
                let leaf = row.steps.last().map_or(0, |step| step.turn.id);
                refused.push(Refused { session: row.session, leaf, reason });
            }
        }
    }
    (kept, refused)
}

/// Whether a trained token of the row has an entropy.
pub(super) fn is_measured(row: &Path) -> bool {
    row.steps.iter().any(|step| step.trained && step.turn.entropy.iter().any(|entropy| entropy.is_finite()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::trajectory::Fault;
    use crate::trajectory::export::Format;
    use crate::trajectory::export::fixture::{File, batch, bytes, path, rows_of, turn, turns};

    const ALL: Needs = Needs { logprobs: true, entropy: true, kept: None };

    fn trained(settled: &Settled) -> Vec<Vec<bool>> {
        settled.rows.iter().map(|row| row.steps.iter().map(|step| step.trained).collect()).collect()
    }

    fn reasons(settled: &Settled) -> Vec<(u32, &'static str)> {
        settled.refused.iter().map(|refused| (refused.leaf, refused.reason)).collect()
    }

    #[test]
    fn a_turn_is_trained_in_the_first_row_that_holds_it() {
        let settled = settle(rows_of(turns()), Vec::new(), ALL);
        assert_eq!(trained(&settled), [[true, true], [false, true]]);
        assert!(settled.entropy && settled.refused.is_empty(), "both rows are whole");
    }

    #[test]
    fn a_refused_row_leaves_its_turns_to_the_next() {
        let mut turns = turns();
        turns[1].logprobs = Box::default();
        let settled = settle(rows_of(turns), Vec::new(), ALL);
        assert_eq!(trained(&settled), [[true, true]]);
        assert_eq!(reasons(&settled), [(1, "missing_logprobs")]);
    }

    #[test]
    fn a_row_that_had_nothing_to_train_gets_it_when_another_goes_for_its_entropies() {
        let mut turns = turns();
        turns[1].entropy = Box::default();
        turns[2].about.fault = Some(Fault::Aborted);
        let settled = settle(rows_of(turns), Vec::new(), ALL);
        assert_eq!(trained(&settled), [[true, false]]);
        assert_eq!(reasons(&settled), [(1, "missing_entropy")]);
        assert_eq!(settled.rows[0].leaf().id, 2);
    }

    #[test]
    fn entropies_are_needed_of_all_or_of_none() {
        let mut turns = turns();
        turns.iter_mut().for_each(|turn| turn.entropy = Box::default());
        let settled = settle(rows_of(turns), Vec::new(), ALL);
        assert!(!settled.entropy && settled.rows.len() == 2, "none has any");
    }

    #[test]
    fn what_was_refused_before_stays_refused() {
        let before = Refused { session: "t".into(), leaf: 4, reason: "aborted" };
        let mut turns = turns();
        turns[2].about.fault = Some(Fault::Broken);
        let settled = settle(rows_of(turns), vec![before], ALL);
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

    proptest! {
        #[test]
        fn masks_count_each_token_once(rows in forest(), needs in prop_oneof![Just(ALL), Just(Needs::default())]) {
            let count = rows.len();
            let settled = settle(rows, Vec::new(), needs);
            prop_assert_eq!(settled.rows.len() + settled.refused.len(), count, "every row is somewhere");
            let mut times: HashMap<*const Turn, usize> = HashMap::new();
            for step in settled.rows.iter().flat_map(|row| &row.steps).filter(|step| step.turn.is_trainable()) {
                *times.entry(Arc::as_ptr(&step.turn)).or_default() += usize::from(step.trained);
            }
            prop_assert!(times.values().all(|times| *times == 1), "no token twice, none lost from a row that is there");
        }

        #[test]
        fn exports_train_each_distinct_token_once(rows in forest()) {
            let strict = settle(rows.clone(), Vec::new(), ALL);
            let mut distinct: HashMap<*const Turn, i64> = HashMap::new();
            for step in strict.rows.iter().flat_map(|row| &row.steps).filter(|step| step.turn.is_trainable()) {
                distinct.insert(Arc::as_ptr(&step.turn), i64::try_from(step.turn.response.len()).unwrap());
            }
            let expected: i64 = distinct.values().sum();
            let verl = File::of(Format::Verl.export(batch(rows.clone())));
            prop_assert_eq!(verl.integers("response_mask").iter().sum::<i64>(), expected);
            let areal = File::of(Format::Areal.export(batch(rows.clone())));
            prop_assert_eq!(areal.integers("loss_mask").iter().sum::<i64>(), expected);
            // Parquet's encoders are slow in tests; it has a test of its own for this
            for format in Format::ALL.into_iter().filter(|format| *format != Format::Parquet) {
                let [once, again] = [(), ()].map(|()| bytes(format.export(batch(rows.clone()))));
                prop_assert_eq!(once, again, "{:?} gives the same twice", format);
            }
        }
    }
}
