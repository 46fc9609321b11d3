// SPDX-License-Identifier: Apache-2.0
//! How advantages are computed: the options that `POST /v1/advantages` and exports with advantages share.

use serde::{Deserialize, Serialize};

use super::group_request::{GroupRequest, RequestError, check_groups, is_float32};
use super::{RewardSource, Shaping};
use crate::session::ThinkTokens;

/// The groups, the estimator and its parameters.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdvantageOptions {
    /// The groups, each the samples of one prompt. Without groups the rows of an export with the same first prompt are one.
    #[serde(default)]
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
    /// The tokens whose mean entropy is EGPO's `H`.
    #[serde(default)]
    pub entropy_over: EntropyScope,
    /// Divide advantages by the standard deviation of the group; verl's `norm_adv_by_std_in_grpo`.
    #[serde(default = "normalize_std")]
    pub normalize_std: bool,
    /// The rewards from which advantages are computed.
    #[serde(default)]
    pub rewards: RewardSource,
    /// The factor by which a return counts the rewards of each later step; 0 to 1. Only with the rewards of turns.
    #[serde(default = "discount")]
    pub discount: f64,
    /// The teacher of `distill`.
    pub teacher: Option<String>,
    /// The id of `<think>`.
    pub think_start: Option<u32>,
    /// The id of `</think>`.
    pub think_end: Option<u32>,
}

/// How advantages are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimator {
    /// From the rewards of the group only.
    #[default]
    Grpo,
    /// The advantages of GRPO, shaped by the entropy of the sampled tokens.
    Egpo,
    /// The negative reverse KL divergence from a teacher at each sampled token. Rewards are not used.
    Distill,
}

/// The tokens whose mean entropy is EGPO's `H`. The request chooses; there is no fallback for a sample without thinking, because samples
/// of one group would have entropies of different kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntropyScope {
    /// Those between the think tokens.
    #[default]
    Thinking,
    /// All sampled tokens of the path.
    Response,
}

impl AdvantageOptions {
    /// Sets the think tokens that are not set, if the defaults are known.
    pub fn set_default_think_tokens(&mut self, think: Option<ThinkTokens>) {
        if let Some(think) = think {
            self.think_start.get_or_insert(think.start);
            self.think_end.get_or_insert(think.end);
        }
    }

    /// Checks the options.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for an invalid number, missing or equal think tokens, a group without samples, or two groups with the same id.
    pub fn check(&self) -> Result<(), RequestError> {
        let invalid = |at: &str, message: &str| Err(RequestError::invalid(at, message));
        if !is_float32(self.lambda) {
            return invalid("lambda", "not a finite float32");
        }
        if !is_float32(self.alpha) || self.alpha <= 0.0 {
            return invalid("alpha", "not a positive, finite float32");
        }
        if !(0.0..=1.0).contains(&self.discount) {
            return invalid("discount", "not a number from 0 to 1");
        }
        if self.discount < 1.0 && self.rewards == RewardSource::Path {
            return invalid(
                "discount",
                "a path has one reward, which is not discounted: send \"rewards\": \"turns\" with it",
            );
        }
        match (self.estimator, &self.teacher) {
            (AdvantageEstimator::Distill, None) => return invalid("teacher", "distill needs the name of a teacher"),
            (AdvantageEstimator::Grpo | AdvantageEstimator::Egpo, Some(_)) => {
                return invalid("teacher", "only distill uses a teacher");
            }
            (AdvantageEstimator::Distill, Some(_)) if self.rewards == RewardSource::Turns => {
                return invalid("rewards", "distill uses no rewards");
            }
            _ => {}
        }
        let known = self.think_start.is_some() && self.think_end.is_some();
        if !known && (self.think_start.is_some() || self.think_end.is_some()) {
            return invalid("think_start", "only one of think_start and think_end is known; send both");
        }
        if !known && self.estimator == AdvantageEstimator::Egpo && self.entropy_over == EntropyScope::Thinking {
            let message = "egpo needs the tokens around the thinking, and no tokenizer names them: send think_start and think_end, or \
                           \"entropy_over\": \"response\" for the entropy of all sampled tokens";
            return invalid("think_start", message);
        }
        if known && self.think_start == self.think_end {
            return invalid("think_end", "the same token as think_start, so no span could be closed");
        }
        check_groups(&self.groups)
    }

    /// The parameters of EGPO.
    #[must_use]
    pub fn shaping(&self) -> Shaping {
        Shaping { lambda: self.lambda, alpha: self.alpha }
    }

    /// The advantage of the estimator, from that of GRPO and EGPO's `H`.
    pub(super) fn advantage(&self, grpo: f64, entropy: Option<f64>) -> f64 {
        match self.estimator {
            AdvantageEstimator::Grpo | AdvantageEstimator::Distill => grpo,
            AdvantageEstimator::Egpo => self.shaping().apply(grpo, entropy),
        }
    }

    /// The think tokens; `None` if they are unknown.
    #[must_use]
    pub fn think_tokens(&self) -> Option<ThinkTokens> {
        Some(ThinkTokens { start: self.think_start?, end: self.think_end? })
    }
}

pub(super) fn lambda() -> f64 {
    0.4
}

pub(super) fn alpha() -> f64 {
    2.0
}

pub(super) fn discount() -> f64 {
    1.0
}

pub(super) fn normalize_std() -> bool {
    true
}
