// SPDX-License-Identifier: Apache-2.0
//! The response to `POST /v1/advantages`.

use std::borrow::Cow;

use serde::Serialize;

use super::group_request::stored_reward;
use super::mean_entropy::MeanEntropy;
use super::returns::{TurnReturn, returns};
use super::teacher::log_ratios;
use super::{
    AdvantageEstimator, AdvantageOptions, EntropyScope, GroupId, GroupRequest, GroupStats, Request, RequestError,
    RewardSource, SampleRequest, ThinkStats,
};
use crate::export::repeated_paths;
use crate::session::{Path, Turn};

/// The advantages, and the parameters that they were computed with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdvantageResponse {
    /// The estimator.
    pub estimator: AdvantageEstimator,
    /// EGPO's weight of the entropy, per nat; `grpo` does not use it.
    pub lambda: f64,
    /// EGPO's bound of the entropy: at most `|A| / alpha`; `grpo` does not use it.
    pub alpha: f64,
    /// The tokens whose mean entropy is `H`.
    pub entropy_over: EntropyScope,
    /// Whether the advantages were divided by the standard deviation of their group.
    pub normalize_std: bool,
    /// The discount of the returns of turns; `None` if they were computed from the rewards of paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discount: Option<f64>,
    /// The groups, in the order of the request.
    pub groups: Vec<GroupResponse>,
}

/// The advantages of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupResponse {
    /// The id of the group, from the request.
    pub id: GroupId,
    /// The mean of the rewards, or of the returns of all trained turns, which was subtracted from each; 0 for a group of one. `None` for
    /// `distill`, as `std`.
    pub mean: Option<f64>,
    /// The unbiased standard deviation of the same numbers; 1 for a group of one.
    pub std: Option<f64>,
    /// The samples, in the order of the request.
    pub samples: Vec<SampleResponse>,
}

/// The advantage of a sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SampleResponse {
    /// The session.
    pub session: String,
    /// The last turn of the sample's path.
    pub leaf: u32,
    /// The reward of the path: that of the request, else the stored one. `None` if only its turns have rewards.
    pub reward: Option<f64>,
    /// The estimator's advantage; `None` if each turn has its own.
    pub advantage: Option<f64>,
    /// The advantage of GRPO, which is not shaped by entropy. It equals `advantage` if the estimator is `grpo`.
    pub grpo_advantage: Option<f64>,
    /// The trained turns of the path in order, if each has its own advantage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<Vec<TurnAdvantage>>,
    /// The mean reverse KL divergence from the teacher at the trained tokens, in nats; only for `distill`, and `None` without such a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverse_kl: Option<f64>,
    /// EGPO's `H`: the mean entropy in nats of the tokens that `entropy_over` names; `None` if none of them has a known entropy. It is also
    /// set for `grpo`.
    #[serde(rename = "H")]
    pub entropy: Option<f64>,
    /// Statistics of the thinking.
    pub think: ThinkStats,
    /// `H` lacks the unknown entropy of a token.
    pub incomplete: bool,
    /// The name of the estimator of the entropies; `mixed` if it differs between turns, `None` if it is unknown.
    pub entropy_estimator: Option<Cow<'static, str>>,
    /// An earlier sample of the group has the same first prompt and the same tokens.
    pub repeats_sample: bool,
    /// One number for each token of the path, prompts included: the advantage if the loss mask is 1, else 0.
    pub advantages: Vec<f64>,
}

/// The advantage of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TurnAdvantage {
    /// The turn.
    pub turn: u32,
    /// Its stored reward.
    pub reward: Option<f64>,
    /// Its discounted return.
    #[serde(rename = "return")]
    pub value: f64,
    /// The estimator's advantage.
    pub advantage: f64,
    /// The advantage of GRPO, which is not shaped by entropy.
    pub grpo_advantage: f64,
}

/// Computes the response to a request. `lookup` returns the path of a session that ends at the given leaf; without a leaf, the path with
/// the most sampled tokens. It is called once for each sample, in order, so it may mark a shared turn as trained in its first path only.
///
/// # Errors
///
/// The errors of [`Request::check`], those of `lookup`, and `missing_reward` or `invalid_reward` if neither the
/// request nor the path has a valid reward.
pub fn advantages(
    request: &Request,
    mut lookup: impl FnMut(&str, Option<u32>) -> Result<Path, RequestError>,
) -> Result<AdvantageResponse, RequestError> {
    request.check()?;
    let is_distilled = request.options.estimator == AdvantageEstimator::Distill;
    let mut groups = Vec::with_capacity(request.options.groups.len());
    for (at, GroupRequest { id, samples }) in request.options.groups.iter().enumerate() {
        let mut found = Vec::with_capacity(samples.len());
        for (place, sample) in samples.iter().enumerate() {
            let at = format!("groups[{at}].samples[{place}]");
            let path = lookup(&sample.session, sample.leaf).map_err(|error| error.below(&at))?;
            if is_distilled {
                let ratios = log_ratios_of(&path).map_err(|error| error.below(&at))?;
                found.push(Sample { reward: sample.reward, returns: None, ratios: Some(ratios), path });
                continue;
            }
            let reward = request.reward(sample, &path).map_err(|error| error.below(&at))?;
            let returns = match request.options.rewards {
                RewardSource::Path => None,
                RewardSource::Turns => {
                    let found = returns(&path, reward, request.options.discount);
                    Some(found.map_err(|error| error.below(&at))?)
                }
            };
            found.push(Sample { reward, returns, ratios: None, path });
        }
        let stats = GroupStats::new(&found.iter().flat_map(Sample::values).collect::<Vec<f64>>());
        let repeated = repeated_paths(found.iter().map(|sample| &sample.path));
        let sample = |(sample, repeats_sample): (&Sample, bool)| SampleResponse {
            repeats_sample,
            ..request.sample(sample, stats)
        };
        let samples = found.iter().zip(repeated).map(sample).collect();
        let [mean, std] = [stats.mean, stats.std].map(|number| (!is_distilled).then_some(number));
        groups.push(GroupResponse { id: id.clone(), mean, std, samples });
    }
    let AdvantageOptions { estimator, lambda, alpha, entropy_over, normalize_std, rewards, discount, .. } =
        request.options;
    let discount = (rewards == RewardSource::Turns).then_some(discount);
    Ok(AdvantageResponse { estimator, lambda, alpha, entropy_over, normalize_std, discount, groups })
}

/// A sample of a group.
struct Sample {
    reward: Option<f64>,
    /// The returns of its trained turns, the last first, if each turn gets an advantage.
    returns: Option<Vec<TurnReturn>>,
    /// The log ratios of its tokens, 0 where the mask is 0, if each token gets an advantage.
    ratios: Option<Vec<f64>>,
    path: Path,
}

impl Sample {
    /// The numbers that count in the statistics of the group.
    fn values(&self) -> impl Iterator<Item = f64> {
        let of_path = self.reward.filter(|_| self.returns.is_none());
        of_path.into_iter().chain(self.returns.iter().flatten().map(|turn| turn.value))
    }
}

impl Request {
    /// The reward of the request, else the stored one. A path whose turns are rewarded may have none.
    fn reward(&self, sample: &SampleRequest, path: &Path) -> Result<Option<f64>, RequestError> {
        let is_optional = self.options.rewards == RewardSource::Turns && path.reward.is_none();
        match sample.reward {
            None if is_optional => Ok(None),
            None => stored_reward(&path.session, path.leaf().id, path.reward.as_ref()).map(Some),
            given => Ok(given),
        }
    }

    fn sample(&self, Sample { reward, returns, ratios, path }: &Sample, stats: GroupStats) -> SampleResponse {
        let options = &self.options;
        let think = ThinkStats::new(path, options.think_tokens(), self.high_entropy_threshold);
        let entropy = MeanEntropy::new(path, &think, options);
        let grpo = |value| stats.advantage(value, options.normalize_std);
        let turn = |turn: &TurnReturn| TurnAdvantage {
            turn: turn.turn,
            reward: turn.reward,
            value: turn.value,
            advantage: options.advantage(grpo(turn.value), entropy.nats),
            grpo_advantage: grpo(turn.value),
        };
        let turns: Option<Vec<TurnAdvantage>> = returns.as_ref().map(|all| all.iter().rev().map(turn).collect());
        let grpo_advantage = reward.filter(|_| turns.is_none() && ratios.is_none()).map(grpo);
        let advantage = grpo_advantage.map(|grpo| options.advantage(grpo, entropy.nats));
        let trained = path.trained_tokens();
        let reverse_kl = ratios.as_ref().filter(|_| trained > 0);
        let reverse_kl = reverse_kl.map(|ratios| -ratios.iter().sum::<f64>() / trained as f64);
        let advantages = match (&turns, ratios) {
            (_, Some(ratios)) => ratios.clone(),
            (None, None) => broadcast(path, |_| advantage.unwrap_or(0.0)),
            (Some(turns), None) => broadcast(path, |turn| {
                let at = turns.partition_point(|other| other.turn < turn.id);
                turns[at].advantage
            }),
        };
        SampleResponse {
            session: path.session.to_string(),
            leaf: path.leaf().id,
            reward: *reward,
            advantage,
            grpo_advantage,
            turns,
            reverse_kl,
            entropy: entropy.nats,
            think,
            incomplete: entropy.incomplete,
            entropy_estimator: entropy_estimator(path),
            repeats_sample: path.marks.repeats_sample,
            advantages,
        }
    }
}

/// The log ratio of each token of a path, 0 where the mask is 0.
fn log_ratios_of(path: &Path) -> Result<Vec<f64>, RequestError> {
    let mut all = Vec::with_capacity(path.len());
    for step in &path.steps {
        all.resize(all.len() + step.turn.prompt.len(), 0.0);
        if step.trained {
            let ratios = log_ratios(&step.turn, step.scores.as_deref());
            all.extend(ratios.map_err(|problem| problem.of_turn(&path.session, step.turn.id))?);
        } else {
            all.resize(all.len() + step.turn.response.len(), 0.0);
        }
    }
    Ok(all)
}

/// One number for each token: the advantage of its turn if the loss mask is 1, else 0.
fn broadcast(path: &Path, advantage: impl Fn(&Turn) -> f64) -> Vec<f64> {
    let mut all = Vec::with_capacity(path.len());
    for segment in path.segments() {
        let value = if segment.trained { advantage(segment.turn) } else { 0.0 };
        all.resize(all.len() + segment.ids.len(), value);
    }
    all
}

/// The name of the estimator of the path's entropies; `mixed` if it differs between turns, `None` if it is unknown.
fn entropy_estimator(path: &Path) -> Option<Cow<'static, str>> {
    let measured = path.steps.iter().map(|step| &step.turn).filter(|turn| turn.entropy.iter().any(|h| h.is_finite()));
    let mut names = measured.map(|turn| turn.about.measured.as_ref().map(|measured| &measured.estimator));
    let first = names.next()?;
    if names.all(|name| name == first) { first.cloned() } else { Some(Cow::Borrowed("mixed")) }
}
