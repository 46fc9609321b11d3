//! Publishes the finished paths of a session.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::classes::exclusion;
use super::publication::{FinishedPath, Publication};
use super::state::{Session, State};
use super::{Classes, ExcludedLeaf, Path, Step, Turn};

impl State {
    /// Restores a path that was published before. The numbers of such paths rise. If several records publish it, the first one counts:
    /// the others would train nothing.
    pub(super) fn finish(&mut self, publication: &mut Publication, path: FinishedPath) {
        if let Some(trained_from) = publication.claim(self.forest.turns(), path.leaf) {
            self.finished.push(FinishedPath { trained_from, ..path });
        }
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
                reward: state.rewards.last(version, finished.leaf),
                incomplete: state.incomplete.is_some_and(|since| since <= version),
                ..Path::new(Arc::clone(&self.id), version, Vec::new())
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
