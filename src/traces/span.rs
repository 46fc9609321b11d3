// SPDX-License-Identifier: Apache-2.0
//! The span of a generation, with the attributes of OpenTelemetry's conventions for generative AI and those of tokentap.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tokio::time::Instant;

use super::Traces;

/// The finish reasons of a span. A request may ask for a million samples.
const FINISHES: usize = 64;

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

/// The place of a span in its trace, and the generation that it is about.
#[derive(Debug)]
pub(super) struct SpanIdentity {
    pub(super) context: SpanContext,
    /// Invalid for the root of a trace.
    pub(super) parent: SpanId,
    pub(super) session: Arc<str>,
    pub(super) operation: Operation,
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
    failure: Option<Cow<'static, str>>,
}

/// What is known of a generation once it has ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SpanOutcome {
    /// The served model or the adapter.
    pub model: Option<Arc<str>>,
    /// The id of the request.
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
    failure: Option<Cow<'static, str>>,
    outcome: SpanOutcome,
}

impl GenerationSpan {
    /// Begins a span now.
    pub(super) fn new(traces: Arc<Traces>, identity: SpanIdentity) -> Self {
        let started = (SystemTime::now(), Instant::now());
        Self { traces, identity, started, ended: None, finishes: Vec::new(), failure: None }
    }

    /// Records that a sequence ended `now`. Later than the first 64, a sequence has no finish reason in the span.
    pub(crate) fn finish(&mut self, reason: Cow<'static, str>, now: Instant) {
        self.ended = Some(now);
        if self.finishes.len() < FINISHES {
            self.finishes.push(reason);
        }
    }

    /// Records why the generation failed. The first cause stays.
    pub(crate) fn fail(&mut self, cause: impl Into<Cow<'static, str>>) {
        self.failure.get_or_insert_with(|| cause.into());
    }

    /// Ends the span, and queues it for the collector. A generation that failed ends now, another one with its last sequence.
    pub(crate) fn end(self, outcome: SpanOutcome) {
        let (started, began) = self.started;
        let ended = self.ended.filter(|_| self.failure.is_none()).unwrap_or_else(Instant::now);
        self.traces.queue(EndedSpan {
            identity: self.identity,
            started,
            // the wall clock may have been set
            ended: started + ended.saturating_duration_since(began),
            finishes: self.finishes,
            failure: self.failure,
            outcome,
        });
    }
}

impl EndedSpan {
    /// The span as the exporter encodes it.
    pub(super) fn data(self, scope: &InstrumentationScope) -> SpanData {
        let SpanOutcome { model, rid, tokens, mean_entropy, missing } = self.outcome;
        let SpanIdentity { context, parent, session, operation } = self.identity;
        let operation = operation.name();
        let mut attributes = vec![
            KeyValue::new("gen_ai.operation.name", operation),
            KeyValue::new("gen_ai.provider.name", "sglang"),
            KeyValue::new("gen_ai.conversation.id", session),
        ];
        let mut add = |key: &'static str, value: Option<Value>| {
            attributes.extend(value.map(|value| KeyValue::new(key, value)));
        };
        let count = |tokens: u64| Value::I64(i64::try_from(tokens).unwrap_or(i64::MAX));
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
        let failure = self.failure.map(StringValue::from);
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
