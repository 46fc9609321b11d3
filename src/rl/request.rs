//! The request body of `POST /v1/advantages`.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::options::{self, AdvantageEstimator, AdvantageOptions, EntropyScope};
use super::{HIGH_ENTROPY, ThinkTokens};
use crate::export::reward_number;

/// Rewards of groups of trajectories.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "RequestMembers")]
pub struct Request {
    /// The groups, and how their advantages are computed.
    pub options: AdvantageOptions,
    /// The version of the sessions, as in `POST /v1/samples`.
    pub version: Option<u32>,
    /// The classes of turns that are trained, as in `POST /v1/samples`.
    pub classes: Vec<String>,
    /// Whether turns that were cut off and resumed are trained, as in `POST /v1/samples`.
    pub train_resumed: bool,
    /// The threshold of a token with high entropy, in nats.
    pub high_entropy_threshold: f64,
}

/// The members of the body. `serde(flatten)` would keep the values of unknown members in memory, at many times their size.
#[derive(Deserialize)]
#[serde(rename = "Request", deny_unknown_fields)]
struct RequestMembers {
    groups: Vec<GroupRequest>,
    #[serde(default)]
    estimator: AdvantageEstimator,
    #[serde(default = "options::lambda")]
    lambda: f64,
    #[serde(default = "options::alpha")]
    alpha: f64,
    #[serde(default)]
    entropy_over: EntropyScope,
    #[serde(default = "options::normalize_std")]
    normalize_std: bool,
    think_start: Option<u32>,
    think_end: Option<u32>,
    version: Option<u32>,
    #[serde(default)]
    classes: Vec<String>,
    #[serde(default)]
    train_resumed: bool,
    #[serde(default = "high_entropy")]
    high_entropy_threshold: f64,
}

impl From<RequestMembers> for Request {
    fn from(members: RequestMembers) -> Self {
        let RequestMembers {
            groups,
            estimator,
            lambda,
            alpha,
            entropy_over,
            normalize_std,
            think_start,
            think_end,
            ..
        } = members;
        Self {
            options: AdvantageOptions {
                groups,
                estimator,
                lambda,
                alpha,
                entropy_over,
                normalize_std,
                think_start,
                think_end,
            },
            version: members.version,
            classes: members.classes,
            train_resumed: members.train_resumed,
            high_entropy_threshold: members.high_entropy_threshold,
        }
    }
}

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
    /// The error code: `invalid_json`, `invalid_parameter`, `invalid_reward`, `missing_reward`, `empty_group`, `duplicate_group` or
    /// `not_found`.
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

impl Request {
    /// Parses and checks a body. `think` are the default think tokens, if known.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the body cannot be parsed, or if [`check`](Self::check) fails.
    pub fn parse(body: &[u8], think: Option<ThinkTokens>) -> Result<Self, RequestError> {
        let mut request: Self =
            serde_json::from_slice(body).map_err(|error| RequestError::new("invalid_json", "", error.to_string()))?;
        request.options.set_default_think_tokens(think);
        request.check()?;
        Ok(request)
    }

    /// Checks everything that does not depend on the trajectories.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for invalid options, groups or numbers.
    pub fn check(&self) -> Result<(), RequestError> {
        self.options.check()?;
        if !is_float32(self.high_entropy_threshold) {
            return Err(RequestError::invalid("high_entropy_threshold", "not a finite float32"));
        }
        Ok(())
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
    if stored.is_none() {
        let message = format!(
            "none is given, and none is stored for turn {leaf} of session {session:?}: see POST /v1/sessions/{{id}}/reward"
        );
        return Err(RequestError::new("missing_reward", "reward", message));
    }
    let reward = reward_number(stored).ok_or_else(|| {
        let message = format!(
            "the stored reward of turn {leaf} of session {session:?} is neither a number nor an object with a number `reward` or `score`"
        );
        RequestError::new("invalid_reward", "reward", message)
    })?;
    check_reward(reward).map(|()| reward)
}

/// Checks the number of a reward.
fn check_reward(reward: f64) -> Result<(), RequestError> {
    let invalid = || RequestError::new("invalid_reward", "reward", format!("{reward} is not a finite float32"));
    if is_float32(reward) { Ok(()) } else { Err(invalid()) }
}

/// Whether a number is finite as a float32. In the trainers' float32 a greater number is infinite. The limit also keeps squares finite.
pub(super) fn is_float32(number: f64) -> bool {
    number.abs() <= f64::from(f32::MAX)
}

fn high_entropy() -> f64 {
    HIGH_ENTROPY
}

#[cfg(test)]
mod tests {
    use super::super::Shaping;
    use super::super::tests::THINK;
    use super::*;

    fn refused(body: &str) -> String {
        let error = Request::parse(body.as_bytes(), Some(THINK)).unwrap_err();
        format!("{} {error}", error.code)
    }

    #[test]
    fn missing_members_have_the_default_values() {
        let body = br#"{"groups":[{"id":"a","samples":[{"session":"s","reward":1}]},{"id":7,"samples":[{"session":"t","leaf":3}]}]}"#;
        let request = Request::parse(body, Some(THINK)).unwrap();
        let options = &request.options;
        assert_eq!((options.estimator, options.entropy_over), (AdvantageEstimator::Grpo, EntropyScope::Thinking));
        assert_eq!(options.shaping(), Shaping { lambda: 0.4, alpha: 2.0 });
        assert_eq!(options.think_tokens(), Some(THINK));
        assert!(options.normalize_std);
        assert_eq!(request.high_entropy_threshold, 0.672);
        assert_eq!(
            (request.options.groups[0].samples[0].leaf, request.options.groups[0].samples[0].reward),
            (None, Some(1.0))
        );
        assert_eq!(request.options.groups[1].samples[0].reward, None);
        assert_eq!(
            (&request.options.groups[1].id, request.options.groups[1].samples[0].leaf),
            (&GroupId::Number(7), Some(3))
        );
    }

    #[test]
    fn error_has_the_code_and_the_path_of_the_member() {
        let sample = r#"{"session":"s","reward":1}"#;
        assert_eq!(refused(r#"{"groups":[],"alpha":0}"#), "invalid_parameter alpha: not a positive, finite float32");
        assert_eq!(refused(r#"{"groups":[],"lambda":1e40}"#), "invalid_parameter lambda: not a finite float32");
        assert!(
            refused(&format!(r#"{{"groups":[],"think_end":{}}}"#, THINK.start))
                .starts_with("invalid_parameter think_end: ")
        );
        assert_eq!(
            refused(r#"{"groups":[{"id":"a","samples":[]}]}"#),
            "empty_group groups[0].samples: a group has no samples"
        );
        assert_eq!(
            refused(&format!(r#"{{"groups":[{{"id":1,"samples":[{sample},{{"session":"s","reward":1e39}}]}}]}}"#)),
            "invalid_reward groups[0].samples[1].reward: 1000000000000000000000000000000000000000 is not a finite float32"
        );
        let twice = format!(r#"{{"id":"a","samples":[{sample}]}}"#);
        assert!(refused(&format!(r#"{{"groups":[{twice},{twice}]}}"#)).starts_with("duplicate_group groups[1].id: "));
        assert!(refused(r#"{"groups":[],"lamda":1}"#).contains("unknown field `lamda`"));
        assert!(refused(r#"{"groups":[{"id":1.5,"samples":[]}]}"#).contains("a string or an integer"));
        assert!(refused(r#"{"groups":[],"estimator":"ppo"}"#).contains("ppo"));
        assert!(refused(r#"{"groups":[],"entropy_over":"all"}"#).contains("`thinking` or `response`"));
        assert!(refused("{").starts_with("invalid_json EOF"));
    }

    #[test]
    fn egpo_without_think_tokens_is_refused() {
        let parsed = |body: &str| Request::parse(body.as_bytes(), None).map(|request| request.options.think_tokens());
        let error = parsed(r#"{"groups":[],"estimator":"egpo"}"#).unwrap_err();
        assert_eq!((error.code, &*error.at), ("invalid_parameter", "think_start"));
        assert!(error.message.contains("entropy_over"), "{error}");
        assert_eq!(parsed(r#"{"groups":[],"estimator":"egpo","entropy_over":"response"}"#).unwrap(), None);
        assert_eq!(parsed(r#"{"groups":[],"estimator":"grpo"}"#).unwrap(), None);
        let given = parsed(r#"{"groups":[],"estimator":"egpo","think_start":5,"think_end":6}"#).unwrap();
        assert_eq!(given, Some(ThinkTokens { start: 5, end: 6 }));
        assert_eq!(&*parsed(r#"{"groups":[],"think_start":5}"#).unwrap_err().at, "think_start");
    }

    #[test]
    fn infinite_and_nan_rewards_are_refused() {
        for reward in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut request =
                Request::parse(br#"{"groups":[{"id":1,"samples":[{"session":"s","reward":1}]}]}"#, Some(THINK))
                    .unwrap();
            request.options.groups[0].samples[0].reward = Some(reward);
            let error = request.check().unwrap_err();
            assert_eq!((error.code, &*error.at), ("invalid_reward", "groups[0].samples[0].reward"));
        }
    }
}
