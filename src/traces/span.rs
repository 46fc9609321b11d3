// SPDX-License-Identifier: Apache-2.0
//! The span of a generation, with the attributes of OpenTelemetry's conventions for generative AI and those of tokentap.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use http::StatusCode;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tokio::time::Instant;

use super::Traces;

/// The finish reasons of a span. A request may ask for a million samples.
const FINISHES: usize = 64;

/// The bytes of a text from a client or an engine. Neither limits a request id.
const LONGEST_TEXT: usize = 256;

/// The kind of a generation, `gen_ai.operation.name`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Continues a conversation.
    Chat,
    /// Continues a prompt.
    Completion,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completion => "text_completion",
        }
    }
}

/// What a span is about, as far as it is known when the generation begins.
#[derive(Debug)]
pub(crate) struct SpanSubject {
    pub operation: Operation,
    /// `None` if its turns are not recorded and the client named no session.
    pub session: Option<Arc<str>>,
    pub adapter: Option<Arc<str>>,
}

/// Why a generation failed, `error.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The client got an error with this status.
    Status(StatusCode),
    /// The client disconnected.
    Disconnected,
    /// The connection to the engine broke, or its reply ended too early.
    Broken,
    /// The engine sent an error without a status.
    Unnamed,
}

impl Failure {
    /// The failure with a number that an engine sent as a status.
    pub(crate) fn of_code(code: Option<u64>) -> Self {
        let status = code.and_then(|code| u16::try_from(code).ok()).and_then(|code| StatusCode::from_u16(code).ok());
        status.map_or(Self::Unnamed, Self::Status)
    }

    fn name(self) -> StringValue {
        match self {
            Self::Status(status) => status.as_str().to_owned().into(),
            Self::Disconnected => "disconnected".into(),
            Self::Broken => "broken".into(),
            Self::Unnamed => "_OTHER".into(),
        }
    }
}

/// Sets why a generation failed, also after its span has moved into the capture of the reply. The first cause stays.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailureSlot(Arc<OnceLock<Failure>>);

impl FailureSlot {
    pub(crate) fn set(&self, failure: Failure) {
        // fails if a cause is already set
        let _ = self.0.set(failure);
    }
}

/// The place of a span in its trace, and its subject.
#[derive(Debug)]
pub(super) struct SpanIdentity {
    pub(super) context: SpanContext,
    /// Invalid for the root of a trace.
    pub(super) parent: SpanId,
    pub(super) subject: SpanSubject,
}

/// The span of a generation that runs.
#[derive(Debug)]
pub(crate) struct GenerationSpan {
    traces: Arc<Traces>,
    identity: SpanIdentity,
    started: (SystemTime, Instant),
    /// When its last sequence ended.
    ended: Option<Instant>,
    finishes: Vec<Cow<'static, str>>,
    /// The id of its first sample.
    rid: Option<Arc<str>>,
    failure: FailureSlot,
    missing: Option<&'static str>,
}

/// The span of a generation that is not sent yet. If it is dropped, the generation was refused, or its client left.
#[derive(Debug, Default)]
pub(crate) struct UnsentSpan(Option<Box<GenerationSpan>>);

impl UnsentSpan {
    pub(crate) fn new(span: Option<Box<GenerationSpan>>) -> Self {
        Self(span)
    }

    /// Records with which status the generation was refused.
    pub(crate) fn refuse(&self, status: StatusCode) {
        self.0.iter().for_each(|span| span.failure.set(Failure::Status(status)));
    }

    /// The span, once the generation is to be sent.
    pub(crate) fn take(&mut self) -> Option<Box<GenerationSpan>> {
        self.0.take()
    }
}

impl Drop for UnsentSpan {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            span.failure.set(Failure::Disconnected);
            span.end(SpanOutcome::default());
        }
    }
}

/// What is known of a generation once it has ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SpanOutcome {
    /// The served model.
    pub model: Option<Arc<str>>,
    /// The id of the request. That of the first sample in the reply takes precedence.
    pub rid: Option<Arc<str>>,
    /// Tokens of the prompts and of the replies; `None` if the reply was not read.
    pub tokens: Option<[u64; 2]>,
    /// The mean entropy of all measured tokens, in nats.
    pub mean_entropy: Option<f64>,
    /// Why requested entropies are missing.
    pub missing: Option<&'static str>,
}

/// A span that has ended.
#[derive(Debug)]
pub(super) struct EndedSpan {
    pub(super) identity: SpanIdentity,
    started: SystemTime,
    ended: SystemTime,
    finishes: Vec<Cow<'static, str>>,
    failure: Option<Failure>,
    outcome: SpanOutcome,
}

impl GenerationSpan {
    /// Begins a span now.
    pub(super) fn new(traces: Arc<Traces>, identity: SpanIdentity) -> Self {
        let started = (SystemTime::now(), Instant::now());
        let failure = FailureSlot::default();
        Self { traces, identity, started, ended: None, finishes: Vec::new(), rid: None, failure, missing: None }
    }

    /// Records the id of the first sample in the reply. The first one stays.
    pub(crate) fn set_rid(&mut self, rid: &Arc<str>) {
        self.rid.get_or_insert_with(|| Arc::clone(rid));
    }

    /// Records that a sequence ended `now`. Later than the first 64, a sequence has no finish reason in the span.
    pub(crate) fn finish(&mut self, reason: Cow<'static, str>, now: Instant) {
        self.ended = Some(now);
        if self.finishes.len() < FINISHES {
            self.finishes.push(bounded(reason));
        }
    }

    /// Where the cause of a failure is set.
    pub(crate) fn failure(&self) -> &FailureSlot {
        &self.failure
    }

    /// Records why entropies of a reply are missing that was not read to its end.
    pub(crate) fn set_missing(&mut self, reason: &'static str) {
        self.missing = Some(reason);
    }

    /// Ends the span, and queues it for the collector. A generation that failed ends now, another one with its last sequence.
    pub(crate) fn end(mut self, mut outcome: SpanOutcome) {
        let failure = self.failure.0.get().copied();
        let (started, began) = self.started;
        let ended = self.ended.filter(|_| failure.is_none()).unwrap_or_else(Instant::now);
        let subject = &mut self.identity.subject;
        outcome.rid = self.rid.take().or(outcome.rid);
        for text in [&mut subject.session, &mut subject.adapter, &mut outcome.model, &mut outcome.rid] {
            *text = text.take().map(shared_bounded);
        }
        outcome.missing = outcome.missing.or(self.missing);
        self.traces.queue(EndedSpan {
            identity: self.identity,
            started,
            // the wall clock may have been set
            ended: started + ended.saturating_duration_since(began),
            finishes: self.finishes,
            failure,
            outcome,
        });
    }
}

/// The text up to its limit.
fn bounded(text: Cow<'static, str>) -> Cow<'static, str> {
    match text.char_indices().map(|(at, _)| at).take_while(|at| *at <= LONGEST_TEXT).last() {
        Some(end) if text.len() > LONGEST_TEXT => Cow::Owned(text[..end].to_owned()),
        _ => text,
    }
}

fn shared_bounded(text: Arc<str>) -> Arc<str> {
    if text.len() > LONGEST_TEXT { bounded(text.to_string().into()).into() } else { text }
}

impl EndedSpan {
    /// The span as the exporter encodes it.
    pub(super) fn data(self, scope: &InstrumentationScope) -> SpanData {
        let SpanOutcome { model, rid, tokens, mean_entropy, missing } = self.outcome;
        let SpanIdentity { context, parent, subject } = self.identity;
        let operation = subject.operation.name();
        let model = subject.adapter.or(model);
        let mut attributes =
            vec![KeyValue::new("gen_ai.operation.name", operation), KeyValue::new("gen_ai.provider.name", "sglang")];
        let mut add = |key: &'static str, value: Option<Value>| {
            attributes.extend(value.map(|value| KeyValue::new(key, value)));
        };
        let count = |tokens: u64| Value::I64(i64::try_from(tokens).unwrap_or(i64::MAX));
        add("gen_ai.conversation.id", subject.session.map(Value::from));
        add("gen_ai.request.model", model.clone().map(Value::from));
        add("gen_ai.response.id", rid.map(Value::from));
        add("gen_ai.usage.input_tokens", tokens.map(|[prompt, _]| count(prompt)));
        add("gen_ai.usage.output_tokens", tokens.map(|[_, sampled]| count(sampled)));
        let finishes: Vec<StringValue> = self.finishes.into_iter().map(StringValue::from).collect();
        add(
            "gen_ai.response.finish_reasons",
            Some(finishes).filter(|all| !all.is_empty()).map(|all| Value::Array(Array::String(all))),
        );
        add("tokentap.entropy.mean", mean_entropy.map(Value::F64));
        add("tokentap.entropy.missing", missing.map(Value::from));
        let failure = self.failure.map(Failure::name);
        add("error.type", failure.clone().map(Value::from));
        SpanData {
            span_context: context,
            parent_span_id: parent,
            parent_span_is_remote: parent != SpanId::INVALID,
            span_kind: SpanKind::Client,
            name: model.map_or(Cow::Borrowed(operation), |model| format!("{operation} {model}").into()),
            start_time: self.started,
            end_time: self.ended,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: failure.map_or(Status::Unset, |cause| Status::error(String::from(cause))),
            instrumentation_scope: scope.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "\u{e4}".repeat(200);
        assert_eq!(bounded(long.clone().into()).len(), 256);
        assert_eq!(bounded(format!("a{long}").into()).len(), 255);
        assert_eq!(bounded("a".repeat(256).into()).len(), 256);
        assert_eq!(&*shared_bounded("short".into()), "short");
    }

    #[test]
    fn first_cause_stays() {
        let slot = FailureSlot::default();
        slot.set(Failure::of_code(Some(503)));
        slot.set(Failure::Disconnected);
        assert_eq!(slot.0.get(), Some(&Failure::Status(StatusCode::SERVICE_UNAVAILABLE)));
        for code in [None, Some(7), Some(1 << 40)] {
            assert_eq!(Failure::of_code(code), Failure::Unnamed, "{code:?}");
        }
    }
}
