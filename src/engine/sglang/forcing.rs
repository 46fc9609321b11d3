// SPDX-License-Identifier: Apache-2.0
//! Decides what is forced on a request and when nothing is forced.

mod columns;
mod exact;

use smallvec::SmallVec;

pub(crate) use columns::{ForcedColumns, expert_tokens, forces};

use super::request::{GenerateRequest, PerItem};
use crate::engine::capabilities::{Capabilities, PluginState, StreamLogprobs, StreamMode};
use crate::engine::plan::{ColumnInputs, ColumnPlans, EntropyRequest, ExactSource, ItemPlan, PlanInputs, PlanLimits};
use crate::engine::reason::Reason;
use crate::entropy::Estimator;

/// Prefill/decode disaggregation transfers at most this many top logprobs.
const DISAGGREGATED_TOP_K: u32 = 128;
/// SGLang's default of `max_new_tokens` on /generate.
const DEFAULT_NEW_TOKENS: u64 = 128;
/// Tokens assumed for `max_new_tokens: null` when the context length is unknown.
const UNKNOWN_CONTEXT: u64 = 32_768;
/// Tokens for which columns are budgeted where the client sets no length.
const OPEN_TOKENS: u64 = 8192;

/// The inputs of the decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForcingFacts<'a> {
    pub request: &'a GenerateRequest,
    /// What the client wants.
    pub entropy_request: EntropyRequest,
    /// What the probe found.
    pub upstream: &'a Capabilities,
    pub limits: PlanLimits,
    /// The flat base64 form is requested instead of the nested one: the engine supports it (not for streams), and the client requested no
    /// top-k lists.
    pub flat: bool,
    /// Entropies are requested also where they are expensive for the engine.
    is_always_wanted: bool,
    /// The engine refused this shape since the last probe.
    refused_before: bool,
    /// The plugin may be used: the engine has it, and it has not failed since the last probe.
    plugin: bool,
    /// The client requested logprobs for some items only.
    mixed: bool,
    /// The token columns that tokentap wants.
    columns: ColumnInputs,
}

/// A reason that forbids a forced top-k for the whole request.
#[derive(Debug, Clone, Copy)]
struct Obstacle {
    reason: Reason,
    /// The chosen logprob may be forced nevertheless.
    allows_chosen: bool,
}

impl Obstacle {
    /// An obstacle to any forced logprob.
    fn new(reason: Reason) -> Self {
        Self { reason, allows_chosen: false }
    }
}

impl<'a> ForcingFacts<'a> {
    /// Collects the inputs.
    #[must_use]
    pub(crate) fn new(request: &'a GenerateRequest, upstream: &'a Capabilities, inputs: PlanInputs) -> Self {
        let PlanInputs { entropy_request, is_always_wanted, limits, failures, columns, .. } = inputs;
        let plugin = upstream.plugin == PluginState::Exact && !failures.plugin_failed;
        let refused_before = failures.refused;
        let mut facts = Self {
            request,
            entropy_request,
            upstream,
            limits,
            is_always_wanted,
            refused_before,
            plugin,
            flat: false,
            mixed: false,
            columns,
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

    /// The plan for each prompt, and the columns that are forced.
    #[must_use]
    pub(crate) fn items(&self) -> (SmallVec<[ItemPlan; 1]>, ForcedColumns) {
        let obstacle = self.obstacle();
        let columns = self.force_columns();
        let budget = self.within_budget(columns.bytes);
        let item = |at| ItemPlan { columns: columns.of_item(self, at), ..self.item(at, obstacle, budget) };
        let mut items: SmallVec<[ItemPlan; 1]> = (0..self.prompts()).map(item).collect();
        exact::unify_support(&mut items);
        (items, columns)
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
        let mut k = self.entropy_request.top_k.min(self.limits.max_top_logprobs);
        if self.upstream.disaggregated {
            k = k.min(DISAGGREGATED_TOP_K);
        }
        k.min(self.upstream.vocab_size.unwrap_or(u32::MAX))
    }

    /// Why no item of the request gets a forced top-k, if there is a reason for all of them.
    fn obstacle(&self) -> Option<Obstacle> {
        let request = self.request;
        let samplings = || (0..self.prompts()).filter_map(|at| request.sampling.get(at));
        let stream = request.stream == Some(true);
        if !request.is_readable() || !self.lists_fit() {
            return Some(Obstacle::new(Reason::Request));
        }
        if self.refused_before {
            return Some(Obstacle::new(Reason::RefusedBefore));
        }
        if samplings().any(|sampling| sampling.beams) {
            return Some(Obstacle::new(Reason::BeamSearch));
        }
        if self.upstream.refuses_logprobs {
            return Some(Obstacle::new(Reason::Speculation));
        }
        match self.upstream.stream_logprobs() {
            StreamLogprobs::Broken if stream => return Some(Obstacle::new(Reason::JaxStream)),
            StreamLogprobs::Unknown if stream && self.upstream.probed => {
                return Some(Obstacle::new(Reason::EngineUnknown));
            }
            StreamLogprobs::Unknown if stream => return Some(Obstacle::new(Reason::ProbePending)),
            _ => {}
        }
        let forced = self.is_always_wanted || self.entropy_request.explicit;
        if self.upstream.traits().compiles_for_logprobs && !forced {
            return Some(Obstacle::new(Reason::Jax));
        }
        let cumulative = stream && self.upstream.streaming != Some(StreamMode::Incremental);
        let tokens: u64 =
            (0..self.prompts()).map(|at| self.new_tokens(at)).sum::<u64>().saturating_mul(request.n() as u64);
        if cumulative && !self.entropy_request.explicit && tokens > self.limits.cumulative_stream_tokens {
            return Some(Obstacle { reason: Reason::CumulativeStream, allows_chosen: true });
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

    fn item(&self, at: usize, obstacle: Option<Obstacle>, budget: u32) -> ItemPlan {
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
            placeholder: self.upstream.traits().placeholder_needs_k
                && asked
                && asked_k == 0
                && self.is_logprob_only(at),
            reason: None,
            lowered_from: None,
            columns: ColumnPlans::default(),
        };
        let is_wanted = self.entropy_request.wanted;
        if is_wanted || self.columns.keeps_top {
            let exact = if is_wanted { self.exact(at, obstacle) } else { Ok(None) };
            item.exact = exact.unwrap_or(None);
            // statistics, intervals and the column of the likeliest tokens need rows in addition to exact values
            let rows = self.columns.keeps_top
                || self.entropy_request.stats
                || self.entropy_request.bounds && self.entropy_request.estimator == Estimator::Sampled;
            match (obstacle, exact) {
                (_, Ok(Some(_))) if !rows => item.logprob |= !self.companions_clash(),
                (Some(obstacle), Ok(Some(_))) => {
                    item.logprob |= obstacle.allows_chosen && !self.companions_clash();
                }
                (Some(obstacle), _) => {
                    item.reason = (asked_k == 0 || exact.is_err()).then_some(obstacle.reason);
                    item.logprob |= obstacle.allows_chosen && !self.companions_clash();
                }
                (None, Err(reason)) => {
                    item.reason = Some(reason);
                    item.logprob |= !self.companions_clash();
                }
                (None, Ok(_)) => self.force(at, budget, &mut item),
            }
            item.reason = item.reason.filter(|_| is_wanted);
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

impl ForcingFacts<'_> {
    fn new_tokens(&self, at: usize) -> u64 {
        let context = self.upstream.context_length.unwrap_or(UNKNOWN_CONTEXT);
        match self.request.sampling.get(at).and_then(|sampling| sampling.max_new_tokens) {
            None => DEFAULT_NEW_TOKENS,
            Some(None) => context,
            Some(Some(tokens)) => tokens.min(context),
        }
    }

    /// The tokens for which columns are budgeted. A reply of open length is rarely as long as the context allows, and its size is checked
    /// while it is read.
    fn expected_tokens(&self, at: usize) -> u64 {
        let tokens = self.new_tokens(at);
        if self.is_open_ended(at) { tokens.min(OPEN_TOKENS) } else { tokens }
    }

    fn is_open_ended(&self, at: usize) -> bool {
        self.request.sampling.get(at).is_some_and(|sampling| sampling.max_new_tokens == Some(None))
    }

    /// Whether the reply is a stream that does not repeat earlier tokens.
    fn is_incremental(&self) -> bool {
        self.request.stream == Some(true) && self.upstream.streaming == Some(StreamMode::Incremental)
    }

    /// The largest of k, 20, 5, 0 with which the expected reply fits its bound: 64 MiB, or the limit of a measured reply where the client
    /// sets no length, and that limit beside `column_bytes` bytes of token columns. Incremental streams are never buffered whole.
    fn within_budget(&self, column_bytes: u64) -> u32 {
        let k = self.wanted_k();
        if self.is_incremental() {
            return k;
        }
        let tokens: u64 =
            (0..self.prompts()).map(|at| self.new_tokens(at)).sum::<u64>().saturating_mul(self.request.n() as u64);
        let beside_columns = self.limits.max_reply_bytes.saturating_sub(column_bytes);
        affordable_k(k, tokens, self.flat, self.reply_bound().min(beside_columns))
    }

    /// The most bytes that a reply is expected to have.
    fn reply_bound(&self) -> u64 {
        let open_ended = (0..self.prompts()).all(|at| self.is_open_ended(at));
        if open_ended { self.limits.reply_bytes.max(self.limits.max_reply_bytes) } else { self.limits.reply_bytes }
    }
}

/// The largest of `k`, 20, 5, 0 with which a reply of `tokens` tokens is expected to have at most `bound` bytes.
#[must_use]
pub(crate) fn affordable_k(k: u32, tokens: u64, flat: bool, bound: u64) -> u32 {
    // measured: 33 bytes for the chosen token, 36 for a nested entry, 8 bytes in base64 for a flat one
    let entry = if flat { 11 } else { 36 };
    let bytes = |k: u32| tokens.saturating_mul(48 + entry * u64::from(k));
    [k, 20.min(k), 5.min(k)].into_iter().find(|k| bytes(*k) <= bound).unwrap_or(0)
}
