// SPDX-License-Identifier: Apache-2.0
//! The finished paths of a session: which were published, and from which turn on each is trained; and the latest ones of all sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::{Session, State};
use crate::session::labels::exclusion;
use crate::session::view::Claims;
use crate::session::{Classes, ExcludedLeaf, Path, Step, Turn};

/// The leaves and the turns of the published paths.
#[derive(Debug, Default)]
pub(in crate::session) struct Publication {
    /// The leaves of the finished paths.
    leaves: BTreeSet<u32>,
    /// The turns of the finished paths.
    claims: Claims,
    /// The number of turns when paths were last published.
    turns: u32,
}

impl Publication {
    /// Claims the path that ends in `leaf`. Returns the first turn that it trains, or `None` if it was published before.
    pub(in crate::session) fn claim(&mut self, turns: &[Arc<Turn>], leaf: u32) -> Option<u32> {
        self.leaves.insert(leaf).then(|| self.claims.claim(turns, leaf))
    }

    /// Whether the path that ends in `leaf` was published.
    pub(in crate::session) fn has(&self, leaf: u32) -> bool {
        self.leaves.contains(&leaf)
    }

    /// Whether there are other turns than when paths were last published. Marks these as published.
    pub(in crate::session) fn advance(&mut self, turns: u32) -> bool {
        std::mem::replace(&mut self.turns, turns) != turns
    }
}

/// A finished path that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) struct FinishedPath {
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
    /// Restores a path that was published before. The numbers of such paths rise. If several records publish it, the first one counts:
    /// the others would train nothing.
    pub(in crate::session) fn finish(&mut self, publication: &mut Publication, path: FinishedPath) {
        if let Some(trained_from) = publication.claim(self.forest.turns(), path.leaf) {
            self.finished.push(FinishedPath { trained_from, ..path });
        }
    }
}

impl Session {
    /// The number of turns, unless the session was removed.
    pub(in crate::session) fn live_turns(&self) -> Option<u32> {
        let state = self.state();
        (!state.removed).then(|| state.forest.next_id())
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
                tags: state.tags.clone(),
                ..Path::new(Arc::clone(&self.id), version, Vec::new())
            };
            (finished, path)
        };
        let mut is_excluded = false;
        let step = |turn: Arc<Turn>| {
            let is_own = turn.is_trainable() && turn.id >= finished.trained_from;
            let trained = is_own && classes.contains(turn.request_class());
            is_excluded |= is_own && !trained;
            let reward = self.state().rewards.last_of_turn(path.version, turn.id);
            Step { turn, trained, reward, scores: None }
        };
        path.steps = self.path(finished.leaf).into_iter().map(step).collect();
        if is_excluded && !path.steps.iter().any(|step| step.trained) {
            let (session, leaf) = (Arc::clone(&self.id), finished.leaf);
            return Some(Err(ExcludedLeaf { session, leaf, reason: exclusion(path.leaf().request_class()) }));
        }
        Some(Ok(path))
    }
}

/// Paths that can be listed. A consumer that is further behind gets the number of paths that it missed.
const FINISHED: usize = 1 << 20;

/// The names of the sessions of finished paths, by the numbers of the paths. A B-tree, because a list of a million paths that doubles its
/// capacity copies for milliseconds, while the order is locked.
#[derive(Debug, Default)]
pub(in crate::session) struct FinishedPaths(BTreeMap<u64, Arc<str>>);

impl FinishedPaths {
    /// Adds a path. The first path is removed if there are too many.
    pub(in crate::session) fn push(&mut self, number: u64, session: Arc<str>) {
        if self.0.len() == FINISHED {
            self.0.pop_first();
        }
        self.0.insert(number, session);
    }

    /// The paths after the number `after`, in order.
    pub(in crate::session) fn after(&self, after: u64) -> impl Iterator<Item = (u64, Arc<str>)> {
        let later = self.0.range((Bound::Excluded(after), Bound::Unbounded));
        later.map(|(number, session)| (*number, Arc::clone(session)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_listed_after_any_number() {
        let mut paths = FinishedPaths::default();
        let listed = |paths: &FinishedPaths, after| paths.after(after).map(|(number, _)| number).collect::<Vec<_>>();
        assert!(listed(&paths, 0).is_empty());
        // every second number
        (1..=3000).for_each(|number| paths.push(2 * number, "s".into()));
        for after in [0, 1, 2, 3, 2047, 2048, 2049, 6000, u64::MAX] {
            let expected: Vec<_> = (1..=3000).map(|number| 2 * number).filter(|number| *number > after).collect();
            assert_eq!(listed(&paths, after), expected, "after {after}");
        }
    }

    #[test]
    fn full_list_loses_its_first_path() {
        let mut paths = FinishedPaths::default();
        let session: Arc<str> = "s".into();
        for number in 1..=FINISHED as u64 + 1025 {
            paths.push(number, Arc::clone(&session));
            assert!(paths.0.len() <= FINISHED);
        }
        assert_eq!(paths.after(0).next().map(|(number, _)| number), Some(1026));
        assert_eq!(paths.0.len(), FINISHED);
    }
}
