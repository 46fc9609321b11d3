//! Rewards of paths.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use crate::session::Reward;

/// The rewards of a session by leaf, by rising versions; `None` is the whole session.
#[derive(Debug, Default)]
pub(in crate::session) struct Rewards(BTreeMap<Option<u32>, Vec<Reward>>);

impl Rewards {
    /// Adds a reward. Replaces and returns the one for the same leaf and version.
    pub(in crate::session) fn set(&mut self, reward: Reward) -> Option<Reward> {
        let known = self.0.entry(reward.leaf).or_default();
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
        self.0.values().flatten()
    }

    /// Whether the leaf, or the session, itself has a reward for this version.
    pub(in crate::session) fn has(&self, version: u32, leaf: Option<u32>) -> bool {
        self.0.get(&leaf).is_some_and(|known| known.iter().any(|reward| reward.version == version))
    }

    /// The last reward of the leaf, else of the session, up to a version.
    pub(in crate::session) fn last(&self, version: u32, leaf: u32) -> Option<Arc<Value>> {
        self.last_of(version, Some(leaf)).or_else(|| self.last_of(version, None))
    }

    /// Copies the last rewards, up to a version, of at most `count` leaves from `from` on. Returns the leaf from which the next copy
    /// continues.
    pub(in crate::session) fn copy(
        &self,
        version: u32,
        from: Option<u32>,
        count: usize,
        out: &mut HashMap<Option<u32>, Arc<Value>>,
    ) -> Option<Option<u32>> {
        let mut rest = self.0.range(from..);
        let part = rest.by_ref().take(count);
        out.extend(part.filter_map(|(leaf, known)| Some((*leaf, Self::last_up_to(known, version)?))));
        rest.next().map(|(leaf, _)| *leaf)
    }

    fn last_of(&self, version: u32, leaf: Option<u32>) -> Option<Arc<Value>> {
        Self::last_up_to(self.0.get(&leaf)?, version)
    }

    fn last_up_to(known: &[Reward], version: u32) -> Option<Arc<Value>> {
        let after = known.partition_point(|reward| reward.version <= version);
        Some(Arc::clone(&known[after.checked_sub(1)?].value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(version: u32, leaf: Option<u32>, value: u32) -> Reward {
        Reward { version, leaf, value: Arc::new(value.into()) }
    }

    #[test]
    fn rewards_are_copied_in_parts() {
        let mut rewards = Rewards::default();
        for leaf in [None].into_iter().chain((0..10).map(Some)) {
            rewards.set(reward(1, leaf, 1));
            rewards.set(reward(3, leaf, 3));
        }
        for (version, value) in [(1, Some(1)), (2, Some(1)), (3, Some(3)), (9, Some(3)), (0, None)] {
            let (mut copied, mut next, mut parts) = (HashMap::new(), Some(None), 0);
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
        assert_eq!(rewards.set(reward(2, None, 1)), None);
        assert_eq!(rewards.set(reward(1, None, 2)), None);
        assert_eq!(rewards.set(reward(2, None, 3)), Some(reward(2, None, 1)));
        assert_eq!(rewards.last(1, 7).as_deref(), Some(&2.into()));
        assert_eq!(rewards.last(2, 7).as_deref(), Some(&3.into()));
    }
}
