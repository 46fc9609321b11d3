//! Metrics of chat completions that are served from tokens.

use prometheus::{IntCounter, IntCounterVec};

use super::declare::Declare;

/// Handles of the metrics.
#[derive(Debug)]
pub struct ChatMetrics {
    /// Chats served from tokens, by how their prompts were built, `how`.
    pub prompts: IntCounterVec,
    /// Chats that were answered with 403, by `limit`.
    pub refusals: IntCounterVec,
    /// Extended prompts that were compared with a new rendering, by the largest difference, `drift`.
    pub drift: IntCounterVec,
    /// Parts of requests that were left out of the prompt.
    pub skipped_parts: IntCounter,
}

impl ChatMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        let prompts =
            d.counters("chat_prompts_total", "Chats served from tokens, by how their prompts were built.", &["how"]);
        // alerts see an increase only in a series that began at 0
        for how in ["extended", "whole", "spliced", "retokenised", "foreign"] {
            prompts.with_label_values(&[how]);
        }
        Self {
            prompts,
            refusals: d.counters("chat_refusals_total", "Chats refused because they reached a limit.", &["limit"]),
            drift: d.counters(
                "chat_drift_total",
                "Extended prompts that were compared with a new rendering.",
                &["drift"],
            ),
            skipped_parts: d.counter(
                "chat_skipped_parts_total",
                "Parts of requests that were left out of the prompt: blocks, items and tools that only the API's own servers support.",
            ),
        }
    }
}
