//! Metrics of chat completions that are served from tokens.

use prometheus::IntCounterVec;

use super::declare::Declare;

/// Handles.
#[derive(Debug)]
pub struct ChatMetrics {
    /// Served, by what of their prompts was there already, `how`.
    pub prompts: IntCounterVec,
    /// Answered 403, by `limit`.
    pub refusals: IntCounterVec,
    /// Extended turns that were rendered anew to be compared, by the gravest difference, `drift`.
    pub drift: IntCounterVec,
}

impl ChatMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        let prompts =
            d.counters("chat_prompts_total", "Chats served from tokens, by what of the prompt was there.", &["how"]);
        // what an alert takes the rate of must begin somewhere
        for how in ["extended", "whole", "retokenised", "foreign"] {
            prompts.with_label_values(&[how]);
        }
        Self {
            prompts,
            refusals: d.counters("chat_refusals_total", "Chats that had reached a limit.", &["limit"]),
            drift: d.counters("chat_drift_total", "Extended chats compared with their rendering.", &["drift"]),
        }
    }
}
