//! How much is forced on a request, and when forcing gives way (the rules of design.md, by their numbers).

mod exact;
mod size;

pub use exact::{Exact, Since};
pub use size::affordable_k;

use crate::config::{EntropyConfig, EntropyDefault};
use crate::engine::probe::{Capabilities, Dialect, Plugin, Streaming};
use crate::engine::request::{GenerateRequest, PerItem};
use crate::entropy::Estimator;
use crate::generation::entropy_request::EntropyRequest;
use crate::generation::reason::Reason;

/// Prefill/decode disaggregation hands over at most this many top logprobs.
const DISAGGREGATED_TOP_K: u32 = 128;
/// What one item asked, and what is asked for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Item {
    /// The client asked for logprobs itself.
    pub asked: bool,
    /// The client's own k; 0 where it did not ask.
    pub asked_k: u32,
    /// Whether logprobs are asked upstream.
    pub logprob: bool,
    /// k upstream.
    pub k: u32,
    /// What the engine says exactly, besides logprobs.
    pub exact: Option<Exact>,
    /// The client asked the engine's plugin itself: what it says is the client's.
    pub own_plugin: bool,
    /// The client asked for sampling masks itself.
    pub own_support: bool,
    /// The temperature that the logprobs are at, or why it is not known.
    pub temperature: Result<f64, Reason>,
    /// Temperature 1 is sent instead: the sampled token is the argmax either way.
    pub at_one: bool,
    /// The client asked for the chosen logprobs alone, for which sglang-jax sends no placeholder of the prompt; with a k it does.
    pub placeholder: bool,
    /// Why there is no top-k although entropy was wanted.
    pub reason: Option<Reason>,
    /// The k that was wanted, where a smaller one is asked so that the reply fits its bound.
    pub lowered_from: Option<u32>,
}

/// The facts that decide.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The request.
    pub request: &'a GenerateRequest,
    /// What the client wants.
    pub entropy_request: EntropyRequest,
    /// What the probe found.
    pub upstream: &'a Capabilities,
    /// The settings.
    pub config: &'a EntropyConfig,
    /// The flat base64 form is asked for instead of the nested one: the engine offers it (not on streams), and no item wants lists
    /// of its own.
    pub flat: bool,
    /// `--max-reply-bytes`: the size up to which a reply is read.
    pub max_reply_bytes: u64,
    /// The engine refused this shape since the last probe.
    refused_before: bool,
    /// The plugin may be asked: it is there, and has not failed since the last probe.
    plugin: bool,
    /// Some items asked for logprobs and others did not.
    mixed: bool,
}

impl<'a> Facts<'a> {
    /// Gathers the facts; `since` says what happened since the last probe.
    #[must_use]
    pub fn new(
        request: &'a GenerateRequest,
        entropy_request: EntropyRequest,
        upstream: &'a Capabilities,
        config: &'a EntropyConfig,
        since: Since,
    ) -> Self {
        let plugin = upstream.plugin == Plugin::Exact && !since.plugin_failed;
        let refused_before = since.refused;
        let max_reply_bytes = config.reply_budget;
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

    /// How many prompts.
    #[must_use]
    pub fn prompts(&self) -> usize {
        self.request.batch().unwrap_or(1)
    }

    /// The plan for each prompt.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        let whole = self.whole_request();
        let budget = self.within_budget();
        let mut items: Vec<Item> = (0..self.prompts()).map(|at| self.item(at, whole, budget)).collect();
        exact::agree(&mut items);
        items
    }

    fn asked(&self, at: usize) -> bool {
        self.request.return_logprob.get(at) == Some(&true)
    }

    fn asked_k(&self, at: usize) -> u32 {
        let k = self.request.top_logprobs_num.get(at).copied().unwrap_or(0);
        if self.asked(at) { u32::try_from(k.max(0)).unwrap_or(u32::MAX) } else { 0 }
    }

    /// k for this request: the entropy_request, under every cap.
    fn wanted_k(&self) -> u32 {
        let mut k = self.entropy_request.top_k.min(self.config.max_top_logprobs);
        if self.upstream.disaggregated {
            k = k.min(DISAGGREGATED_TOP_K);
        }
        k.min(self.upstream.vocab_size.unwrap_or(u32::MAX))
    }

    /// A reason that holds for the request as a whole; the flag says whether the chosen logprob is asked nevertheless.
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
        match self.upstream.dialect {
            Some(Dialect::Jax) if stream && self.upstream.overlap_schedule != Some(true) => {
                return Some((Reason::JaxStream, false));
            }
            Some(Dialect::Jax) if self.config.entropy != EntropyDefault::Always && !self.entropy_request.explicit => {
                return Some((Reason::Jax, false));
            }
            // an unknown engine may be sglang-jax, whose streams break
            None if stream && self.upstream.probed => return Some((Reason::EngineUnknown, false)),
            None if stream => return Some((Reason::ProbePending, false)),
            _ => {}
        }
        let cumulative = stream && self.upstream.streaming != Some(Streaming::Incremental);
        let tokens: u64 =
            (0..self.prompts()).map(|at| self.new_tokens(at)).sum::<u64>().saturating_mul(request.n() as u64);
        if cumulative && !self.entropy_request.explicit && tokens > self.config.cumulative_stream_tokens {
            return Some((Reason::CumulativeStream, true));
        }
        None
    }

    /// Per-item lists are as long as the batch, and stand only in one; n > 1 takes none.
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

    fn item(&self, at: usize, whole: Option<(Reason, bool)>, budget: u32) -> Item {
        let (asked, asked_k) = (self.asked(at), self.asked_k(at));
        let mut item = Item {
            asked,
            asked_k,
            logprob: asked,
            k: asked_k,
            temperature: Err(Reason::ProbePending),
            at_one: false,
            exact: None,
            own_plugin: self.asks_plugin(at),
            own_support: !matches!(self.request.sampling_mask, PerItem::Absent),
            placeholder: self.upstream.dialect == Some(Dialect::Jax)
                && asked
                && asked_k == 0
                && self.is_logprob_only(at),
            reason: None,
            lowered_from: None,
        };
        if self.entropy_request.wanted {
            let exact = self.exact(at, whole);
            item.exact = exact.unwrap_or(None);
            // what only rows tell is asked for beside it
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
            // there, a request for chosen logprobs alone duplicates rows and can end the scheduler
            item.k = 1;
        }
        (item.temperature, item.at_one) = self.temperature(at, &item);
        item
    }

    fn force(&self, at: usize, budget: u32, item: &mut Item) {
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

    /// Whether ids asked for by some items would wake up for others: the engine takes no null inside `token_ids_logprob`.
    fn companions_clash(&self) -> bool {
        self.mixed && !matches!(self.request.token_ids_logprob, PerItem::Absent)
    }

    fn is_logprob_only(&self, at: usize) -> bool {
        self.request.logprob_start_len.get(at).is_none_or(|start| *start == -1)
            && self.request.token_ids_logprob.get(at).is_none()
    }

    /// The temperature of the distribution that the logprobs describe, and whether 1 is to be sent in its place.
    fn temperature(&self, at: usize, item: &Item) -> (Result<f64, Reason>, bool) {
        let (temperature, top_k) = self.drawn(at);
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
            // an object for all items is not this item's alone, and the engine's own default is nobody's to edit
            let own =
                self.request.sampling.get(at).is_some() && !(self.mixed && self.request.sampling.list_len().is_none());
            return match item.exact {
                _ if item.logprob && !item.asked && own => (Ok(1.0), true),
                // the plugin divides by it whatever the batch
                Some(Exact::Plugin) => (Ok(temperature), false),
                _ => (Err(Reason::TopK1), false),
            };
        }
        match self.upstream.original_logprobs {
            Some(_) => (Ok(temperature), false),
            None => (Err(unknown), false),
        }
    }
}
