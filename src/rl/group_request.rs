// SPDX-License-Identifier: Apache-2.0
//! Requested groups of trajectories, their rewards, and the error of a request.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::export::reward_number;
use crate::json::DecodeError;
use crate::session;

/// The samples of one prompt.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRequest {
    /// The id of the group, which the response repeats; verl's `uid`.
    pub id: GroupId,
    /// The samples; at least one.
    pub samples: Vec<SampleRequest>,
}

/// One trajectory and its reward.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleRequest {
    /// The session.
    pub session: String,
    /// The last turn of the path; without it, the path with the most sampled tokens is used.
    #[serde(default)]
    pub leaf: Option<u32>,
    /// The reward of the whole trajectory; without it, the stored reward of the path.
    #[serde(default)]
    pub reward: Option<f64>,
}

/// The id of a group. Some trainers use numbers, others UUIDs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged, expecting = "the id of a group is a string or an integer")]
pub enum GroupId {
    /// A number, such as `7`.
    Number(i64),
    /// A string, such as `"7f0c"`. `"7"` and `7` are different groups.
    Text(String),
}

/// The error of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}{}{message}", if at.is_empty() { "" } else { ": " })]
pub struct RequestError {
    /// The error code: `bad_request`, `invalid_parameter`, `invalid_reward`, `missing_reward`, `missing_scores`,
    /// `incomparable_turn`, `empty_group`, `duplicate_group` or `not_found`.
    pub code: &'static str,
    /// The path of the invalid member, such as `groups[1].samples[0].reward`; empty for the whole body.
    pub at: String,
    /// The error message.
    pub message: String,
}

impl RequestError {
    /// An error of the member with the path `at`.
    #[must_use]
    pub fn new(code: &'static str, at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code, at: at.into(), message: message.into() }
    }

    pub(super) fn invalid(at: &str, message: &str) -> Self {
        Self::new("invalid_parameter", at, message)
    }

    /// The same error of a member of the member with the path `at`.
    #[must_use]
    pub fn below(self, at: &str) -> Self {
        let at = if self.at.is_empty() { at.to_owned() } else { format!("{at}.{}", self.at) };
        Self { at, ..self }
    }
}

impl From<DecodeError> for RequestError {
    fn from(DecodeError { at, message }: DecodeError) -> Self {
        Self::new("bad_request", if at.is_empty() { "the body".to_owned() } else { at }, message)
    }
}

/// Checks the groups.
///
/// # Errors
/// [`RequestError`] for an invalid reward, a group without samples, or two groups with the same id.
pub(super) fn check_groups(groups: &[GroupRequest]) -> Result<(), RequestError> {
    let mut seen = HashSet::new();
    for (at, group) in groups.iter().enumerate() {
        group.check(at)?;
        if !seen.insert(&group.id) {
            let message = "an earlier group has this id; samples of one group belong together";
            return Err(RequestError::new("duplicate_group", format!("groups[{at}].id"), message));
        }
    }
    Ok(())
}

impl GroupRequest {
    fn check(&self, at: usize) -> Result<(), RequestError> {
        if self.samples.is_empty() {
            return Err(RequestError::new("empty_group", format!("groups[{at}].samples"), "a group has no samples"));
        }
        let mut rewards = self.samples.iter().enumerate().filter_map(|(place, sample)| Some((place, sample.reward?)));
        rewards.try_for_each(|(place, reward)| {
            check_reward(reward).map_err(|error| error.below(&format!("groups[{at}].samples[{place}]")))
        })
    }
}

/// The stored reward of a path, as a number.
///
/// # Errors
/// `missing_reward` or `invalid_reward`.
pub(super) fn stored_reward(session: &str, leaf: u32, stored: Option<&Arc<Value>>) -> Result<f64, RequestError> {
    let missing = || {
        let message = format!(
            "none is given, and none is stored for turn {leaf} of session {session:?}: see POST /v1/sessions/{{id}}/reward"
        );
        RequestError::new("missing_reward", "reward", message)
    };
    let stored = stored.ok_or_else(missing)?;
    let reward = reward_of(stored, || format!("of turn {leaf} of session {session:?}"))?;
    check_reward(reward).map(|()| reward)
}

/// Checks a reward before it is stored, because that of a frozen session can no longer be corrected.
///
/// # Errors
/// `bad_request`, unless it is a number, or an object with a number `reward` or `score`, in the range of a float32.
pub fn check_storable(reward: &Value) -> Result<(), RequestError> {
    if session::reward_number(reward).is_some_and(is_float32) {
        return Ok(());
    }
    let message = format!("must be a finite float32, or an object with one as `reward` or `score`, not {reward}");
    Err(RequestError::new("bad_request", "reward", message))
}

/// The number of a stored reward. `owner` is what it is for, for the error message.
///
/// # Errors
/// `invalid_reward` if it has none.
pub(super) fn reward_of(stored: &Arc<Value>, owner: impl FnOnce() -> String) -> Result<f64, RequestError> {
    reward_number(Some(stored)).ok_or_else(|| {
        let message = format!(
            "the stored reward {} is neither a number nor an object with a number `reward` or `score`: set it again, or, if the \
             session is frozen, send a number as groups[].samples[].reward",
            owner()
        );
        RequestError::new("invalid_reward", "reward", message)
    })
}

/// Checks the number of a reward.
pub(super) fn check_reward(reward: f64) -> Result<(), RequestError> {
    let invalid = || RequestError::new("invalid_reward", "reward", format!("{reward} is not a finite float32"));
    if is_float32(reward) { Ok(()) } else { Err(invalid()) }
}

/// Whether a number is finite as a float32. In the trainers' float32 a greater number is infinite. The limit also keeps squares finite.
pub(super) fn is_float32(number: f64) -> bool {
    number.abs() <= f64::from(f32::MAX)
}
