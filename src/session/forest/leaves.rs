//! Finds the turns of a forest that end a path.

use super::Forest;
use crate::session::{Turn, TurnCounts};

impl Forest {
    /// Counts a turn that is about to be added.
    pub(super) fn count(&mut self, turn: &Turn) {
        let extends = turn.parent.is_some_and(|parent| self.children[parent as usize].is_empty());
        self.counts.add(turn, extends);
        self.superseded.extend(&turn.about.supersedes);
    }

    /// The counts of turns by kind.
    #[must_use]
    pub fn counts(&self) -> &TurnCounts {
        &self.counts
    }

    /// Whether an exported path ends in this turn: it is trainable, its reply reached the client, and no turn after it is trained.
    #[must_use]
    pub fn ends_path(&self, leaf: u32) -> bool {
        let trained = |turn: u32| {
            let is_lost = self.superseded.contains(&turn) && self.children[turn as usize].is_empty();
            self.turns[turn as usize].is_trainable() && !is_lost
        };
        let behind = |turn: u32| self.children[turn as usize].iter().flat_map(|stem| &stem.turns).copied();
        if leaf >= self.next_id() || !trained(leaf) {
            return false;
        }
        let mut open: Vec<u32> = behind(leaf).collect();
        while let Some(turn) = open.pop() {
            if trained(turn) {
                return false;
            }
            open.extend(behind(turn));
        }
        true
    }
}
