// SPDX-License-Identifier: Apache-2.0
//! Decides when the engine can report an exact entropy: by its plugin, or by its sampling mask.

use super::{ForcingFacts, Obstacle};
use crate::engine::plan::{ExactSource, ItemPlan};
use crate::engine::reason::Reason;
use crate::engine::sglang::request::{CustomParams, PerItem};
use crate::entropy::Estimator;

/// Drops the sampling mask from all items unless every item can have it: a request has one mode for all items.
pub(super) fn unify_support(items: &mut [ItemPlan]) {
    let named = items.iter().filter(|item| item.exact == Some(ExactSource::Support)).count();
    if (1..items.len()).contains(&named) {
        for item in items.iter_mut().filter(|item| item.exact == Some(ExactSource::Support)) {
            (item.exact, item.reason) = (None, Some(Reason::OpenSupport));
        }
    }
}

impl ForcingFacts<'_> {
    /// The exact source for this item; `Err` if the requested estimator needs one and none is available.
    pub(super) fn exact(&self, at: usize, obstacle: Option<Obstacle>) -> Result<Option<ExactSource>, Reason> {
        if self.entropy_request.estimator == Estimator::Sampled {
            return match (obstacle, self.support(at)) {
                (Some(obstacle), _) => Err(obstacle.reason),
                (None, Some(tokens)) => self.support_bytes(at, tokens).map(|_| Some(ExactSource::Support)),
                (None, None) => Err(Reason::OpenSupport),
            };
        }
        let sampling = self.request.sampling.get(at);
        let custom = sampling.map_or(CustomParams::Absent, |sampling| sampling.custom);
        // in a batch with per-item parameters, an item without parameters has no member to hold the switch
        let place = sampling.is_some() || matches!(self.request.sampling, PerItem::Absent);
        let free = match custom {
            // SGLang merges sampling parameters only at the top level: the server's default `custom_params` would be replaced
            CustomParams::Absent => self.upstream.preferred.as_ref().is_some_and(|preferred| !preferred.custom_params),
            CustomParams::Free | CustomParams::Switched(true) => true,
            CustomParams::Switched(false) | CustomParams::Other => false,
        };
        // one number per token costs as much as the chosen logprob, which cumulative streams carry anyway
        let blocked = obstacle.is_some_and(|obstacle| obstacle.reason != Reason::CumulativeStream);
        // a client's own logit processor changes logits after the plugin
        let silent = self.request.custom_processor || self.entropy_request.by_top_k || blocked;
        Ok((self.plugin && place && free && !silent).then_some(ExactSource::Plugin))
    }

    /// Whether the client itself asks the engine's plugin about this item.
    pub(super) fn asks_plugin(&self, at: usize) -> bool {
        self.request.sampling.get(at).is_some_and(|sampling| sampling.custom == CustomParams::Switched(true))
    }

    /// The temperature and `top_k` that this item is sampled with: its own, otherwise the engine's defaults. The temperature is `None` if
    /// neither is known.
    pub(super) fn effective_sampling(&self, at: usize) -> (Option<f64>, Option<i64>) {
        let sampling = self.request.sampling.get(at);
        let preferred = self.upstream.preferred.as_ref();
        let default = preferred.map(|preferred| preferred.temperature.unwrap_or(1.0));
        let temperature = sampling.and_then(|sampling| sampling.temperature).or(default);
        let top_k = preferred.and_then(|preferred| preferred.top_k);
        (temperature, sampling.and_then(|sampling| sampling.top_k).or(top_k))
    }

    /// The largest support that the sampling mask reports for this item; `None` if it cannot be requested.
    pub(super) fn support(&self, at: usize) -> Option<u64> {
        let (request, limit) = (self.request, self.upstream.sampling_mask?);
        let (temperature, top_k) = self.effective_sampling(at);
        let tokens =
            if temperature.is_some_and(|temperature| temperature < 1e-6) { 1 } else { u64::try_from(top_k?).ok()? };
        // tied tokens enlarge the support, and the engine ends a request that exceeds its limit; half the limit leaves room for ties
        let finite = (1..=u64::from(limit) / 2).contains(&tokens);
        let asks_itself = !matches!(request.sampling_mask, PerItem::Absent) || request.sampling_mode.is_some();
        let whole = request.sampling_mask.get(at) == Some(&true) && request.sampling_mode.as_deref() == Some("support");
        (finite && !request.custom_processor && (!asks_itself || whole)).then_some(tokens)
    }

    /// The expected bytes of the supports of all tokens, if they fit the budget: an id and a logprob each, 28 bytes (measured). A cumulative
    /// stream repeats them with each token; twice the budget corresponds to a top-k of 20 for 512 tokens. An incremental stream is never
    /// buffered whole.
    pub(super) fn support_bytes(&self, at: usize, support: u64) -> Result<u64, Reason> {
        if self.is_incremental() {
            return Ok(0);
        }
        let each = 48 + 28 * support;
        let tokens = self.expected_tokens(at);
        let all = tokens.saturating_mul((self.request.n() * self.prompts()) as u64);
        let (tokens, budget, reason) = if self.request.stream == Some(true) {
            let repeated = all.saturating_mul(tokens) / 2;
            (repeated, self.limits.reply_bytes.saturating_mul(2), Reason::CumulativeStream)
        } else {
            (all, self.limits.reply_bytes, Reason::ReplyBudget)
        };
        let bytes = tokens.saturating_mul(each);
        if bytes <= budget { Ok(bytes) } else { Err(reason) }
    }
}
