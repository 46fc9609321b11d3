//! The finished paths of a session: which were published, and from which turn on each is trained.

use std::collections::HashSet;
use std::sync::Arc;

use super::Turn;
use super::lineage::Claims;

/// What finished paths hold.
#[derive(Debug, Default)]
pub(super) struct Publication {
    /// The leaves of the finished paths.
    leaves: HashSet<u32>,
    /// The turns of the finished paths.
    claims: Claims,
    /// The number of turns when paths were last published.
    turns: u32,
}

impl Publication {
    /// Claims the path that ends in `leaf`. Returns the first turn that it trains, or `None` if it was published before.
    pub(super) fn claim(&mut self, turns: &[Arc<Turn>], leaf: u32) -> Option<u32> {
        self.leaves.insert(leaf).then(|| self.claims.claim(turns, leaf))
    }

    /// Whether the path that ends in `leaf` was published.
    pub(super) fn has(&self, leaf: u32) -> bool {
        self.leaves.contains(&leaf)
    }

    /// Whether there are other turns than when paths were last published. Marks these as published.
    pub(super) fn advance(&mut self, turns: u32) -> bool {
        std::mem::replace(&mut self.turns, turns) != turns
    }
}

/// A finished path that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FinishedPath {
    /// Its position in the order of all finished paths.
    pub number: u64,
    /// Its last turn.
    pub leaf: u32,
    /// The number of turns of the session at that time.
    pub turns: u32,
    /// Its first turn that no earlier finished path holds. It is trained from this turn on.
    pub trained_from: u32,
}
