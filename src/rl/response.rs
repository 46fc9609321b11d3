//! The response to `POST /v1/advantages`.

use std::borrow::Cow;

use serde::Serialize;

use super::group_request::stored_reward;
use super::mean_entropy::MeanEntropy;
use super::{
    AdvantageEstimator, AdvantageOptions, EntropyScope, GroupId, GroupRequest, GroupStats, Request, RequestError,
    ThinkStats,
};
use crate::export::repeated_paths;
use crate::session::Path;

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
    /// The groups, in the order of the request.
    pub groups: Vec<GroupResponse>,
}

/// The advantages of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupResponse {
    /// The id of the group, from the request.
    pub id: GroupId,
    /// The mean reward, which was subtracted from each reward; 0 for a group of one.
    pub mean: f64,
    /// The unbiased standard deviation of the rewards; 1 for a group of one.
    pub std: f64,
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
    /// The reward: that of the request, else the stored one.
    pub reward: f64,
    /// The estimator's advantage.
    pub advantage: f64,
    /// The advantage of GRPO, which is not shaped by entropy. It equals `advantage` if the estimator is `grpo`.
    pub grpo_advantage: f64,
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

/// Computes the response to a request. `lookup` returns the path of a session that ends at the given leaf; without a leaf, the path with
/// the most sampled tokens. It is called once for each sample, in order, so it may mark a shared turn as trained in its first path only.
///
/// # Errors
///
/// The errors of [`Request::check`], `not_found` with the message of `lookup`, and `missing_reward` or `invalid_reward` if neither the
/// request nor the path has a valid reward.
pub fn advantages(
    request: &Request,
    mut lookup: impl FnMut(&str, Option<u32>) -> Result<Path, String>,
) -> Result<AdvantageResponse, RequestError> {
    request.check()?;
    let mut groups = Vec::with_capacity(request.options.groups.len());
    for (at, GroupRequest { id, samples }) in request.options.groups.iter().enumerate() {
        let mut found = Vec::with_capacity(samples.len());
        for (place, sample) in samples.iter().enumerate() {
            let at = format!("groups[{at}].samples[{place}]");
            let path = lookup(&sample.session, sample.leaf)
                .map_err(|message| RequestError::new("not_found", at.clone(), message))?;
            let stored =
                || stored_reward(&path.session, path.leaf().id, path.reward.as_ref()).map_err(|error| error.below(&at));
            let reward = sample.reward.map_or_else(stored, Ok)?;
            found.push((reward, path));
        }
        let rewards: Vec<f64> = found.iter().map(|(reward, _)| *reward).collect();
        let stats = GroupStats::new(&rewards);
        let repeated = repeated_paths(found.iter().map(|(_, path)| path));
        let sample = |((reward, path), repeats_sample): (&(f64, Path), bool)| SampleResponse {
            repeats_sample,
            ..request.sample(*reward, stats, path)
        };
        let samples = found.iter().zip(repeated).map(sample).collect();
        groups.push(GroupResponse { id: id.clone(), mean: stats.mean, std: stats.std, samples });
    }
    let AdvantageOptions { estimator, lambda, alpha, entropy_over, normalize_std, .. } = request.options;
    Ok(AdvantageResponse { estimator, lambda, alpha, entropy_over, normalize_std, groups })
}

impl Request {
    fn sample(&self, reward: f64, stats: GroupStats, path: &Path) -> SampleResponse {
        let options = &self.options;
        let think = ThinkStats::new(path, options.think_tokens(), self.high_entropy_threshold);
        let entropy = MeanEntropy::new(path, &think, options);
        let grpo_advantage = stats.advantage(reward, options.normalize_std);
        let advantage = options.advantage(grpo_advantage, entropy.nats);
        SampleResponse {
            session: path.session.to_string(),
            leaf: path.leaf().id,
            reward,
            advantage,
            grpo_advantage,
            entropy: entropy.nats,
            think,
            incomplete: entropy.incomplete,
            entropy_estimator: entropy_estimator(path),
            repeats_sample: path.marks.repeats_sample,
            advantages: broadcast(path, advantage),
        }
    }
}

/// One number for each token: the advantage if the loss mask is 1, else 0.
fn broadcast(path: &Path, advantage: f64) -> Vec<f64> {
    let mut all = Vec::with_capacity(path.len());
    for segment in path.segments() {
        all.resize(all.len() + segment.ids.len(), if segment.trained { advantage } else { 0.0 });
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
