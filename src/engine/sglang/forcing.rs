//! Decides what is forced on a request and when nothing is forced.

mod exact;
mod size;

pub(crate) use exact::{ExactSource, FailuresSinceProbe};
pub(crate) use size::affordable_k;

use crate::config::{EntropyConfig, EntropyDefault};
use crate::engine::capabilities::{Capabilities, Plugin, StreamLogprobs, Streaming};
use crate::engine::entropy_request::EntropyRequest;
use crate::engine::reason::Reason;
use crate::engine::sglang::request::{GenerateRequest, PerItem};
use crate::entropy::Estimator;

/// Prefill/decode disaggregation transfers at most this many top logprobs.
const DISAGGREGATED_TOP_K: u32 = 128;
/// What the client requested for one prompt, and what is requested upstream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemPlan {
    /// The client requested logprobs.
    pub asked: bool,
    /// The client's own k; 0 without logprobs.
    pub asked_k: u32,
    /// Whether logprobs are requested upstream.
    pub logprob: bool,
    /// k upstream.
    pub k: u32,
    /// The source of exact entropies, if the engine reports them.
    pub exact: Option<ExactSource>,
    /// The client requested the plugin's values, so they stay in the reply.
    pub own_plugin: bool,
    /// The client requested sampling masks.
    pub own_support: bool,
    /// The temperature of the logprobs, or why it is unknown.
    pub temperature: Result<f64, Reason>,
    /// Temperature 1 is sent instead: sampling is greedy at any temperature.
    pub at_one: bool,
    /// The client requested only the chosen logprobs. sglang-jax then sends no placeholder for the prompt, but with a k it does.
    pub placeholder: bool,
    /// Why there is no top-k although entropy was requested.
    pub reason: Option<Reason>,
    /// The desired k, if a smaller one is requested so that the reply fits its limit.
    pub lowered_from: Option<u32>,
}

/// The inputs of the decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForcingFacts<'a> {
    /// The request.
    pub request: &'a GenerateRequest,
    /// What the client wants.
    pub entropy_request: EntropyRequest,
    /// What the probe found.
    pub upstream: &'a Capabilities,
    /// The settings.
    pub config: &'a EntropyConfig,
    /// The flat base64 form is requested instead of the nested one: the engine supports it (not for streams), and the client requested no
    /// top-k lists.
    pub flat: bool,
    /// `--max-reply-bytes`: the largest reply that is parsed, in bytes.
    pub max_reply_bytes: u64,
    /// The engine refused this shape since the last probe.
    refused_before: bool,
    /// The plugin may be used: the engine has it, and it has not failed since the last probe.
    plugin: bool,
    /// The client requested logprobs for some items only.
    mixed: bool,
}

impl<'a> ForcingFacts<'a> {
    /// Collects the inputs. `max_reply_bytes` is `--max-reply-bytes`; `since` holds the failures since the last probe.
    #[must_use]
    pub(crate) fn new(
        request: &'a GenerateRequest,
        entropy_request: EntropyRequest,
        upstream: &'a Capabilities,
        (config, max_reply_bytes): (&'a EntropyConfig, u64),
        since: FailuresSinceProbe,
    ) -> Self {
        let plugin = upstream.plugin == Plugin::Exact && !since.plugin_failed;
        let refused_before = since.refused;
        let mut facts = Self {
            request,
            entropy_request,
            upstream,
            config,
            max_reply_bytes,
            refused_before,
            plugin,
            flat: false,
            mixed: false,
        };
        let asked = (0..facts.prompts()).filter(|at| facts.asked(*at)).count();
        let lists = (0..facts.prompts()).any(|at| facts.asked_k(at) > 0);
        facts.mixed = asked > 0 && asked < facts.prompts();
        facts.flat =
            upstream.flat && request.stream == Some(false) && !lists && !(asked > 0 && request.flat.contains(&true));
        facts
    }

    /// The number of prompts.
    #[must_use]
    pub(crate) fn prompts(&self) -> usize {
        self.request.batch().unwrap_or(1)
    }

    /// The plan for each prompt.
    #[must_use]
    pub(crate) fn items(&self) -> Vec<ItemPlan> {
        let whole = self.whole_request();
        let budget = self.within_budget();
        let mut items: Vec<ItemPlan> = (0..self.prompts()).map(|at| self.item(at, whole, budget)).collect();
        exact::unify_support(&mut items);
        items
    }

    fn asked(&self, at: usize) -> bool {
        self.request.return_logprob.get(at) == Some(&true)
    }

    fn asked_k(&self, at: usize) -> u32 {
        let k = self.request.top_logprobs_num.get(at).copied().unwrap_or(0);
        if self.asked(at) { u32::try_from(k.max(0)).unwrap_or(u32::MAX) } else { 0 }
    }

    /// The desired k: the requested one, limited by every cap.
    fn wanted_k(&self) -> u32 {
        let mut k = self.entropy_request.top_k.min(self.config.max_top_logprobs);
        if self.upstream.disaggregated {
            k = k.min(DISAGGREGATED_TOP_K);
        }
        k.min(self.upstream.vocab_size.unwrap_or(u32::MAX))
    }

    /// A reason that applies to the whole request. The flag says whether the chosen logprob is requested nevertheless.
    fn whole_request(&self) -> Option<(Reason, bool)> {
        let request = self.request;
        let samplings = || (0..self.prompts()).filter_map(|at| request.sampling.get(at));
        let stream = request.stream == Some(true);
        if !request.is_readable() || !self.lists_fit() {
            return Some((Reason::Request, false));
        }
        if self.refused_before {
            return Some((Reason::RefusedBefore, false));
        }
        if samplings().any(|sampling| sampling.beams) {
            return Some((Reason::BeamSearch, false));
        }
        if self.upstream.refuses_logprobs {
            return Some((Reason::Speculation, false));
        }
        match self.upstream.stream_logprobs() {
            StreamLogprobs::Broken if stream => return Some((Reason::JaxStream, false)),
            StreamLogprobs::Unknown if stream && self.upstream.probed => return Some((Reason::EngineUnknown, false)),
            StreamLogprobs::Unknown if stream => return Some((Reason::ProbePending, false)),
            _ => {}
        }
        let forced = self.config.entropy == EntropyDefault::Always || self.entropy_request.explicit;
        if self.upstream.compiles_for_logprobs() && !forced {
            return Some((Reason::Jax, false));
        }
        let cumulative = stream && self.upstream.streaming != Some(Streaming::Incremental);
        let tokens: u64 =
            (0..self.prompts()).map(|at| self.new_tokens(at)).sum::<u64>().saturating_mul(request.n() as u64);
        if cumulative && !self.entropy_request.explicit && tokens > self.config.cumulative_stream_tokens {
            return Some((Reason::CumulativeStream, true));
        }
        None
    }

    /// Whether per-item lists have the length of the batch. They are allowed only in a batch, and not with n > 1.
    fn lists_fit(&self) -> bool {
        let request = self.request;
        let lists = [
            request.return_logprob.list_len(),
            request.top_logprobs_num.list_len(),
            request.logprob_start_len.list_len(),
            request.token_ids_logprob.list_len(),
            request.sampling.list_len(),
        ];
        let batch = if request.n() > 1 { None } else { request.batch() };
        lists[..4].iter().flatten().all(|len| Some(*len) == batch)
            && lists[4].is_none_or(|len| Some(len) == request.batch())
    }

    fn item(&self, at: usize, whole: Option<(Reason, bool)>, budget: u32) -> ItemPlan {
        let (asked, asked_k) = (self.asked(at), self.asked_k(at));
        let mut item = ItemPlan {
            asked,
            asked_k,
            logprob: asked,
            k: asked_k,
            temperature: Err(Reason::ProbePending),
            at_one: false,
            exact: None,
            own_plugin: self.asks_plugin(at),
            own_support: !matches!(self.request.sampling_mask, PerItem::Absent),
            placeholder: self.upstream.placeholder_needs_k() && asked && asked_k == 0 && self.is_logprob_only(at),
            reason: None,
            lowered_from: None,
        };
        if self.entropy_request.wanted {
            let exact = self.exact(at, whole);
            item.exact = exact.unwrap_or(None);
            // statistics and intervals need rows in addition to exact values
            let rows = self.entropy_request.stats
                || self.entropy_request.bounds && self.entropy_request.estimator == Estimator::Sampled;
            match (whole, exact) {
                (_, Ok(Some(_))) if !rows => item.logprob |= !self.companions_clash(),
                (Some((_, chosen)), Ok(Some(_))) => item.logprob |= chosen && !self.companions_clash(),
                (Some((reason, chosen)), _) => {
                    item.reason = (asked_k == 0 || exact.is_err()).then_some(reason);
                    item.logprob |= chosen && !self.companions_clash();
                }
                (None, Err(reason)) => {
                    item.reason = Some(reason);
                    item.logprob |= !self.companions_clash();
                }
                (None, Ok(_)) => self.force(at, budget, &mut item),
            }
        }
        if item.placeholder && item.k == 0 {
            // in sglang-jax a request for chosen logprobs alone duplicates rows and can crash the scheduler
            item.k = 1;
        }
        (item.temperature, item.at_one) = self.temperature(at, &item);
        item
    }

    fn force(&self, at: usize, budget: u32, item: &mut ItemPlan) {
        let prompt_side = item.asked && self.request.logprob_start_len.get(at).is_some_and(|start| *start >= 0);
        if prompt_side && !self.flat {
            item.reason = (item.asked_k == 0 && item.exact.is_none()).then_some(Reason::PromptLogprobs);
            return;
        }
        if self.companions_clash() {
            item.reason = (item.asked_k == 0 && item.exact.is_none()).then_some(Reason::Request);
            return;
        }
        item.logprob = true;
        item.k = item.asked_k.max(budget);
        item.lowered_from = Some(self.wanted_k()).filter(|wanted| item.k > 0 && item.k < *wanted);
        item.reason = (item.k == 0 && item.exact.is_none()).then_some(Reason::ReplyBudget);
    }

    /// Whether forcing logprobs would activate `token_ids_logprob` for items that did not request it: the list cannot hold null.
    fn companions_clash(&self) -> bool {
        self.mixed && !matches!(self.request.token_ids_logprob, PerItem::Absent)
    }

    fn is_logprob_only(&self, at: usize) -> bool {
        self.request.logprob_start_len.get(at).is_none_or(|start| *start == -1)
            && self.request.token_ids_logprob.get(at).is_none()
    }

    /// The temperature of the distribution that the logprobs describe, and whether temperature 1 is sent instead.
    fn temperature(&self, at: usize, item: &ItemPlan) -> (Result<f64, Reason>, bool) {
        let (temperature, top_k) = self.effective_sampling(at);
        let unknown = if self.upstream.probed { Reason::Temperature } else { Reason::ProbePending };
        let Some(temperature) = temperature else {
            let known = self.upstream.original_logprobs == Some(true);
            return (if known { Ok(1.0) } else { Err(unknown) }, false);
        };
        // below this the engine itself sets temperature 1 and top_k 1
        if temperature < 1e-6 || temperature.is_nan() || temperature == 1.0 {
            return (Ok(1.0), false);
        }
        if self.upstream.original_logprobs == Some(true) {
            return (Ok(1.0), false);
        }
        if top_k == Some(1) {
            // a shared object affects other items too, and the engine's own default cannot be edited
            let own =
                self.request.sampling.get(at).is_some() && !(self.mixed && self.request.sampling.list_len().is_none());
            return match item.exact {
                _ if item.logprob && !item.asked && own => (Ok(1.0), true),
                // the plugin applies the temperature in any batch
                Some(ExactSource::Plugin) => (Ok(temperature), false),
                _ => (Err(Reason::TopK1), false),
            };
        }
        match self.upstream.original_logprobs {
            Some(_) => (Ok(temperature), false),
            None => (Err(unknown), false),
        }
    }
}
