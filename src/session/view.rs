//! The exported paths of a session.

use std::collections::HashSet;
use std::sync::Arc;

use super::Turn;
use super::lineage::upwards;

/// The turns of one version of a session.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    turns: &'a [Arc<Turn>],
}

/// The turns that end a path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leaves {
    /// Trainable turns without a trained turn after them.
    pub exported: Vec<u32>,
    /// Turns that end a path and are not trained, each with the reason.
    pub refused: Vec<(u32, &'static str)>,
}

impl<'a> View<'a> {
    /// A view of these turns, in the order of their numbers.
    #[must_use]
    pub fn new(turns: &'a [Arc<Turn>]) -> Self {
        Self { turns }
    }

    /// The leaves. Every trainable turn is on the path of an exported leaf, unless another turn replaces it.
    #[must_use]
    pub fn leaves(&self) -> Leaves {
        let count = self.turns.len();
        let (mut continued, mut trained_after) = (vec![false; count], vec![false; count]);
        for turn in self.turns {
            if let Some(parent) = turn.parent {
                continued[parent as usize] = true;
            }
        }
        // a reply that was continued must have reached its client
        let superseded: HashSet<u32> = self
            .turns
            .iter()
            .flat_map(|turn| turn.about.supersedes.iter().copied())
            .filter(|id| continued.get(*id as usize) == Some(&false))
            .collect();
        for turn in self.turns.iter().rev() {
            let at = turn.id as usize;
            let trained = turn.is_trainable() && !superseded.contains(&turn.id);
            if let (Some(parent), true) = (turn.parent, trained || trained_after[at]) {
                trained_after[parent as usize] = true;
            }
        }
        let mut leaves = Leaves::default();
        for turn in self.turns {
            let at = turn.id as usize;
            if superseded.contains(&turn.id) {
                leaves.refused.push((turn.id, "superseded"));
            } else if turn.is_trainable() && !trained_after[at] {
                leaves.exported.push(turn.id);
            } else if !continued[at] && !turn.is_trainable() {
                leaves.refused.push((turn.id, turn.about.fault.map_or("empty", super::Fault::name)));
            }
        }
        leaves
    }

    /// The turns from the root to `leaf`.
    #[must_use]
    pub fn path(&self, leaf: u32) -> Vec<Arc<Turn>> {
        let mut path: Vec<Arc<Turn>> = upwards(self.turns, leaf).map(Arc::clone).collect();
        path.reverse();
        path
    }
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
        assert_eq!(View::new(forest.turns()).leaves().refused, [(1, "aborted")]);
        add(&mut forest, &[1, 2, 3, 4], &[5], "stop");
        assert_eq!(trained(&forest), [(2, vec![true, false, true])]);
        assert_eq!(View::new(forest.turns()).leaves().refused, []);
    }

    #[test]
    fn undelivered_turn_is_superseded_unless_continued() {
        let mut forest = Forest::default();
        add(&mut forest, &[1], &[2], "stop");
        add(&mut forest, &[1], &[7], "stop");
        let mut last = (*forest.turns()[1]).clone();
        last.about.supersedes = vec![0];
        let turns = [Arc::clone(&forest.turns()[0]), Arc::new(last.clone())];
        assert_eq!(View::new(&turns).leaves(), Leaves { exported: vec![1], refused: vec![(0, "superseded")] });
        let mut child = last.clone();
        (child.id, child.parent, child.about.supersedes) = (2, Some(0), Vec::new());
        let turns = [Arc::clone(&forest.turns()[0]), Arc::new(last), Arc::new(child)];
        assert_eq!(View::new(&turns).leaves(), Leaves { exported: vec![1, 2], refused: vec![] });
    }
}
