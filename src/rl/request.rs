//! The request body of `POST /v1/advantages`.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{HIGH_ENTROPY, Shaping, ThinkTokens};

/// Rewards of groups of trajectories.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The groups, each the samples of one prompt.
    pub groups: Vec<GroupRequest>,
    /// The estimator.
    #[serde(default)]
    pub estimator: AdvantageEstimator,
    /// EGPO's weight of the entropy, per nat.
    #[serde(default = "lambda")]
    pub lambda: f64,
    /// EGPO's bound: the clipped entropy is at most `|A| / alpha`.
    #[serde(default = "alpha")]
    pub alpha: f64,
    /// Divide advantages by the standard deviation of the group; verl's `norm_adv_by_std_in_grpo`.
    #[serde(default = "normalize_std")]
    pub normalize_std: bool,
    /// The id of `<think>`.
    pub think_start: Option<u32>,
    /// The id of `</think>`.
    pub think_end: Option<u32>,
    /// The version of the sessions, as in `POST /v1/samples`.
    pub version: Option<u32>,
    /// The classes of turns that are trained, as in `POST /v1/samples`.
    #[serde(default)]
    pub classes: Vec<String>,
    /// The threshold of a token with high entropy, in nats.
    #[serde(default = "high_entropy")]
    pub high_entropy_threshold: f64,
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
    /// The reward of the whole trajectory.
    pub reward: f64,
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

/// How advantages are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimator {
    /// From the rewards of the group only.
    #[default]
    Grpo,
    /// The advantages of GRPO, shaped by the entropy of the thinking.
    Egpo,
}

/// The error of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}{}{message}", if at.is_empty() { "" } else { ": " })]
pub struct RequestError {
    /// The error code: `invalid_json`, `invalid_parameter`, `invalid_reward`, `empty_group`, `duplicate_group` or `not_found`.
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
        if let Some(think) = think {
            request.think_start.get_or_insert(think.start);
            request.think_end.get_or_insert(think.end);
        }
        request.check()?;
        Ok(request)
    }

    /// Checks everything that does not depend on the trajectories.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for an invalid number, missing or equal think tokens, a group without samples, or two groups with the same id.
    pub fn check(&self) -> Result<(), RequestError> {
        let invalid = |at: &str, message: &str| Err(RequestError::new("invalid_parameter", at, message));
        if !is_float32(self.lambda) {
            return invalid("lambda", "not a finite float32");
        }
        if !is_float32(self.alpha) || self.alpha <= 0.0 {
            return invalid("alpha", "not a positive, finite float32");
        }
        if !is_float32(self.high_entropy_threshold) {
            return invalid("high_entropy_threshold", "not a finite float32");
        }
        let known = self.think_start.is_some() && self.think_end.is_some();
        if !known && (self.think_start.is_some() || self.think_end.is_some()) {
            return invalid("think_start", "only one of think_start and think_end is known; send both");
        }
        if !known && self.estimator == AdvantageEstimator::Egpo {
            let message = "egpo needs the tokens around the thinking, and no tokenizer names them: send think_start and think_end";
            return invalid("think_start", message);
        }
        if known && self.think_start == self.think_end {
            return invalid("think_end", "the same token as think_start, so no span could be closed");
        }
        let mut seen = HashSet::new();
        for (at, group) in self.groups.iter().enumerate() {
            group.check(at)?;
            if !seen.insert(&group.id) {
                let message = "an earlier group has this id; samples of one group belong together";
                return Err(RequestError::new("duplicate_group", format!("groups[{at}].id"), message));
            }
        }
        Ok(())
    }

    /// The parameters of EGPO.
    #[must_use]
    pub fn shaping(&self) -> Shaping {
        Shaping { lambda: self.lambda, alpha: self.alpha }
    }

    /// The think tokens; `None` if they are unknown.
    #[must_use]
    pub fn think_tokens(&self) -> Option<ThinkTokens> {
        Some(ThinkTokens { start: self.think_start?, end: self.think_end? })
    }
}

impl GroupRequest {
    fn check(&self, at: usize) -> Result<(), RequestError> {
        if self.samples.is_empty() {
            return Err(RequestError::new("empty_group", format!("groups[{at}].samples"), "a group has no samples"));
        }
        let wrong = self.samples.iter().enumerate().find(|(_, sample)| !is_float32(sample.reward));
        wrong.map_or(Ok(()), |(sample, SampleRequest { reward, .. })| {
            let at = format!("groups[{at}].samples[{sample}].reward");
            Err(RequestError::new("invalid_reward", at, format!("{reward} is not a finite float32")))
        })
    }
}

/// Whether a number is finite as a float32. In the trainers' float32 a greater number is infinite. The limit also keeps squares finite.
fn is_float32(number: f64) -> bool {
    number.abs() <= f64::from(f32::MAX)
}

fn lambda() -> f64 {
    0.4
}

fn alpha() -> f64 {
    2.0
}

fn normalize_std() -> bool {
    true
}

fn high_entropy() -> f64 {
    HIGH_ENTROPY
}

#[cfg(test)]
mod tests {
    use super::super::tests::THINK;
    use super::*;

    fn refused(body: &str) -> String {
        let error = Request::parse(body.as_bytes(), Some(THINK)).unwrap_err();
        format!("{} {error}", error.code)
    }

    #[test]
    fn missing_members_have_the_default_values() {
        let body = br#"{"groups":[{"id":"a","samples":[{"session":"s","reward":1}]},{"id":7,"samples":[{"session":"t","leaf":3,"reward":-0.5}]}]}"#;
        let request = Request::parse(body, Some(THINK)).unwrap();
        assert_eq!(request.estimator, AdvantageEstimator::Grpo);
        assert_eq!(request.shaping(), Shaping { lambda: 0.4, alpha: 2.0 });
        assert_eq!(request.think_tokens(), Some(THINK));
        assert!(request.normalize_std);
        assert_eq!(request.high_entropy_threshold, 0.672);
        assert_eq!(request.groups[0].samples[0].leaf, None);
        assert_eq!((&request.groups[1].id, request.groups[1].samples[0].leaf), (&GroupId::Number(7), Some(3)));
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
        assert!(refused("{").starts_with("invalid_json EOF"));
    }

    #[test]
    fn egpo_without_think_tokens_is_refused() {
        let parsed = |body: &str| Request::parse(body.as_bytes(), None).map(|request| request.think_tokens());
        let error = parsed(r#"{"groups":[],"estimator":"egpo"}"#).unwrap_err();
        assert_eq!((error.code, &*error.at), ("invalid_parameter", "think_start"));
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
            request.groups[0].samples[0].reward = reward;
            let error = request.check().unwrap_err();
            assert_eq!((error.code, &*error.at), ("invalid_reward", "groups[0].samples[0].reward"));
        }
    }
}
