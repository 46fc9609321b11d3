// SPDX-License-Identifier: Apache-2.0
//! Rewards: what they are for, and the version that they belong to.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a reward is for. `T` names a turn: its number, or its uid where numbers may change.
///
/// Records hold it. The encoding of the first two is that of an optional leaf.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RewardScope<T = u32> {
    /// Every path of the session that has no reward.
    #[default]
    Session,
    /// The path that ends in this turn.
    Leaf(T),
    /// This turn, on every path that holds it: the reward of one step.
    Turn(T),
}

/// The reward of a session, of a path or of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Reward {
    /// The version that was open then.
    pub version: u32,
    /// What it is for.
    pub scope: RewardScope,
    /// A number or an object.
    pub value: Arc<Value>,
}

/// A reward as one number: the value itself, or the `reward` or `score` of an object.
pub(crate) fn reward_number(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| ["reward", "score"].iter().find_map(|name| value.get(name)?.as_f64()));
    number.filter(|number| number.is_finite())
}

/// Rewards of samples that are compared with each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RewardSamples {
    /// Their number.
    pub count: u32,
    /// Their sum.
    pub sum: f64,
    /// The smallest one.
    pub least: f64,
    /// The greatest one.
    pub greatest: f64,
}

impl RewardSamples {
    /// One reward.
    pub(super) fn of(reward: f64) -> Self {
        Self { count: 1, sum: reward, least: reward, greatest: reward }
    }

    /// These and others.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            sum: self.sum + other.sum,
            least: self.least.min(other.least),
            greatest: self.greatest.max(other.greatest),
        }
    }

    /// Their mean.
    #[must_use]
    pub fn mean(self) -> f64 {
        self.sum / f64::from(self.count)
    }

    /// Whether at least two of them differ.
    #[must_use]
    pub fn differ(self) -> bool {
        self.least < self.greatest
    }
}

/// The target of a reward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RewardTarget {
    /// What it is for.
    pub scope: RewardScope,
    /// The generation of the numbers of turns that `scope` belongs to, if the caller knows it.
    pub generation: Option<u32>,
}

impl<T> RewardScope<T> {
    /// The turn that it names.
    pub fn turn(self) -> Option<T> {
        match self {
            Self::Session => None,
            Self::Leaf(turn) | Self::Turn(turn) => Some(turn),
        }
    }

    /// The same scope with another name of the turn; `None` if the turn has none.
    pub(super) fn rename<U>(self, name: impl FnOnce(T) -> Option<U>) -> Option<RewardScope<U>> {
        Some(match self {
            Self::Session => RewardScope::Session,
            Self::Leaf(turn) => RewardScope::Leaf(name(turn)?),
            Self::Turn(turn) => RewardScope::Turn(name(turn)?),
        })
    }
}

impl Reward {
    /// The bytes that it takes: the length of its JSON text.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Self>() + 2 * self.value.to_string().len()) as u64
    }
}
