//! Rewards of paths.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::Reward;

/// The rewards of a session by leaf; `None` is the whole session.
#[derive(Debug, Default)]
pub(super) struct Rewards(HashMap<Option<u32>, Vec<Reward>>);

impl Rewards {
    /// Adds a reward. Replaces and returns the one for the same leaf and version.
    pub(super) fn set(&mut self, reward: Reward) -> Option<Reward> {
        let known = self.0.entry(reward.leaf).or_default();
        // versions rise, so the replaced reward is among the last
        match known.iter_mut().rev().find(|known| known.version == reward.version) {
            Some(known) => Some(std::mem::replace(known, reward)),
            None => {
                known.push(reward);
                None
            }
        }
    }

    /// The last reward of the leaf, else of the session, up to a version.
    pub(super) fn last(&self, version: u32, leaf: u32) -> Option<Arc<Value>> {
        self.of(version, Some(leaf)).or_else(|| self.of(version, None))
    }

    /// The last reward of each leaf and of the session, up to a version.
    pub(super) fn until(&self, version: u32) -> HashMap<Option<u32>, Arc<Value>> {
        self.0.keys().filter_map(|leaf| Some((*leaf, self.of(version, *leaf)?))).collect()
    }

    fn of(&self, version: u32, leaf: Option<u32>) -> Option<Arc<Value>> {
        let last = self.0.get(&leaf)?.iter().rev().find(|reward| reward.version <= version)?;
        Some(Arc::clone(&last.value))
    }
}
