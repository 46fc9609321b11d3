// SPDX-License-Identifier: Apache-2.0
//! The rewards of a session.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use crate::session::{Reward, RewardScope};

/// The rewards of a session by scope, by rising versions.
#[derive(Debug, Default)]
pub(in crate::session) struct Rewards {
    by_scope: BTreeMap<RewardScope, Vec<Reward>>,
}

impl Rewards {
    /// Adds a reward. Replaces and returns the one for the same scope and version.
    pub(in crate::session) fn set(&mut self, reward: Reward) -> Option<Reward> {
        let known = self.by_scope.entry(reward.scope).or_default();
        let at = known.partition_point(|known| known.version < reward.version);
        match known.get_mut(at).filter(|known| known.version == reward.version) {
            Some(known) => Some(std::mem::replace(known, reward)),
            None => {
                known.insert(at, reward);
                None
            }
        }
    }

    /// All rewards, in a fixed order.
    pub(in crate::session) fn all(&self) -> impl Iterator<Item = &Reward> {
        self.by_scope.values().flatten()
    }

    /// Whether the scope itself has a reward for this version.
    pub(in crate::session) fn has(&self, version: u32, scope: RewardScope) -> bool {
        self.by_scope.get(&scope).is_some_and(|known| known.iter().any(|reward| reward.version == version))
    }

    /// The last reward of the path that ends in `leaf`, else of the session, up to a version.
    pub(in crate::session) fn last(&self, version: u32, leaf: u32) -> Option<Arc<Value>> {
        self.last_of(version, RewardScope::Leaf(leaf)).or_else(|| self.last_of(version, RewardScope::Session))
    }

    /// The last reward of a turn, up to a version.
    pub(in crate::session) fn last_of_turn(&self, version: u32, turn: u32) -> Option<Arc<Value>> {
        self.last_of(version, RewardScope::Turn(turn))
    }

    /// Copies the last rewards, up to a version, of at most `count` scopes from `from` on. Returns the scope from which the next copy
    /// continues.
    pub(in crate::session) fn copy(
        &self,
        version: u32,
        from: RewardScope,
        count: usize,
        out: &mut HashMap<RewardScope, Arc<Value>>,
    ) -> Option<RewardScope> {
        let mut rest = self.by_scope.range(from..);
        let part = rest.by_ref().take(count);
        out.extend(part.filter_map(|(scope, known)| Some((*scope, Self::last_up_to(known, version)?))));
        rest.next().map(|(scope, _)| *scope)
    }

    fn last_of(&self, version: u32, scope: RewardScope) -> Option<Arc<Value>> {
        Self::last_up_to(self.by_scope.get(&scope)?, version)
    }

    fn last_up_to(known: &[Reward], version: u32) -> Option<Arc<Value>> {
        let after = known.partition_point(|reward| reward.version <= version);
        Some(Arc::clone(&known[after.checked_sub(1)?].value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(version: u32, scope: RewardScope, value: u32) -> Reward {
        Reward { version, scope, value: Arc::new(value.into()) }
    }

    #[test]
    fn rewards_are_copied_in_parts() {
        let mut rewards = Rewards::default();
        let leaves = (0..5).map(RewardScope::Leaf);
        for scope in [RewardScope::Session].into_iter().chain(leaves).chain((0..5).map(RewardScope::Turn)) {
            rewards.set(reward(1, scope, 1));
            rewards.set(reward(3, scope, 3));
        }
        for (version, value) in [(1, Some(1)), (2, Some(1)), (3, Some(3)), (9, Some(3)), (0, None)] {
            let (mut copied, mut next, mut parts) = (HashMap::new(), Some(RewardScope::Session), 0);
            while let Some(from) = next {
                let before = copied.len();
                next = rewards.copy(version, from, 4, &mut copied);
                assert!(copied.len() <= before + 4);
                parts += 1;
            }
            assert_eq!((parts, copied.len()), (3, if value.is_some() { 11 } else { 0 }));
            assert!(copied.values().all(|copied| copied.as_u64() == value), "version {version}");
        }
    }

    #[test]
    fn reward_of_the_same_version_is_replaced() {
        let mut rewards = Rewards::default();
        assert_eq!(rewards.set(reward(2, RewardScope::Session, 1)), None);
        assert_eq!(rewards.set(reward(1, RewardScope::Session, 2)), None);
        assert_eq!(rewards.set(reward(2, RewardScope::Session, 3)), Some(reward(2, RewardScope::Session, 1)));
        assert_eq!(rewards.last(1, 7).as_deref(), Some(&2.into()));
        assert_eq!(rewards.last(2, 7).as_deref(), Some(&3.into()));
    }

    #[test]
    fn path_and_its_last_turn_have_rewards_of_their_own() {
        let mut rewards = Rewards::default();
        rewards.set(reward(1, RewardScope::Turn(7), 5));
        assert_eq!((rewards.last(1, 7), rewards.last_of_turn(1, 6)), (None, None));
        rewards.set(reward(1, RewardScope::Leaf(7), 6));
        assert_eq!(rewards.last(1, 7).as_deref(), Some(&6.into()));
        assert_eq!(rewards.last_of_turn(1, 7).as_deref(), Some(&5.into()));
        assert!(rewards.has(1, RewardScope::Turn(7)) && !rewards.has(1, RewardScope::Session));
    }
}
