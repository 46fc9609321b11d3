// SPDX-License-Identifier: Apache-2.0
//! The exported paths of a session.

mod lineage;
mod trained_turns;

use std::collections::HashSet;
use std::sync::Arc;

use super::labels::exclusion;
use super::{Classes, Turn};
pub(super) use lineage::{Claims, Lineage, lineages, upwards};
pub(super) use trained_turns::TrainedTurns;
pub use trained_turns::TurnSelection;
use trained_turns::{continued, superseded};

/// The turns that another turn replaces.
pub(super) fn superseded_turns(turns: &[Arc<Turn>]) -> HashSet<u32> {
    superseded(turns, &continued(turns))
}

/// The turns that end a path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Leaves {
    /// Trained turns without a trained turn after them.
    pub exported: Vec<u32>,
    /// Turns that end a path and are not trained, each with the reason.
    pub refused: Vec<(u32, &'static str)>,
}

/// The leaves of an export that trains these turns. Each of them is on the path of an exported leaf, unless another turn replaces it.
pub(super) fn leaves(turns: &[Arc<Turn>], trained: &TrainedTurns) -> Leaves {
    let count = turns.len();
    let continued = continued(turns);
    let superseded = superseded(turns, &continued);
    let mut trained_after = vec![false; count];
    // also by turns of other classes
    let mut trainable_after = vec![false; count];
    for turn in turns.iter().rev() {
        let at = turn.id as usize;
        let Some(parent) = turn.parent.map(|parent| parent as usize) else { continue };
        let counts = !superseded.contains(&turn.id);
        trained_after[parent] |= trained_after[at] || (counts && trained.contains(turn.id));
        trainable_after[parent] |= trainable_after[at] || (counts && turn.is_trainable());
    }
    let mut leaves = Leaves::default();
    for turn in turns {
        let at = turn.id as usize;
        if superseded.contains(&turn.id) {
            leaves.refused.push((turn.id, "superseded"));
        } else if trained.contains(turn.id) {
            if !trained_after[at] {
                leaves.exported.push(turn.id);
            }
        } else if turn.is_trainable() {
            if !trainable_after[at] {
                leaves.refused.push((turn.id, exclusion(turn.request_class())));
            }
        } else if !continued[at] {
            leaves.refused.push((turn.id, turn.about.fault.map_or("empty", super::Fault::name)));
        }
    }
    leaves
}

/// The leaves of the paths that a finished session publishes: those of an export of the default classes, then the turns of other classes
/// that end a path. A path trains the turns that no earlier path holds, so the rows of the default classes train all their turns.
pub(super) fn published_leaves(turns: &[Arc<Turn>]) -> Vec<u32> {
    if let [turn] = turns {
        // most sessions, whatever the class of the turn
        return Vec::from_iter(turn.is_trainable().then_some(turn.id));
    }
    let classes = Classes::default();
    let is_other = |turn: &Turn| turn.is_trainable() && !classes.trains(turn);
    let exported = |classes: Classes| leaves(turns, &TrainedTurns::new(turns, classes.into())).exported;
    let mut published = exported(classes);
    if turns.iter().any(|turn| is_other(turn)) {
        let all = exported(Classes::ALL);
        published.extend(all.into_iter().filter(|leaf| is_other(&turns[*leaf as usize])));
    }
    published
}

#[cfg(test)]
mod tests {
    use super::super::forest::{Forest, tests::add};
    use super::super::{Row, Snapshot};
    use super::*;

    fn trained(forest: &Forest) -> Vec<(u32, Vec<bool>)> {
        let rows = Snapshot::of(forest.turns()).rows(true).0;
        rows.iter().map(|row| (row.leaf(), row.path().steps.iter().map(|step| step.trained).collect())).collect()
    }

    fn leaves(turns: &[Arc<Turn>]) -> Leaves {
        super::leaves(turns, &TrainedTurns::new(turns, Classes::default().into()))
    }

    #[test]
    fn token_is_trained_in_the_earliest_row_that_holds_it() {
        let mut forest = Forest::default();
        add(&mut forest, &[1], &[2], "stop");
        add(&mut forest, &[1, 2, 3], &[4], "stop");
        add(&mut forest, &[1, 2, 5], &[6, 6], "stop");
        assert_eq!(trained(&forest), [(1, vec![true, true]), (2, vec![false, true])]);
        let longest = Snapshot::of(forest.turns()).rows(false).0;
        assert_eq!(longest.iter().map(Row::leaf).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn cut_off_turn_is_context_and_ends_no_row() {
        let mut forest = Forest::default();
        add(&mut forest, &[1], &[2], "stop");
        add(&mut forest, &[1, 2, 3], &[4], "abort");
        assert_eq!(trained(&forest), [(0, vec![true])]);
        assert_eq!(leaves(forest.turns()).refused, [(1, "aborted")]);
        add(&mut forest, &[1, 2, 3, 4], &[5], "stop");
        assert_eq!(trained(&forest), [(2, vec![true, false, true])]);
        assert_eq!(leaves(forest.turns()).refused, []);
    }

    #[test]
    fn undelivered_turn_is_superseded_unless_continued() {
        let mut forest = Forest::default();
        add(&mut forest, &[1], &[2], "stop");
        add(&mut forest, &[1], &[7], "stop");
        let mut last = (*forest.turns()[1]).clone();
        last.about.supersedes = vec![0];
        let turns = [Arc::clone(&forest.turns()[0]), Arc::new(last.clone())];
        assert_eq!(leaves(&turns), Leaves { exported: vec![1], refused: vec![(0, "superseded")] });
        let mut child = last.clone();
        (child.id, child.parent, child.about.supersedes) = (2, Some(0), Vec::new());
        let turns = [Arc::clone(&forest.turns()[0]), Arc::new(last), Arc::new(child)];
        assert_eq!(leaves(&turns), Leaves { exported: vec![1, 2], refused: vec![] });
    }
}
