//! Rewards of paths.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use super::Reward;

/// The rewards of a session by leaf, by rising versions; `None` is the whole session.
#[derive(Debug, Default)]
pub(super) struct Rewards(BTreeMap<Option<u32>, Vec<Reward>>);

impl Rewards {
    /// Adds a reward. Replaces and returns the one for the same leaf and version.
    pub(super) fn set(&mut self, reward: Reward) -> Option<Reward> {
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

    /// The last reward of the leaf, else of the session, up to a version.
    pub(super) fn last(&self, version: u32, leaf: u32) -> Option<Arc<Value>> {
        self.last_of(version, Some(leaf)).or_else(|| self.last_of(version, None))
    }

    /// Copies the last rewards, up to a version, of at most `count` leaves from `from` on. Returns the leaf from which the next copy
    /// continues.
    pub(super) fn copy(
        &self,
        version: u32,
        (from, count): (Option<u32>, usize),
        out: &mut HashMap<Option<u32>, Arc<Value>>,
    ) -> Option<Option<u32>> {
        let mut rest = self.0.range(from..);
        let part = rest.by_ref().take(count);
        out.extend(part.filter_map(|(leaf, known)| Some((*leaf, Self::of(known, version)?))));
        rest.next().map(|(leaf, _)| *leaf)
    }

    fn last_of(&self, version: u32, leaf: Option<u32>) -> Option<Arc<Value>> {
        Self::of(self.0.get(&leaf)?, version)
    }

    fn of(known: &[Reward], version: u32) -> Option<Arc<Value>> {
        let after = known.partition_point(|reward| reward.version <= version);
        Some(Arc::clone(&known[after.checked_sub(1)?].value))
    }
}
