//! When the engine itself can say an entropy exactly: by its plugin, or by naming what it sampled from.

use super::{Facts, Item};
use crate::entropy::Estimator;
use crate::generation::reason::Reason;
use crate::sglang::request::{Custom, PerItem};

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
        if self.wish.estimator == Estimator::Sampled {
            return match whole {
                Some((reason, _)) => Err(reason),
                None if self.names_support(at) => Ok(Some(Exact::Support)),
                None => Err(Reason::OpenSupport),
            };
        }
        let sampling = self.request.sampling.get(at);
        let custom = sampling.map_or(Custom::Absent, |sampling| sampling.custom);
        // an item without parameters of its own, among others that have some, has nowhere to ask
        let place = sampling.is_some() || matches!(self.request.sampling, PerItem::Absent);
        let free = matches!(custom, Custom::Absent | Custom::Free | Custom::Switched(true));
        // one number a token costs what the chosen logprob costs, which cumulative streams carry anyway
        let blocked = whole.is_some_and(|(reason, _)| reason != Reason::CumulativeStream);
        // a client's own processor changes logits behind the plugin
        let silent = self.request.custom_processor || self.wish.by_top_k || blocked;
        Ok((self.plugin && place && free && !silent).then_some(Exact::Plugin))
    }

    /// Whether the client itself asks the engine's plugin about this item.
    pub(super) fn asks_plugin(&self, at: usize) -> bool {
        self.request.sampling.get(at).is_some_and(|sampling| sampling.custom == Custom::Switched(true))
    }

    /// Whether the engine says what this item's tokens are sampled from, or can be asked to.
    fn names_support(&self, at: usize) -> bool {
        let (request, Some(limit)) = (self.request, self.upstream.sampling_mask) else { return false };
        let sampling = request.sampling.get(at);
        let preferred = &self.upstream.preferred;
        let top_k = sampling.and_then(|sampling| sampling.top_k).or(preferred.top_k).unwrap_or(-1);
        let temperature = sampling.and_then(|sampling| sampling.temperature).or(preferred.temperature).unwrap_or(1.0);
        let finite = temperature < 1e-6 || (1..=i64::from(limit)).contains(&top_k);
        let asks_itself = !matches!(request.sampling_mask, PerItem::Absent) || request.sampling_mode.is_some();
        let whole = request.sampling_mask.get(at) == Some(&true) && request.sampling_mode.as_deref() == Some("support");
        finite && !request.custom_processor && (!asks_itself || whole) && self.support_fits(at, top_k)
    }

    /// Whether the supports of all tokens fit the budget: an id and a logprob each, 28 bytes (measured).
    fn support_fits(&self, at: usize, top_k: i64) -> bool {
        let each = 48 + 28 * u64::try_from(top_k).unwrap_or(1);
        let tokens = self.new_tokens(at).saturating_mul(self.request.n() as u64);
        tokens.saturating_mul(self.prompts() as u64).saturating_mul(each) <= self.config.reply_budget
    }
}
