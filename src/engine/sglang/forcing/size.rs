//! Estimates the size of a reply and the k that keeps it within its limit.

use super::ForcingFacts;
use crate::engine::capabilities::Streaming;

/// SGLang's default of `max_new_tokens` on /generate.
const DEFAULT_NEW_TOKENS: u64 = 128;
/// Tokens assumed for `max_new_tokens: null` when the context length is unknown.
const UNKNOWN_CONTEXT: u64 = 32_768;

/// The largest of `k`, 20, 5, 0 with which a reply of `tokens` tokens is expected to have at most `bound` bytes.
#[must_use]
pub(crate) fn affordable_k(k: u32, tokens: u64, flat: bool, bound: u64) -> u32 {
    // measured: 33 bytes for the chosen token, 36 for a nested entry, 8 bytes in base64 for a flat one
    let entry = if flat { 11 } else { 36 };
    let bytes = |k: u32| tokens.saturating_mul(48 + entry * u64::from(k));
    [k, 20.min(k), 5.min(k)].into_iter().find(|k| bytes(*k) <= bound).unwrap_or(0)
}

impl ForcingFacts<'_> {
    pub(super) fn new_tokens(&self, at: usize) -> u64 {
        let context = self.upstream.context_length.unwrap_or(UNKNOWN_CONTEXT);
        match self.request.sampling.get(at).and_then(|sampling| sampling.max_new_tokens) {
            None => DEFAULT_NEW_TOKENS,
            Some(None) => context,
            Some(Some(tokens)) => tokens.min(context),
        }
    }

    /// The largest of k, 20, 5, 0 with which the expected reply fits its bound: 64 MiB, or `--max-reply-bytes` where the client
    /// sets no length. Such a reply is rarely as long as the context allows, and its size is checked while it is read. Incremental streams
    /// are never buffered whole.
    pub(super) fn within_budget(&self) -> u32 {
        let k = self.wanted_k();
        if self.request.stream == Some(true) && self.upstream.streaming == Some(Streaming::Incremental) {
            return k;
        }
        let tokens: u64 =
            (0..self.prompts()).map(|at| self.new_tokens(at)).sum::<u64>().saturating_mul(self.request.n() as u64);
        let open_ended = (0..self.prompts())
            .all(|at| self.request.sampling.get(at).is_some_and(|sampling| sampling.max_new_tokens == Some(None)));
        let bound =
            if open_ended { self.config.reply_budget.max(self.max_reply_bytes) } else { self.config.reply_budget };
        affordable_k(k, tokens, self.flat, bound)
    }
}
