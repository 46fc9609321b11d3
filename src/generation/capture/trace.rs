// SPDX-License-Identifier: Apache-2.0
//! The span of a captured generation.

use std::sync::Arc;

use serde_json::Value;

use super::{Capture, ChatCapture, Sequence};
use crate::engine::capabilities::UNKNOWN_MODEL;
use crate::engine::reason::Reason;
use crate::traces::{Failure, FailureSlot, GenerationSpan, SpanOutcome};

impl Capture {
    /// Sets the span of the generation.
    pub(crate) fn set_span(&mut self, span: Option<Box<GenerationSpan>>) {
        if let Some(chat) = &mut self.chat {
            chat.keep_finishes(span.is_some());
        }
        self.span = span;
    }

    /// Where the cause of a failure is set; `None` without a span.
    pub(crate) fn failure(&self) -> Option<&FailureSlot> {
        self.span.as_deref().map(GenerationSpan::failure)
    }

    /// Records in the span why the generation failed.
    pub(crate) fn fail_span(&self, failure: Failure) {
        if let Some(slot) = self.failure() {
            slot.set(failure);
        }
    }

    /// Records the error of an object without a result, JSON text.
    pub(super) fn fail_span_with(&self, error: Option<&[u8]>) {
        let (Some(slot), Some(error)) = (self.failure(), error) else { return };
        let error: Value = serde_json::from_slice(error).unwrap_or_default();
        slot.set(Failure::of_code(error["code"].as_u64()));
    }

    /// Records in the span why entropies of the reply are missing.
    pub(super) fn miss_in_span(&mut self, reason: Reason) {
        if let Some(span) = &mut self.span {
            span.set_missing(reason.name());
        }
    }

    /// Records the choices of a chat of the engine's own endpoint that have ended.
    pub(super) fn finish_chat_span(&mut self) {
        let Some(span) = &mut self.span else { return };
        let finishes = self.chat.as_mut().map(|chat| chat.take_finishes()).unwrap_or_default();
        finishes.into_iter().for_each(|reason| span.finish(String::from(reason).into(), self.now));
    }

    /// Ends the span and queues it for the collector.
    pub(crate) fn end_span(&mut self) {
        let Some(span) = self.span.take() else { return };
        let rid = self.plan.rids.first().map(|(rid, _)| rid).or(self.plan.rid.as_ref()).cloned();
        let rid = rid.or_else(|| self.chat.as_deref().and_then(ChatCapture::rid).map(Arc::from));
        span.end(SpanOutcome {
            model: Some(Arc::clone(self.model.model())).filter(|model| **model != *UNKNOWN_MODEL),
            rid: rid.or_else(|| self.flight.as_ref().and_then(|flight| flight.ids().into_iter().next())),
            tokens: self.token_counts(),
            mean_entropy: self.mean_entropy(),
            missing: self.observed.missing.map(Reason::name),
        });
    }

    /// Tokens of the prompts, each counted once, and of the replies; `None` if no sequence was read.
    fn token_counts(&self) -> Option<[u64; 2]> {
        let observed = self.observed();
        if self.is_chat() {
            // its choices have one prompt
            return (observed.finished > 0).then(|| [observed.prompt_tokens / observed.finished, observed.tokens]);
        }
        let samples = self.sequences.chunks(self.plan.n.max(1));
        let prompt = samples.filter_map(|samples| samples.iter().map(|sequence| sequence.prompt_tokens).max()).sum();
        (!self.sequences.is_empty()).then_some([prompt, observed.tokens])
    }

    /// The mean entropy of all measured tokens, in nats.
    fn mean_entropy(&self) -> Option<f64> {
        let add = |(sum, count): (f64, usize), (more, tokens): (f64, usize)| (sum + more, count + tokens);
        let (sum, count) = self.sequences.iter().map(Sequence::entropies).fold((0.0, 0), add);
        (count > 0).then(|| sum / count as f64)
    }
}
