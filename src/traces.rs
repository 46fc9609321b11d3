// SPDX-License-Identifier: Apache-2.0
//! Traces: one OpenTelemetry span for each generation, sent to the collector of `--otlp`.
//!
//! A span is queued when its generation has ended. The queue is bounded: no generation waits for the collector, and what does not fit is
//! dropped and counted.

mod exporter;
mod span;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags, TraceState};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use tokio::sync::mpsc;

use crate::metrics::Metrics;
pub(crate) use exporter::Exporter;
use span::{EndedSpan, SpanIdentity};
pub(crate) use span::{Failure, FailureSlot, GenerationSpan, Operation, SpanOutcome, SpanSubject, UnsentSpan};

/// Spans that wait for the collector.
const QUEUE: usize = 4096;

/// The bytes of a caller's state that its span has: what the specification asks every tracer to carry.
const LONGEST_STATE: usize = 512;

/// The flag of a trace whose id is random, of W3C Trace Context Level 2.
const RANDOM: TraceFlags = TraceFlags::new(2);

/// The header with the trace and the span of the caller: W3C Trace Context.
const TRACEPARENT: &str = "traceparent";

/// The header with the caller's vendor-specific state of the trace.
const TRACESTATE: &str = "tracestate";

/// Begins spans, and queues those that end.
#[derive(Debug)]
pub(crate) struct Traces {
    queue: mpsc::Sender<EndedSpan>,
    metrics: Arc<Metrics>,
}

impl Traces {
    /// Creates the queue, and the exporter that empties it.
    ///
    /// # Errors
    /// Error message if the collector's URL or the exporter's environment variables cannot be used.
    pub(crate) fn try_new(collector: &str, metrics: Arc<Metrics>) -> Result<(Arc<Self>, Exporter), String> {
        let (queue, spans) = mpsc::channel(QUEUE);
        let exporter = Exporter::try_new(collector, spans, Arc::clone(&metrics))?;
        Ok((Arc::new(Self { queue, metrics }), exporter))
    }

    /// Begins the span of a generation. Its parent is the span that the headers name; without one it is the root of a trace. The headers
    /// then name the new span, which becomes the parent of the engine's spans. `None` if the caller does not sample its trace: its headers
    /// stay unchanged.
    pub(crate) fn begin(
        self: &Arc<Self>,
        headers: &mut HeaderMap,
        subject: SpanSubject,
    ) -> Option<Box<GenerationSpan>> {
        let caller = caller(headers);
        if caller.is_valid() && !caller.is_sampled() {
            return None;
        }
        let ids = RandomIdGenerator::default();
        let trace = if caller.is_valid() { caller.trace_id() } else { ids.new_trace_id() };
        let state =
            Some(caller.trace_state()).filter(|state| caller.is_valid() && state.header().len() <= LONGEST_STATE);
        let state = state.cloned().unwrap_or_default();
        let flags = TraceFlags::SAMPLED | if caller.is_valid() { caller.trace_flags() } else { TraceFlags::default() };
        let context = SpanContext::new(trace, ids.new_span_id(), flags, false, state);
        headers.insert(TRACEPARENT, traceparent(&context));
        if !caller.is_valid() {
            // the state belongs to the trace of an invalid parent
            headers.remove(TRACESTATE);
        }
        let identity = SpanIdentity { context, parent: caller.span_id(), subject };
        Some(Box::new(GenerationSpan::new(Arc::clone(self), identity)))
    }

    /// Queues a span, or drops it if the queue is full.
    fn queue(&self, span: EndedSpan) {
        if self.queue.try_send(span).is_err() {
            self.metrics.spans.with_label_values(&["dropped"]).inc();
        }
    }
}

/// The span that the headers name. Invalid if they name none, or several.
fn caller(headers: &HeaderMap) -> SpanContext {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    // the propagator also accepts shorter ids
    let has_ids = |value: &HeaderValue| {
        let parts: Vec<usize> = value.as_bytes().split(|byte| *byte == b'-').map(<[u8]>::len).take(4).collect();
        parts == [2, 32, 16, 2]
    };
    let (Some(parent), None) = (parents.next(), parents.next()) else { return SpanContext::NONE };
    if !has_ids(parent) {
        return SpanContext::NONE;
    }
    let context = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    let span = context.span().span_context().clone();
    let flags = span.trace_flags() | (flags(parent) & RANDOM);
    SpanContext::new(span.trace_id(), span.span_id(), flags, span.is_remote(), state(headers))
}

/// The flags in a `traceparent` with ids. The propagator keeps only whether the trace is sampled.
fn flags(parent: &HeaderValue) -> TraceFlags {
    let text = parent.to_str().ok().and_then(|text| text.get(53..55));
    TraceFlags::new(text.and_then(|text| u8::from_str_radix(text, 16).ok()).unwrap_or(0))
}

/// The state of the caller, which may be in several headers; the propagator reads the first. Empty if it is not valid.
fn state(headers: &HeaderMap) -> TraceState {
    let lines: Result<Vec<&str>, _> = headers.get_all(TRACESTATE).iter().map(HeaderValue::to_str).collect();
    lines.ok().and_then(|lines| lines.join(",").parse().ok()).unwrap_or_default()
}

/// The value of `traceparent` that names a span, with its flags.
fn traceparent(context: &SpanContext) -> HeaderValue {
    let text = format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags());
    HeaderValue::try_from(text).expect("hexadecimal digits and hyphens are valid in a header")
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::SpanId;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    fn traces(capacity: usize) -> (Arc<Traces>, mpsc::Receiver<EndedSpan>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new("cpu"));
        let (queue, spans) = mpsc::channel(capacity);
        (Arc::new(Traces { queue, metrics: Arc::clone(&metrics) }), spans, metrics)
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    /// The trace, span and flags of the header.
    fn sent(headers: &HeaderMap) -> Vec<&str> {
        headers[TRACEPARENT].to_str().unwrap().split('-').collect()
    }

    fn subject() -> SpanSubject {
        SpanSubject { operation: Operation::Chat, session: None, adapter: None }
    }

    fn begin(headers: &mut HeaderMap) -> Option<EndedSpan> {
        let (traces, mut spans, _) = traces(1);
        traces.begin(headers, subject())?.end(SpanOutcome::default());
        Some(spans.try_recv().expect("it is queued"))
    }

    #[test]
    fn span_is_a_child_of_the_callers_and_the_parent_of_the_engines() {
        let caller = format!("00-{TRACE}-{PARENT}-01");
        let mut headers = headers(&[(TRACEPARENT, &caller), (TRACESTATE, "vendor=1"), ("x-other", "2")]);
        let span = begin(&mut headers).expect("its trace is sampled");
        assert_eq!(
            (span.identity.context.trace_id().to_string(), span.identity.parent.to_string()),
            (TRACE.into(), PARENT.into())
        );
        let id = span.identity.context.span_id().to_string();
        assert_ne!(id, PARENT);
        assert_eq!(sent(&headers), ["00", TRACE, &*id, "01"]);
        assert_eq!((&headers[TRACESTATE], &headers["x-other"]), (&"vendor=1".parse().unwrap(), &"2".parse().unwrap()));
        assert_eq!(span.identity.context.trace_state().header(), "vendor=1");
    }

    #[test]
    fn generation_without_a_valid_caller_begins_a_trace() {
        let zeros = format!("00-{}-{PARENT}-01", "0".repeat(32));
        for caller in [
            "",
            "junk",
            &*zeros,
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-01",
        ] {
            let mut headers = headers(&[(TRACEPARENT, caller), (TRACESTATE, "vendor=1")]);
            let span = begin(&mut headers).unwrap_or_else(|| panic!("{caller:?} begins a trace"));
            assert_eq!(span.identity.parent, SpanId::INVALID, "{caller:?}");
            assert_eq!(sent(&headers)[1], span.identity.context.trace_id().to_string(), "{caller:?}");
            assert!(!headers.contains_key(TRACESTATE), "{caller:?}");
        }
    }

    #[test]
    fn random_trace_id_stays_marked_as_one() {
        let mut headers = headers(&[(TRACEPARENT, &format!("00-{TRACE}-{PARENT}-03"))]);
        assert_eq!(begin(&mut headers).expect("its trace is sampled").identity.context.trace_flags().to_u8(), 3);
        assert_eq!(sent(&headers)[3], "03");
    }

    #[test]
    fn two_callers_are_none() {
        let caller = format!("00-{TRACE}-{PARENT}-01");
        let mut headers = headers(&[(TRACEPARENT, &caller)]);
        headers.append(TRACEPARENT, caller.parse().unwrap());
        assert_eq!(begin(&mut headers).expect("a new trace").identity.parent, SpanId::INVALID);
        assert_eq!(headers.get_all(TRACEPARENT).iter().count(), 1);
    }

    #[test]
    fn state_in_several_headers_is_read_as_one() {
        let caller = format!("00-{TRACE}-{PARENT}-01");
        let mut headers = headers(&[(TRACEPARENT, &caller), (TRACESTATE, "vendor=1")]);
        headers.append(TRACESTATE, "other=2".parse().unwrap());
        let span = begin(&mut headers).expect("its trace is sampled");
        assert_eq!(span.identity.context.trace_state().header(), "vendor=1,other=2");
        assert_eq!(headers.get_all(TRACESTATE).iter().count(), 2, "they pass unchanged");
    }

    #[test]
    fn long_state_is_in_the_headers_only() {
        let (caller, state) = (format!("00-{TRACE}-{PARENT}-01"), format!("vendor={}", "1".repeat(600)));
        let mut headers = headers(&[(TRACEPARENT, &caller), (TRACESTATE, &state)]);
        let span = begin(&mut headers).expect("its trace is sampled");
        assert_eq!((span.identity.context.trace_state().header().len(), headers[TRACESTATE].len()), (0, state.len()));
    }

    #[test]
    fn trace_that_the_caller_does_not_sample_passes_unchanged() {
        let caller = format!("00-{TRACE}-{PARENT}-00");
        let mut headers = headers(&[(TRACEPARENT, &caller)]);
        assert!(begin(&mut headers).is_none());
        assert_eq!(headers[TRACEPARENT], caller);
    }

    #[test]
    fn span_that_does_not_fit_the_queue_is_dropped_and_counted() {
        let (traces, mut spans, metrics) = traces(2);
        for _ in 0..5 {
            let span = traces.begin(&mut HeaderMap::new(), subject()).expect("a new trace");
            span.end(SpanOutcome::default());
        }
        assert_eq!(metrics.spans.with_label_values(&["dropped"]).get(), 3);
        assert!(spans.try_recv().is_ok() && spans.try_recv().is_ok() && spans.try_recv().is_err());
    }
}
