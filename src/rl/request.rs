// SPDX-License-Identifier: Apache-2.0
//! The request body of `POST /v1/advantages`.

use serde::Deserialize;

use super::group_request::{GroupRequest, RequestError, is_float32};
use super::options::{self, AdvantageEstimator, AdvantageOptions, EntropyScope};
use super::{HIGH_ENTROPY, RewardSource};
use crate::json::decode;
use crate::session::ThinkTokens;

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
    #[serde(default)]
    rewards: RewardSource,
    #[serde(default = "options::discount")]
    discount: f64,
    teacher: Option<String>,
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
            rewards,
            discount,
            teacher,
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
                rewards,
                discount,
                teacher,
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

impl Request {
    /// Parses and checks a body. `think` are the default think tokens, if known.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the body cannot be parsed, or if [`check`](Self::check) fails.
    pub fn parse(body: &[u8], think: Option<ThinkTokens>) -> Result<Self, RequestError> {
        let mut request: Self = decode(body)?;
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
        if !is_float32(self.high_entropy_threshold) || self.high_entropy_threshold < 0.0 {
            return Err(RequestError::invalid("high_entropy_threshold", "not a finite float32 from 0"));
        }
        Ok(())
    }
}

fn high_entropy() -> f64 {
    HIGH_ENTROPY
}

#[cfg(test)]
mod tests {
    use super::super::GroupId;
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
        assert_eq!(
            refused(r#"{"groups":[],"rewards":"turns","discount":1.5}"#),
            "invalid_parameter discount: not a number from 0 to 1"
        );
        assert!(refused(r#"{"groups":[],"estimator":"distill"}"#).starts_with("invalid_parameter teacher: "));
        assert!(refused(r#"{"groups":[],"teacher":"t"}"#).contains("only distill"));
        assert!(
            refused(r#"{"groups":[],"estimator":"distill","teacher":"t","rewards":"turns"}"#).contains("no rewards")
        );
        assert!(refused(r#"{"groups":[],"discount":0.5}"#).contains("\"rewards\": \"turns\""));
        assert_eq!(refused(r#"{"groups":[],"lambda":1e40}"#), "invalid_parameter lambda: not a finite float32");
        let threshold = r#"{"groups":[],"high_entropy_threshold":-1}"#;
        assert_eq!(refused(threshold), "invalid_parameter high_entropy_threshold: not a finite float32 from 0");
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
        assert!(refused("{").starts_with("bad_request the body: EOF"));
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
