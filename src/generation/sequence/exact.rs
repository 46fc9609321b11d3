// SPDX-License-Identifier: Apache-2.0
//! The engine's exact values of a sequence, and whether they belong to its tokens.

use super::{EventStep, Sequence};
use crate::engine::plan::ExactSource;

/// Why exact values that were requested from the engine cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExactFailure {
    /// The engine returned none.
    Missing,
    /// The engine did not return one per token, so they cannot be assigned to tokens.
    Misaligned,
    /// The engine returned only nulls.
    Null,
}

impl ExactFailure {
    /// The label of the metric.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Misaligned => "misaligned",
            Self::Null => "null",
        }
    }
}

impl Sequence {
    /// Writes the exact values of the tokens of `step` to `out`. `values` is the parsed list; `listed` is the number of tokens in the
    /// event's other lists. If the values do not belong to the tokens, it writes one NaN per token, for this event and all later ones.
    pub(crate) fn take_exact(&mut self, values: Option<&[f32]>, listed: usize, step: &EventStep, out: &mut Vec<f32>) {
        out.clear();
        if step.new > 0 && self.exact_failure.is_none() {
            self.exact_failure = match values {
                // an event may end a sequence without any token so far
                None if self.exact_seen == 0 => Some(ExactFailure::Missing),
                Some(values) if values.len() == listed || step.merged > 0 && values.len() == step.merged => None,
                _ => Some(ExactFailure::Misaligned),
            };
        }
        // in an event merged with an abort the list holds only the delta
        let from = if values.is_some_and(|values| values.len() == listed) { step.chosen_from } else { 0 };
        let taken = values.filter(|_| self.exact_failure.is_none()).and_then(|values| values.get(from..));
        out.extend(taken.unwrap_or_default().iter().take(step.new));
        self.exact_seen += out.len();
        out.resize(step.new, f32::NAN);
    }

    /// Why a finished sequence has no exact values; `None` if it has them or none were requested.
    #[must_use]
    pub(crate) fn exact_failure(&self, exact: Option<ExactSource>) -> Option<ExactFailure> {
        exact?;
        self.exact_failure.or_else(|| (self.tokens > 0 && self.measured == 0).then_some(ExactFailure::Null))
    }
}
