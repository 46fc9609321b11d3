//! Runs generations: everything between the decoding of a request and the encoding of its events.
//!
//! A request is checked, planned and sent; its reply is parsed once, measured and recorded. If the client disconnects, the generation is
//! aborted. If it retries a call, it gets the reply of the first attempt.

mod engine_chat;

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::active::{ABORT_TIMEOUT, ActiveGeneration};
use super::buffered::{BufferedReply, collect};
use super::capture::Capture;
use super::context::GenerationContext;
use super::entropy_request::entropy_request;
use super::event::{EventAccess, GenerationEvent, UnparsedReason};
use super::events::{Events, Generation};
use super::in_flight::InFlight;
use super::log_wait::{self};
use super::recorder::{RecordContext, Recorder};
use super::request::{GenerationRequest, RequestHead, RequestId, Source};
use super::retries::{AttemptContext, Retries, RetryKey};
use super::session_limits;
use super::settings::EntropyMode;
use super::stream::EventStream;
use super::uncaptured::UncapturedGenerations;
use crate::budget::{Stopped, Work};
use crate::engine::capabilities::Capabilities;
use crate::engine::plan::{FailuresSinceProbe, GuardLimits, GuardRefusal, Plan, PlanInputs, RequestShape};
use crate::engine::reason::Reason;
use crate::engine::sglang::guard;
use crate::engine::sglang::request::GenerateRequest;
use crate::engine::sglang::routes::{self, Route};
use crate::engine::sglang::tokenize::TextPrompt;
use crate::engine::transport::client::Reply;
use crate::engine::transport::headers;
use crate::engine::upstream::{failed, send};
use crate::error::Error;
use crate::long_work::{BodyLength, on_body};
use crate::session::{self, Chat, Fault, Policy, Sessions};

/// The reply header that names the session.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-tokentap-session");

/// Pauses, in milliseconds, before a refused id is sent again: the engine answers an abort at once, but frees the id some scheduler steps
/// later.
const RID_RETRY_PAUSES_MS: [u64; 5] = [20, 40, 80, 160, 320];

/// The shared state of all generations.
#[derive(Debug)]
pub struct Generator {
    /// What a running generation uses.
    pub context: Arc<GenerationContext>,
    pub(super) sessions: Arc<Sessions>,
    /// Which policy samples.
    pub policy: Arc<Policy>,
    /// The capabilities that the probe found.
    upstream: watch::Receiver<Arc<Capabilities>>,
    /// Calls of named sessions that are running, or whose replies were not delivered.
    pub retries: Retries,
    /// Counts generations whose tokens are not captured.
    pub(crate) uncaptured: Arc<UncapturedGenerations>,
    /// Shapes of requests that the engine refused when forced, until the next probe. The lock is held for one lookup.
    refused: Mutex<HashSet<RequestShape>>,
}

impl Generator {
    /// Creates a generator.
    #[must_use]
    pub fn new(
        context: GenerationContext,
        sessions: Arc<Sessions>,
        policy: Arc<Policy>,
        upstream: watch::Receiver<Arc<Capabilities>>,
        retries: Retries,
    ) -> Self {
        let uncaptured = Arc::new(UncapturedGenerations::new(Arc::clone(&sessions), Arc::clone(&context.metrics)));
        Self { context: Arc::new(context), sessions, policy, upstream, retries, uncaptured, refused: Mutex::default() }
    }

    /// Runs a generation, or joins the one that a retry repeats. `rid` is set to the request's id before the request is sent.
    ///
    /// # Errors
    /// The answer for the client, if the engine did not answer.
    pub async fn run(
        self: &Arc<Self>,
        request: GenerationRequest,
        source: Source,
        rid: &OnceLock<RequestId>,
    ) -> Result<Generation, Error> {
        let Some(retry) = request.retry else {
            let known = RequestId::default();
            // never set before: a request is run once
            let _ = rid.set(Arc::clone(&known));
            return self.perform(request, source, None, &known).await;
        };
        let key = RetryKey {
            session: Arc::clone(&request.session),
            method: request.head.method.clone(),
            target: request.head.target.clone(),
            authorization: [request.authorization.clone(), request.head.headers.get("x-api-key").cloned()],
            rid: request.header_rid.clone(),
            body: source.body().clone(),
            digest: retry.digest,
            reads: request.reads,
            sglext: source.sglext(),
        };
        let idle = self.context.settings.session_idle;
        let (mut reader, outcome) = self.retries.enter(key, retry.is_marked, idle, |context| {
            let generator = Arc::clone(self);
            Box::pin(async move {
                let known = Arc::clone(&context.rid);
                let generation = generator.perform(request, source, Some(context), &known).await;
                generation.unwrap_or_else(|error| Generation::failed(error, None))
            })
        });
        let _ = rid.set(Arc::clone(reader.rid()));
        if let Some(label) = outcome.label() {
            self.context.metrics.retries.with_label_values(&[label]).inc();
        }
        let head = reader.head().await;
        Ok(Generation { head, events: Events::Shared(reader) })
    }

    /// Forgets refused shapes before the engine is probed again.
    pub fn forget_refusals(&self) {
        self.refused.lock().clear();
    }

    /// Failures since the last probe, of requests of this shape and of the plugin.
    fn since(&self, shape: RequestShape) -> FailuresSinceProbe {
        FailuresSinceProbe {
            refused: self.refused.lock().contains(&shape),
            plugin_failed: self.context.plugin_failed.load(Ordering::Relaxed),
        }
    }

    /// Remembers that the engine fails on this shape when logprobs are forced.
    fn refuse(&self, shape: RequestShape) {
        self.refused.lock().insert(shape);
    }

    /// Sends the request. `attempt` links the call to its retries. `known` is set to the request's id before sending.
    async fn perform(
        self: &Arc<Self>,
        request: GenerationRequest,
        source: Source,
        attempt: Option<AttemptContext>,
        known: &RequestId,
    ) -> Result<Generation, Error> {
        let records = self.context.settings.records;
        if records {
            session_limits::check(self.context.settings.session, &self.sessions, &request.session, source.turns())?;
        }
        let name = HeaderValue::try_from(&*request.session).ok().filter(|_| records);
        let mut generation = match source {
            Source::Generate { request: generate, chat } => {
                let (reply, active) = self.ask(&request, (generate, chat), attempt, known).await?;
                self.finish(reply, active, request.reads).await?
            }
            Source::EngineChat(chat) => self.perform_chat(request, *chat, attempt, known).await?,
        };
        if let Some(name) = name {
            generation.head.headers.insert(SESSION, name);
        }
        Ok(generation)
    }

    /// Plans a request for /generate and sends it.
    async fn ask(
        &self,
        request: &GenerationRequest,
        (generate, chat): (Box<GenerateRequest>, Option<Box<Chat>>),
        attempt: Option<AttemptContext>,
        known: &RequestId,
    ) -> Result<(Reply, ActiveGeneration), Error> {
        let upstream = Arc::clone(&self.upstream.borrow());
        let GenerationRequest { head, work, .. } = request;
        let assign_rid = request.header_rid.is_none();
        let record = self.context.settings.records;
        let length = BodyLength::Request(generate.bytes.len());
        let plan = on_body(length, || self.plan(&upstream, &generate, assign_rid, work)).await?;
        if let Some(rid) = plan.rid.clone().or_else(|| plan.rids.first().map(|(rid, _)| rid.clone())) {
            // never set before: an attempt has one plan
            let _ = known.set(rid);
        }
        if let (true, Some(reason)) =
            (self.context.settings.is_strict && plan.entropy_request.wanted, plan.unavailable_reason())
        {
            return Err(Error::Strict { reason: reason.name().to_owned() });
        }
        let is_repeat = attempt.as_ref().is_some_and(|attempt| attempt.is_repeat);
        let mut flight = self.reserve_rids(&plan, is_repeat).await?;
        if plan.rids.len() < plan.items.len() * plan.n {
            // without an assigned id the client's header has one, which the engine may use
            flight.add_unknown_rids(!assign_rid);
        }
        // an id that tokentap assigns is never used twice
        let engine_may_hold_rid = is_repeat && (!assign_rid || !generate.rids().is_empty());
        let recorder = || {
            let context = RecordContext::of(&generate, &upstream, Arc::clone(&self.policy));
            self.recorder(request, RecordContext { chat, ..context }, attempt)
        };
        let recorder = if record { Some(on_body(length, recorder).await) } else { None };
        let mut prompts = record.then(|| TextPrompt::of(&generate)).flatten();
        let own_echo = generate.return_prompt_token_ids && upstream.echoes_prompt;
        let echoed = plan.echo || own_echo;
        if let Some(text) = prompts.as_mut().filter(|_| !echoed) {
            match text.reserve(work) {
                // the generation itself has room, so only the prompt of the record is left out
                Err(Stopped::TooLarge { .. }) => prompts = None,
                reserved => reserved?,
            }
        }
        drop(generate);
        let capture = Capture::new(plan, flight, recorder, Arc::clone(&self.context), &upstream);
        let mut active = ActiveGeneration::new(capture, request.authorization.clone());
        let asked = self.send_to_engine((routes::GENERATE, head), &mut active, engine_may_hold_rid);
        let (reply, prompts) = match prompts {
            // the reply will echo them, unless the request is sent again without the echo
            Some(mut prompts) if echoed => {
                let reply = asked.await?;
                let echoes = own_echo || active.capture().plan().echo;
                let asks = !echoes && prompts.reserve(work).is_ok();
                (reply, if asks { Box::pin(prompts.tokenize(&self.context.engines.any())).await? } else { None })
            }
            // on the heap, because few requests need it and its state is large
            Some(prompts) => {
                let engine = self.context.engines.any();
                tokio::try_join!(asked, Box::pin(prompts.tokenize(&engine)))?
            }
            None => (asked.await?, None),
        };
        if let (Some(prompts), Some(recorder)) = (prompts, active.capture_mut().recorder()) {
            recorder.set_prompt_ids(prompts);
        }
        Ok((reply, active))
    }

    /// Creates the recorder of the reply.
    fn recorder(
        &self,
        request: &GenerationRequest,
        mut context: RecordContext,
        attempt: Option<AttemptContext>,
    ) -> Recorder {
        context.labels = request.labels.clone();
        context.engine = self.context.engines.single();
        let mut call = session::Call::new(Arc::clone(&self.sessions), Arc::clone(&request.session));
        if request.is_last {
            call.mark_last();
        }
        if let Some(attempt) = attempt {
            if request.retry.is_some_and(|retry| retry.is_marked) && !attempt.is_repeat {
                call.mark_retry();
            }
            call.track_turns(attempt.turns, attempt.superseded);
        }
        Recorder::new(call, context)
    }

    /// Checks a request with the guard and plans it.
    fn plan(
        &self,
        upstream: &Capabilities,
        request: &GenerateRequest,
        assign_rid: bool,
        work: &Work,
    ) -> Result<Plan, Error> {
        let settings = &self.context.settings;
        let product = upstream.product_or_sglang();
        let limits = settings.entropy.limits;
        if settings.is_guarded {
            let limits = GuardLimits {
                generates: upstream.generates,
                vocab_size: upstream.vocab_size,
                max_top_logprobs: upstream.max_top_logprobs(limits.max_top_logprobs),
            };
            product.check(request, limits).map_err(|refusal| self.refused(refusal))?;
        }
        let shape = product.shape(request);
        let inputs = PlanInputs {
            entropy_request: entropy_request(request, &settings.entropy)?,
            is_always_wanted: settings.entropy.mode == EntropyMode::Always,
            limits,
            assigns_rid: assign_rid,
            records: settings.records,
            shape,
            failures: self.since(shape),
        };
        let mut plan = product.plan(request, upstream, inputs);
        if plan.body.as_ptr() != request.bytes.as_ptr() {
            // the budget has counted the request already; this is a copy
            plan.body = work.take(plan.body.len())?.hold(plan.body);
        }
        Ok(plan)
    }

    /// Reserves the request's ids. Unless the guard is off, none of them may be in flight. After a disconnected attempt (`is_repeat`) it
    /// first waits for that attempt's aborts to release them.
    async fn reserve_rids(&self, plan: &Plan, is_repeat: bool) -> Result<InFlight, Error> {
        let rids: Vec<Arc<str>> = plan.rids.iter().map(|(rid, _)| rid.clone()).collect();
        let flights = &self.context.flights;
        if is_repeat {
            let mut aborting = self.context.aborting.subscribe();
            let free = aborting.wait_for(|_| !rids.iter().any(|rid| flights.is_live(rid)));
            // the outcome of the wait does not matter: the next lines check again
            let _ = tokio::time::timeout(ABORT_TIMEOUT, free).await;
        }
        if !self.context.settings.is_guarded {
            return Ok(flights.start(rids));
        }
        flights.try_start(&rids).map_err(|live| self.refused(guard::rid_in_use(&live.0)))
    }

    fn refused(&self, refusal: GuardRefusal) -> Error {
        self.context.metrics.refused.with_label_values(&[refusal.rule]).inc();
        Error::bad_request(refusal.message)
    }

    /// Sends the request, and sends it again without forced logprobs if those may have made it fail. If `engine_may_hold_rid`, a refusal
    /// may mean that the engine has not yet freed the id of an earlier attempt.
    async fn send_to_engine(
        &self,
        (route, head): (Route, &RequestHead),
        active: &mut ActiveGeneration,
        engine_may_hold_rid: bool,
    ) -> Result<Reply, Error> {
        active.mark_sent();
        let mut pauses = RID_RETRY_PAUSES_MS.iter().filter(|_| engine_may_hold_rid);
        let first = loop {
            let reply = send(
                &self.context.client,
                &self.context.metrics,
                route,
                head.call(active.capture().plan().body.clone()),
            )
            .await;
            let reply = reply.inspect_err(|_| active.mark_ended())?;
            match pauses.next().filter(|_| reply.status() == StatusCode::BAD_REQUEST) {
                Some(pause) => tokio::time::sleep(Duration::from_millis(*pause)).await,
                None => break reply,
            }
        };
        let status = first.status();
        let forced = active.capture().plan().unforced.is_some();
        if !forced || !matches!(status, StatusCode::BAD_REQUEST | StatusCode::INTERNAL_SERVER_ERROR) {
            return Ok(first);
        }
        self.context.metrics.unforced_retries.with_label_values(&[status.as_str()]).inc();
        let is_renamed = active.capture_mut().give_up(Reason::Refused);
        let plan = active.capture_mut().plan_mut();
        // an engine may keep the client's id when it refuses a request (SGLang 0.5.12); a second refusal is then about the id
        let keeps_id = status == StatusCode::BAD_REQUEST && !is_renamed && !plan.rids.is_empty();
        let refusal = keeps_id.then_some(first);
        // it replaces the forced body, so no room is asked for
        plan.body = self.context.budget.hold(std::mem::take(&mut plan.body));
        let second =
            send(&self.context.client, &self.context.metrics, route, head.call(active.capture().plan().body.clone()))
                .await;
        let second = second.inspect_err(|_| active.mark_ended())?;
        if let Some(refusal) = refusal.filter(|_| second.status() == StatusCode::BAD_REQUEST) {
            return Ok(refusal);
        }
        let shape = active.capture().plan().shape;
        if status == StatusCode::INTERNAL_SERVER_ERROR && second.status().is_success() && shape.is_delicate() {
            tracing::warn!(
                ?shape,
                "the engine fails on requests of this shape when logprobs are forced; they are not forced until the next probe"
            );
            self.refuse(shape);
        }
        Ok(second)
    }

    async fn finish(
        &self,
        reply: Reply,
        mut active: ActiveGeneration,
        reads: EventAccess,
    ) -> Result<Generation, Error> {
        let (mut head, body) = reply.into_parts();
        headers::end_hop(&mut head.headers);
        if head.status != StatusCode::OK {
            active.mark_ended();
            active.capture_mut().fail(head.status);
            return Ok(Generation::unparsed(head, &self.context.metrics, Bytes::new(), body));
        }
        active.capture_mut().plan_mut().drop_bodies();
        let limit = self.context.settings.entropy.limits.max_reply_bytes;
        if active.capture().is_chat() && head.headers.contains_key(header::CONTENT_ENCODING) {
            // its ids cannot be read
            active.capture_mut().cut(Fault::Unreadable);
            return Ok(Generation::of_active(head, active, body));
        }
        if headers::is_event_stream(&head.headers) {
            head.headers.remove(header::CONTENT_LENGTH);
            let stream = EventStream::new(body, active, reads, limit);
            return Ok(Generation { head, events: Events::Stream(Box::new(stream)) });
        }
        if reads == EventAccess::Bytes && !active.capture().reads_reply() {
            return Ok(Generation::of_active(head, active, body));
        }
        let strict = self.context.settings.is_strict && active.capture().plan().entropy_request.wanted;
        let reply = match collect(body, &head.headers, limit, self.context.budget.reply()).await {
            Ok(reply) => reply,
            Err(failure) => {
                active.mark_ended();
                return Err(failed(&self.context.metrics, failure));
            }
        };
        active.mark_ended();
        let body = match reply {
            BufferedReply::All(bytes) => bytes,
            BufferedReply::Passing { reason, .. } if strict => {
                return Err(Error::Strict { reason: reason.name().to_owned() });
            }
            BufferedReply::Passing { reason, head: read, rest } => {
                active.capture().skip(reason);
                active.capture_mut().incomplete();
                return Ok(Generation::unparsed(head, &self.context.metrics, read, rest));
            }
        };
        let (event, is_readable) = on_body(BodyLength::Reply(body.len()), || {
            let event = |parsed| GenerationEvent::whole(body.clone(), parsed, reads);
            match active.guarded(|capture| capture.reply(&body, reads).map(event)) {
                Some(event) => (event, true),
                // a failure of tokentap loses entropies, not text
                None => match GenerationEvent::outline(body.clone(), reads) {
                    Ok(event) => (event, false),
                    Err(_) => (GenerationEvent::unparsed(body.clone(), UnparsedReason::Unreadable), false),
                },
            }
        })
        .await;
        if !is_readable {
            active.capture_mut().cut(Fault::Unreadable);
            active.capture_mut().incomplete();
        }
        let is_confirmed = active.wait_until_durable().await;
        let observed = *active.capture().observed();
        if !is_confirmed {
            return Ok(Generation::failed(log_wait::unconfirmed(), Some(observed)));
        }
        if strict {
            // a 200 without a finished sequence is not a reply to this request
            let unread = !is_readable || observed.finished == 0 && !active.capture().plan().items.is_empty();
            let missing = if unread { Some(Reason::Unreadable) } else { observed.missing };
            if let Some(reason) = missing {
                let error = Error::Strict { reason: reason.name().to_owned() };
                return Ok(Generation::failed(error, Some(observed)));
            }
        }
        let event = event.counted(&body, |changed| self.context.budget.hold(changed));
        head.headers.remove(header::CONTENT_LENGTH);
        Ok(Generation { head, events: Events::Whole { event: Some(Arc::new(event)), observed: Some(observed) } })
    }
}
