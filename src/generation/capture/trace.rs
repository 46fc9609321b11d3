// SPDX-License-Identifier: Apache-2.0
//! The span of a captured generation.

use std::sync::Arc;

use http::StatusCode;

use super::Capture;
use crate::engine::reason::Reason;
use crate::generation::recorder::Recorder;
use crate::session::Fault;
use crate::traces::{GenerationSpan, SpanOutcome};

impl Capture {
    /// Sets the span of the generation.
    pub(crate) fn set_span(&mut self, span: Option<Box<GenerationSpan>>) {
        self.span = span;
    }

    /// Records that the engine did not reply, or refused the request.
    pub fn fail_span(&mut self, status: StatusCode) {
        if let Some(span) = &mut self.span {
            span.fail(status.as_str().to_owned());
        }
    }

    /// Records that no more of the reply will arrive.
    pub(super) fn cut_span(&mut self, fault: Fault) {
        // the end of a reply that is not read is not known to be its last byte
        let is_known = self.reads_reply() || fault != Fault::Broken;
        let is_complete = self.is_complete();
        if let Some(span) = self.span.as_mut().filter(|_| is_known && !is_complete) {
            span.fail(fault.name());
        }
    }

    /// Records the choices of a chat of the engine's own endpoint that have ended.
    pub(super) fn finish_chat_span(&mut self) {
        let Some(span) = &mut self.span else { return };
        let finishes = self.chat.as_mut().map(|chat| chat.take_finishes()).unwrap_or_default();
        finishes.into_iter().for_each(|reason| span.finish(String::from(reason).into(), self.now));
    }

    /// Ends the span and queues it for the collector.
    pub fn end_span(&mut self) {
        let Some(span) = self.span.take() else { return };
        let rid = self.plan.rids.first().map(|(rid, _)| rid).or(self.plan.rid.as_ref());
        span.end(SpanOutcome {
            model: Some(Arc::clone(self.recorder.as_ref().map_or(self.model.model(), Recorder::model))),
            rid: rid.cloned(),
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
        let (sum, count) = self.sequences.iter().map(super::Sequence::entropies).fold((0.0, 0), add);
        (count > 0).then(|| sum / count as f64)
    }
}
