//! The response to `POST /v1/advantages`.

use std::borrow::Cow;

use serde::Serialize;

use super::{AdvantageEstimator, GroupId, GroupRequest, GroupStats, Request, RequestError, SampleRequest, ThinkStats};
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
    /// The reward, from the request.
    pub reward: f64,
    /// The estimator's advantage.
    pub advantage: f64,
    /// The advantage of GRPO, which is not shaped by entropy. It equals `advantage` if the estimator is `grpo`.
    pub grpo_advantage: f64,
    /// EGPO's `H`: the mean entropy of the thinking in nats; `None` if no token of the thinking has a known entropy. It is also set for
    /// `grpo`.
    #[serde(rename = "H")]
    pub entropy: Option<f64>,
    /// Statistics of the thinking.
    pub think: ThinkStats,
    /// `H` lacks the unknown entropy of a token; the same flag as in `think`.
    pub incomplete: bool,
    /// The name of the estimator of the entropies; `mixed` if it differs between turns, `None` if it is unknown.
    pub entropy_estimator: Option<Cow<'static, str>>,
    /// One number for each token of the path, prompts included: the advantage if the loss mask is 1, else 0.
    pub advantages: Vec<f64>,
}

/// Computes the response to a request. `lookup` returns the path of a session that ends at the given leaf; without a leaf, the path with
/// the most sampled tokens. It is called once for each sample, in order, so it may mark a shared turn as trained in its first path only.
///
/// # Errors
///
/// The errors of [`Request::check`], and `not_found` with the message of `lookup`.
pub fn advantages(
    request: &Request,
    mut lookup: impl FnMut(&str, Option<u32>) -> Result<Path, String>,
) -> Result<AdvantageResponse, RequestError> {
    request.check()?;
    let mut groups = Vec::with_capacity(request.groups.len());
    for (at, GroupRequest { id, samples }) in request.groups.iter().enumerate() {
        let rewards: Vec<f64> = samples.iter().map(|sample| sample.reward).collect();
        let stats = GroupStats::of(&rewards);
        let mut answers = Vec::with_capacity(samples.len());
        for (place, sample) in samples.iter().enumerate() {
            let path = lookup(&sample.session, sample.leaf)
                .map_err(|message| RequestError::new("not_found", format!("groups[{at}].samples[{place}]"), message))?;
            answers.push(request.sample(sample, stats, &path));
        }
        groups.push(GroupResponse { id: id.clone(), mean: stats.mean, std: stats.std, samples: answers });
    }
    let Request { estimator, lambda, alpha, normalize_std, .. } = *request;
    Ok(AdvantageResponse { estimator, lambda, alpha, normalize_std, groups })
}

impl Request {
    fn sample(&self, sample: &SampleRequest, stats: GroupStats, path: &Path) -> SampleResponse {
        let think = ThinkStats::of(path, self.think_tokens(), self.high_entropy_threshold);
        let grpo_advantage = stats.advantage(sample.reward, self.normalize_std);
        let advantage = match self.estimator {
            AdvantageEstimator::Grpo => grpo_advantage,
            AdvantageEstimator::Egpo => self.shaping().apply(grpo_advantage, think.mean),
        };
        SampleResponse {
            session: path.session.to_string(),
            leaf: path.leaf().id,
            reward: sample.reward,
            advantage,
            grpo_advantage,
            entropy: think.mean,
            think,
            incomplete: think.incomplete,
            entropy_estimator: entropy_estimator(path),
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
