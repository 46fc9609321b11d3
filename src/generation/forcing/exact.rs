//! When the engine itself can say an entropy exactly: by its plugin, or by naming what it sampled from.

use super::{Facts, Item};
use crate::engine::probe::Streaming;
use crate::engine::request::{Custom, PerItem};
use crate::entropy::Estimator;
use crate::generation::reason::Reason;

/// What the engine itself is asked to say exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exact {
    /// Its plugin: the entropy of the full distribution.
    Plugin,
    /// Its sampling mask: the distribution that was sampled from.
    Support,
}

/// What happened since the last probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// The engine refused this shape when it was forced.
    pub refused: bool,
    /// The plugin was asked and said nothing, or not as it should.
    pub plugin_failed: bool,
}

impl Item {
    /// The item as the client wrote it.
    #[must_use]
    pub fn as_asked(self) -> Self {
        Self { logprob: self.asked, k: self.asked_k, at_one: false, exact: None, ..self }
    }

    /// Whether the engine is asked for something exact that the client did not ask for.
    #[must_use]
    pub fn is_asked_exactly(&self) -> bool {
        match self.exact {
            Some(Exact::Plugin) => !self.own_plugin,
            Some(Exact::Support) => !self.own_support,
            None => false,
        }
    }
}

/// The mode of sampling masks is one for all items: where one item cannot have it, none has.
pub(super) fn agree(items: &mut [Item]) {
    let named = items.iter().filter(|item| item.exact == Some(Exact::Support)).count();
    if (1..items.len()).contains(&named) {
        for item in items.iter_mut().filter(|item| item.exact == Some(Exact::Support)) {
            (item.exact, item.reason) = (None, Some(Reason::OpenSupport));
        }
    }
}

impl Facts<'_> {
    /// What the engine may be asked to say exactly of this item; `Err` where nothing else gives what is wanted.
    pub(super) fn exact(&self, at: usize, whole: Option<(Reason, bool)>) -> Result<Option<Exact>, Reason> {
        if self.entropy_request.estimator == Estimator::Sampled {
            return match (whole, self.support(at)) {
                (Some((reason, _)), _) => Err(reason),
                (None, Some(tokens)) => self.support_fits(at, tokens).map(|()| Some(Exact::Support)),
                (None, None) => Err(Reason::OpenSupport),
            };
        }
        let sampling = self.request.sampling.get(at);
        let custom = sampling.map_or(Custom::Absent, |sampling| sampling.custom);
        // an item without parameters of its own, among others that have some, has nowhere to ask
        let place = sampling.is_some() || matches!(self.request.sampling, PerItem::Absent);
        let free = match custom {
            // the server's own would be replaced: SGLang merges parameters, but not what is inside of them
            Custom::Absent => self.upstream.preferred.is_some_and(|preferred| !preferred.custom_params),
            Custom::Free | Custom::Switched(true) => true,
            Custom::Switched(false) | Custom::Other => false,
        };
        // one number a token costs what the chosen logprob costs, which cumulative streams carry anyway
        let blocked = whole.is_some_and(|(reason, _)| reason != Reason::CumulativeStream);
        // a client's own processor changes logits behind the plugin
        let silent = self.request.custom_processor || self.entropy_request.by_top_k || blocked;
        Ok((self.plugin && place && free && !silent).then_some(Exact::Plugin))
    }

    /// Whether the client itself asks the engine's plugin about this item.
    pub(super) fn asks_plugin(&self, at: usize) -> bool {
        self.request.sampling.get(at).is_some_and(|sampling| sampling.custom == Custom::Switched(true))
    }

    /// The temperature and `top_k` that this item is sampled with: its own, else the engine's defaults. No temperature where neither is
    /// known.
    pub(super) fn drawn(&self, at: usize) -> (Option<f64>, Option<i64>) {
        let sampling = self.request.sampling.get(at);
        let preferred = self.upstream.preferred;
        let default = preferred.map(|preferred| preferred.temperature.unwrap_or(1.0));
        let temperature = sampling.and_then(|sampling| sampling.temperature).or(default);
        let top_k = preferred.and_then(|preferred| preferred.top_k);
        (temperature, sampling.and_then(|sampling| sampling.top_k).or(top_k))
    }

    /// Of how many tokens at most the engine says that this item's are sampled from them, where it does or can be asked to.
    fn support(&self, at: usize) -> Option<u64> {
        let (request, limit) = (self.request, self.upstream.sampling_mask?);
        let (temperature, top_k) = self.drawn(at);
        let tokens =
            if temperature.is_some_and(|temperature| temperature < 1e-6) { 1 } else { u64::try_from(top_k?).ok()? };
        // tokens that are equally likely come on top, and above its limit the engine ends the request
        let finite = (1..=u64::from(limit) / 2).contains(&tokens);
        let asks_itself = !matches!(request.sampling_mask, PerItem::Absent) || request.sampling_mode.is_some();
        let whole = request.sampling_mask.get(at) == Some(&true) && request.sampling_mode.as_deref() == Some("support");
        (finite && !request.custom_processor && (!asks_itself || whole)).then_some(tokens)
    }

    /// Whether the supports of all tokens fit the budget: an id and a logprob each, 28 bytes (measured). A cumulative stream repeats
    /// them with each token, whoever asked; twice the budget is a top-k of 20 for 512 tokens.
    fn support_fits(&self, at: usize, support: u64) -> Result<(), Reason> {
        let each = 48 + 28 * support;
        let all = self.new_tokens(at).saturating_mul((self.request.n() * self.prompts()) as u64);
        let cumulative = self.request.stream == Some(true) && self.upstream.streaming != Some(Streaming::Incremental);
        let (tokens, budget, reason) = if cumulative {
            let repeated = all.saturating_mul(self.new_tokens(at)) / 2;
            (repeated, self.config.reply_budget.saturating_mul(2), Reason::CumulativeStream)
        } else {
            (all, self.config.reply_budget, Reason::ReplyBudget)
        };
        if tokens.saturating_mul(each) <= budget { Ok(()) } else { Err(reason) }
    }
}
