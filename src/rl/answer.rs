//! The answer of `POST /v1/advantages`.

use std::borrow::Cow;

use serde::Serialize;

use super::{AdvantageEstimator, GroupId, GroupRequest, GroupStats, Request, RequestError, SampleRequest, Think};
use crate::session::Path;

/// What was computed, and with which parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// How.
    pub estimator: AdvantageEstimator,
    /// EGPO's weight; `grpo` does not use it.
    pub lambda: f64,
    /// EGPO's bound; `grpo` does not use it.
    pub alpha: f64,
    /// Divided by the standard deviation.
    pub normalize_std: bool,
    /// In the order of the request.
    pub groups: Vec<GroupAnswer>,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupAnswer {
    /// Its name.
    pub id: GroupId,
    /// What was subtracted from each reward; 0 for a group of one.
    pub mean: f64,
    /// The unbiased standard deviation of the rewards; 1 for a group of one.
    pub std: f64,
    /// In the order of the request.
    pub samples: Vec<SampleAnswer>,
}

/// A sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SampleAnswer {
    /// The session.
    pub session: String,
    /// The last turn of the path that was taken.
    pub leaf: u32,
    /// As in the request.
    pub reward: f64,
    /// The estimator's advantage.
    pub advantage: f64,
    /// GRPO's advantage, before entropy shaped it; the same number for `grpo`.
    pub grpo_advantage: f64,
    /// EGPO's `H`: the mean entropy of the thinking, nats; `None` without any. Told for `grpo` too.
    #[serde(rename = "H")]
    pub entropy: Option<f64>,
    /// More about the thinking.
    pub think: Think,
    /// An entropy that `H` should hold is not known; the same flag as in `think`.
    pub incomplete: bool,
    /// The estimator of the entropies: its name, `mixed` if turns differ, `None` if unknown.
    pub entropy_estimator: Option<Cow<'static, str>>,
    /// One number a token of the path, prompts too: the advantage where the loss mask is 1, else 0.
    pub advantages: Vec<f64>,
}

/// Answers a request. `lookup` finds the path of a session and, where one is named, a leaf; else of the leaf whose path has the most
/// sampled tokens. It is called once a sample, in order, so it may give shared turns to the first row only.
///
/// # Errors
///
/// Those of [`Request::check`], and `not_found` with the reason of `lookup`.
pub fn advantages(
    request: &Request,
    mut lookup: impl FnMut(&str, Option<u32>) -> Result<Path, String>,
) -> Result<Answer, RequestError> {
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
        groups.push(GroupAnswer { id: id.clone(), mean: stats.mean, std: stats.std, samples: answers });
    }
    let Request { estimator, lambda, alpha, normalize_std, .. } = *request;
    Ok(Answer { estimator, lambda, alpha, normalize_std, groups })
}

impl Request {
    fn sample(&self, sample: &SampleRequest, stats: GroupStats, path: &Path) -> SampleAnswer {
        let think = Think::of(path, self.think_tokens(), self.high_entropy_threshold);
        let grpo_advantage = stats.advantage(sample.reward, self.normalize_std);
        let advantage = match self.estimator {
            AdvantageEstimator::Grpo => grpo_advantage,
            AdvantageEstimator::Egpo => self.shaping().apply(grpo_advantage, think.mean),
        };
        SampleAnswer {
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

/// The advantage at each token of loss mask 1.
fn broadcast(path: &Path, advantage: f64) -> Vec<f64> {
    let mut all = Vec::with_capacity(path.len());
    for segment in path.segments() {
        all.resize(all.len() + segment.ids.len(), if segment.trained { advantage } else { 0.0 });
    }
    all
}

/// The name of the estimator behind the path's entropies.
fn entropy_estimator(path: &Path) -> Option<Cow<'static, str>> {
    let measured = path.steps.iter().map(|step| &step.turn).filter(|turn| turn.entropy.iter().any(|h| h.is_finite()));
    let mut names = measured.map(|turn| turn.about.measured.as_ref().map(|measured| &measured.estimator));
    let first = names.next()?;
    if names.all(|name| name == first) { first.cloned() } else { Some(Cow::Borrowed("mixed")) }
}
