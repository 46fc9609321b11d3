// SPDX-License-Identifier: Apache-2.0
//! Runs generations, between the decoding of a request and the encoding of its events: [`plan`] checks and plans a request, [`send`] sends
//! it, and [`receive`] begins to read its reply, which is parsed once, measured and recorded.
//!
//! If the client disconnects, the generation is aborted. If it retries a call, it gets the reply of the first attempt.

mod columns;
mod plan;
mod receive;
mod send;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::begin_limit::BeginLimit;
use super::context::GenerationContext;
use super::event::{EventAccess, EventKind};
use super::events::{Events, Generation};
use super::request::{ChatKind, ClientCall, EngineChat, GenerationRequest, RequestId, RidSlot, Source};
use super::retries::{AttemptContext, Retries, RetryKey};
use super::uncaptured::UncapturedGenerations;
use crate::engine::capabilities::Capabilities;
use crate::engine::plan::{FailuresSinceProbe, GuardRefusal, RequestShape};
use crate::error::Error;
use crate::session::{Policy, SessionError, Sessions};
use crate::traces::{Failure, Operation, SpanSubject, UnsentSpan};

/// The reply header that names the session.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-tokentap-session");

/// What is known about the engine.
#[derive(Debug)]
pub struct EngineReceivers {
    /// The capabilities that the probe found.
    pub capabilities: watch::Receiver<Arc<Capabilities>>,
    /// The settings of its image processor, JSON text, if they are known.
    pub image_settings: watch::Receiver<Option<Arc<str>>>,
}

/// The shared state of all generations.
#[derive(Debug)]
pub struct Generator {
    /// What a running generation uses.
    pub context: Arc<GenerationContext>,
    sessions: Arc<Sessions>,
    /// Which policy samples.
    pub policy: Arc<Policy>,
    /// The capabilities that the probe found.
    upstream: watch::Receiver<Arc<Capabilities>>,
    /// The settings of the engine's image processor, which turns with pictures get.
    image_settings: watch::Receiver<Option<Arc<str>>>,
    /// Calls of named sessions that are running, or whose replies were not delivered.
    pub retries: Retries,
    /// Counts generations whose tokens are not captured.
    pub(crate) uncaptured: Arc<UncapturedGenerations>,
    /// Shapes of requests that the engine refused when forced, until the next probe. The lock is held for one lookup.
    refused_shapes: Mutex<HashSet<RequestShape>>,
}

impl Generator {
    /// Creates a generator.
    #[must_use]
    pub fn new(
        context: GenerationContext,
        sessions: Arc<Sessions>,
        policy: Arc<Policy>,
        engine: EngineReceivers,
        retries: Retries,
    ) -> Self {
        let uncaptured = Arc::new(UncapturedGenerations::new(Arc::clone(&sessions), Arc::clone(&context.metrics)));
        let refused_shapes = Mutex::default();
        let (upstream, image_settings) = (engine.capabilities, engine.image_settings);
        let context = Arc::new(context);
        Self { context, sessions, policy, upstream, image_settings, retries, uncaptured, refused_shapes }
    }

    /// Runs a generation, or joins the one that a retry repeats. `rid` is set to the request's id before the request is sent.
    ///
    /// # Errors
    /// The error for the client, if the engine did not reply.
    pub async fn run(self: &Arc<Self>, mut request: GenerationRequest, rid: &RidSlot) -> Result<Generation, Error> {
        let GenerationRequest { source, call } = &mut request;
        // two equal calls with the same id are retries of one call
        call.signals.is_retry |= call.signals.rid.is_some() || source.has_rid();
        let is_retry = call.signals.is_retry;
        if !call.is_named || !self.context.settings.records {
            return self.run_attempt(request, None, rid.own()).await;
        }
        // a recorded stream is parsed
        if call.reads == EventAccess::Pieces {
            call.reads = EventAccess::Bytes;
        }
        let key = RetryKey::new(&request);
        let idle = self.context.settings.session_idle;
        let (mut reader, outcome) = self.retries.enter(key, is_retry, idle, |attempt| {
            let generator = Arc::clone(self);
            Box::pin(async move {
                let known = Arc::clone(&attempt.rid);
                let generation = generator.run_attempt(request, Some(attempt), &known).await;
                generation.unwrap_or_else(|error| Generation::failed(error, None))
            })
        });
        rid.share(reader.rid());
        if let Some(label) = outcome.label() {
            self.context.metrics.retries.with_label_values(&[label]).inc();
        }
        let head = reader.head().await;
        Ok(Generation { head, events: Events::Shared(reader) })
    }

    /// Plans a request, sends it, and reads the beginning of its reply. `attempt` links the call to its retries. `rid` is set to the
    /// request's id before sending.
    async fn run_attempt(
        self: &Arc<Self>,
        request: GenerationRequest,
        attempt: Option<AttemptContext>,
        rid: &RequestId,
    ) -> Result<Generation, Error> {
        let GenerationRequest { source, mut call } = request;
        if let Some(traces) = &self.context.traces {
            let subject = self.span_subject(&call, &source);
            call.span = UnsentSpan::new(traces.begin(&mut call.head.headers, subject));
        }
        self.admit(&call, &source).await.inspect_err(|error| call.span.refuse(error.status()))?;
        let records = self.context.settings.records;
        let session = HeaderValue::try_from(&*call.session).ok().filter(|_| records);
        let mut generation = match source {
            Source::Generate { request, chat } => {
                let limit = Some(self.context.settings.image_timeout);
                let limit = limit.filter(|limit| !limit.is_zero() && request.has_media());
                let planned = self.plan_generate(&call, request, chat, attempt, rid).await;
                let mut planned = planned.inspect_err(|error| call.span.refuse(error.status()))?;
                planned.active.capture_mut().set_span(call.span.take());
                let mut limit = limit.map(BeginLimit::new);
                let (reply, active) = match &mut limit {
                    None => self.send(&call, planned).await?,
                    Some(limit) => {
                        let failure = planned.active.capture().failure().cloned().unwrap_or_default();
                        let mut sending = Box::pin(self.send(&call, planned));
                        let sent = limit.head(&mut sending).await;
                        // before the generation is dropped, which is the client's leaving otherwise
                        sent.inspect_err(|error| failure.set(Failure::Status(error.status())))?
                    }
                };
                let mut generation = self.receive(reply, active, call.reads, call.head).await?;
                if let (Some(limit), Events::Stream(stream)) = (limit, &mut generation.events) {
                    stream.set_begin_limit(limit);
                }
                generation
            }
            Source::EngineChat(chat) => self.run_chat(call, *chat, attempt, rid).await?,
        };
        if let Some(session) = session {
            generation.head.headers.insert(SESSION, session);
        }
        Ok(generation)
    }

    /// Waits while the engine is paused, and checks whether the session takes the turns of a call.
    async fn admit(&self, call: &ClientCall, source: &Source) -> Result<(), Error> {
        let Self { context, policy, sessions, .. } = self;
        let limit = context.settings.pause_wait;
        if !limit.is_zero() && policy.is_paused() {
            Box::pin(context.interruptions.wait_while_paused(policy, limit, &context.metrics)).await?;
        }
        if context.settings.records {
            context.settings.session.check(sessions, &call.session, source.turns())?;
            if call.is_named && !call.tags.is_empty() {
                Box::pin(check_tags(sessions, call)).await?;
            }
        }
        Ok(())
    }

    /// Runs a chat of the engine's own endpoint. The head of a stream whose events all come at the end does not wait for the engine.
    async fn run_chat(
        self: &Arc<Self>,
        call: Box<ClientCall>,
        mut chat: EngineChat,
        attempt: Option<AttemptContext>,
        rid: &RequestId,
    ) -> Result<Generation, Error> {
        // an id that tokentap assigns is never used twice
        let may_hold_rid = attempt.as_ref().is_some_and(|attempt| attempt.is_repeat) && chat.rid.is_some();
        chat.assign_rid();
        if let Some(known) = &chat.rid {
            // never set before: an attempt has one chat
            let _ = rid.set(Arc::clone(known));
        }
        if !chat.is_deferred() {
            return self.finish_chat(call, chat, attempt, may_hold_rid).await;
        }
        let generator = Arc::clone(self);
        let pending = async move { generator.finish_chat(call, chat, attempt, may_hold_rid).await };
        Ok(Generation::deferred(pending, self.context.budget.reply()))
    }

    async fn finish_chat(
        &self,
        mut call: Box<ClientCall>,
        chat: EngineChat,
        attempt: Option<AttemptContext>,
        may_hold_rid: bool,
    ) -> Result<Generation, Error> {
        let kind = chat.kind;
        let planned = self.plan_chat(&call, chat, attempt, may_hold_rid).await;
        let mut planned = planned.inspect_err(|error| call.span.refuse(error.status()))?;
        planned.active.capture_mut().set_span(call.span.take());
        let (reply, active) = self.send(&call, planned).await?;
        let generation = self.receive(reply, active, call.reads, call.head).await?;
        let needs_ids = kind != ChatKind::PassedThrough && generation.head.status == StatusCode::OK;
        match &generation.events {
            _ if !needs_ids => Ok(generation),
            Events::Whole { event: Some(event), .. } if has_ids(&event.kind) => Ok(generation),
            _ => Err(Error::NoTokenIds),
        }
    }

    /// What the span of a generation is about.
    fn span_subject(&self, call: &ClientCall, source: &Source) -> SpanSubject {
        let (operation, adapter) = match source {
            Source::Generate { request, chat: None } => (Operation::Completion, request.common_adapter()),
            Source::Generate { request, .. } => (Operation::Chat, request.common_adapter()),
            Source::EngineChat(chat) => (Operation::Chat, chat.lora_path.clone()),
        };
        let has_session = self.context.settings.records || call.is_named;
        SpanSubject { operation, session: has_session.then(|| Arc::clone(&call.session)), adapter }
    }

    /// Forgets refused shapes before the engine is probed again.
    pub fn forget_refusals(&self) {
        self.refused_shapes.lock().clear();
    }

    /// Failures since the last probe, of requests of this shape and of the plugin.
    fn failures_since_probe(&self, shape: RequestShape) -> FailuresSinceProbe {
        FailuresSinceProbe {
            refused: self.refused_shapes.lock().contains(&shape),
            plugin_failed: self.context.plugin_failed.load(Ordering::Relaxed),
        }
    }

    /// Counts a refusal of the guard, and converts it to the error for the client.
    fn guard_error(&self, refusal: GuardRefusal) -> Error {
        self.context.metrics.refused.with_label_values(&[refusal.rule]).inc();
        Error::bad_request(refusal.message)
    }
}

/// Whether a consumer of fields can read the ids of a reply, or its error.
fn has_ids(event: &EventKind) -> bool {
    match event {
        EventKind::Outputs(outputs) => outputs.iter().any(|output| output.chunk.meta.is_some()),
        EventKind::Failed(_) => true,
        EventKind::Done | EventKind::Unparsed(_) | EventKind::Trailers(_) | EventKind::Refused(_) => false,
    }
}

/// Checks the tags that a call gives to its session.
async fn check_tags(sessions: &Sessions, call: &ClientCall) -> Result<(), Error> {
    sessions.check_call_tags(&call.session, &call.tags).await.map_err(|error| {
        let message = format!("session {:?}: {error}", call.session);
        match error {
            SessionError::TagsFrozen => Error::Frozen { message },
            _ => Error::BadRequest { message },
        }
    })
}
