//! Publishes the finished paths of a session: which were published, and from which turn on each is trained.

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::classes::exclusion;
use super::lineage::Claims;
use super::state::{Session, State};
use super::{Classes, ExcludedLeaf, Path, Step, Turn};

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
pub struct FinishedPath {
    /// Its position in the order of all finished paths.
    pub number: u64,
    /// Its last turn.
    pub leaf: u32,
    /// The number of turns of the session at that time.
    pub turns: u32,
    /// Its first turn that no earlier finished path holds. It is trained from this turn on.
    pub trained_from: u32,
}

impl State {
    /// Restores a path that was published before. The numbers of such paths rise.
    pub(super) fn finish(&mut self, publication: &mut Publication, path: FinishedPath) {
        let trained_from = publication.claims.claim(self.forest.turns(), path.leaf);
        publication.leaves.insert(path.leaf);
        self.finished.push(FinishedPath { trained_from, ..path });
    }
}

impl Session {
    pub(super) fn publication(&self) -> MutexGuard<'_, Publication> {
        self.publication.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of turns, unless the session was removed.
    pub(super) fn live_turns(&self) -> Option<u32> {
        let state = self.state();
        (!state.removed).then(|| state.forest.next_id())
    }

    /// Publishes claimed paths of the first `turns` turns under the numbers that `number` returns.
    pub(super) fn publish(
        &self,
        turns: u32,
        claimed: &[(u32, u32)],
        mut number: impl FnMut() -> u64,
    ) -> Vec<(u64, u32)> {
        let mut state = self.state();
        if state.removed {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(claimed.len());
        for (leaf, trained_from) in claimed.iter().copied() {
            let number = number();
            state.finished.push(FinishedPath { number, leaf, turns, trained_from });
            out.push((number, leaf));
        }
        out
    }

    /// The path that was published under this number. Its tokens are trained unless an earlier published path holds them or their class is
    /// not among `classes`. `None` if no path has this number.
    ///
    /// # Errors
    /// [`ExcludedLeaf`] if the path trains tokens of other classes only.
    #[must_use]
    pub fn finished(&self, number: u64, classes: Classes) -> Option<Result<Path, ExcludedLeaf>> {
        let (finished, mut path) = {
            let state = self.state();
            let at = state.finished.binary_search_by_key(&number, |finished| finished.number).ok()?;
            let finished = state.finished[at].clone();
            let version = 1 + state.frozen.partition_point(|turns| *turns < finished.turns);
            let version = u32::try_from(version).unwrap_or(u32::MAX);
            let path = Path {
                session: Arc::clone(&self.id),
                version,
                steps: Vec::new(),
                reward: state.rewards.last(version, finished.leaf),
                incomplete: state.incomplete.is_some_and(|since| since <= version),
            };
            (finished, path)
        };
        let mut is_excluded = false;
        let step = |turn: Arc<Turn>| {
            let is_own = turn.is_trainable() && turn.id >= finished.trained_from;
            let trained = is_own && classes.contains(turn.request_class());
            is_excluded |= is_own && !trained;
            Step { turn, trained }
        };
        path.steps = self.path(finished.leaf).into_iter().map(step).collect();
        if is_excluded && !path.steps.iter().any(|step| step.trained) {
            let (session, leaf) = (Arc::clone(&self.id), finished.leaf);
            return Some(Err(ExcludedLeaf { session, leaf, reason: exclusion(path.leaf().request_class()) }));
        }
        Some(Ok(path))
    }
}
