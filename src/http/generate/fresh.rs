//! One generation, from its plan to the head of its reply.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::SESSION;
use crate::error::Error;
use crate::generation::capture::Capture;
use crate::generation::event::{GenerationEvent, Reads, Unparsed};
use crate::generation::flight::Flight;
use crate::generation::guard::{self, Bounds, Refusal};
use crate::generation::plan::{Context, Plan};
use crate::generation::reason::Reason;
use crate::generation::record::{Asked, Recorder};
use crate::http::attempt::Ties;
use crate::http::body::Forwarded;
use crate::http::events::{Events, Generation};
use crate::http::forward::{failed, send};
use crate::http::long_work::on_body;
use crate::http::prompts::Prompts;
use crate::http::running::{ABORT, Running};
use crate::http::stream::EventStream;
use crate::http::whole::{Whole, collect};
use crate::http::{Parts, headers, room};
use crate::sglang::client::{Call, Failure, Reply, UploadError};
use crate::sglang::probe::Capabilities;
use crate::sglang::request::GenerateRequest;
use crate::sglang::routes;
use crate::trajectory::{self, Chat, Fault};

/// Pauses, in milliseconds, before an engine is asked again that may still know an id which was aborted: it answers an abort when it has heard it, and
/// lets go of the id some steps later.
const LINGERING: [u64; 5] = [20, 40, 80, 160, 320];

/// What of a request goes upstream again and again.
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) target: String,
    pub(super) headers: HeaderMap,
}

impl Head {
    pub(super) fn call(&self, body: Bytes) -> Call {
        Call::whole(self.method.clone(), self.target.clone(), self.headers.clone(), body)
    }
}

/// A generation that has not been asked for yet.
pub(super) struct Fresh {
    pub(super) head: Head,
    pub(super) request: GenerateRequest,
    pub(super) session: Arc<str>,
    /// What its turns remember, where they are of a chat.
    pub(super) chat: Option<Box<Chat>>,
    /// Nothing follows in this session.
    pub(super) is_last: bool,
    /// The client's own key.
    pub(super) authorization: Option<HeaderValue>,
    /// A request without an id may be given one.
    pub(super) assign_rid: bool,
    /// What is read of its events.
    pub(super) reads: Reads,
}

impl Fresh {
    /// Asks the engine; `named` is told the request's id before.
    ///
    /// # Errors
    /// What the client is told when the engine's own answer cannot be given.
    pub(super) async fn perform(
        self,
        parts: &Arc<Parts>,
        ties: Option<Ties>,
        named: impl FnOnce(Option<String>),
    ) -> Result<Generation, Error> {
        let upstream = Arc::clone(&parts.upstream.borrow());
        let record = parts.config.sessions.record;
        if record {
            let new = self.request.batch().unwrap_or(1).saturating_mul(self.request.n());
            room::check(parts, &self.session, new)?;
        }
        let length = self.request.bytes.len();
        let plan = on_body(length, || plan(parts, &upstream, &self.request, self.assign_rid)).await?;
        named(plan.rid.clone().or_else(|| plan.rids.first().map(|(rid, _)| rid.clone())));
        if let (true, Some(reason)) = (parts.config.entropy.strict && plan.wish.wanted, plan.hopeless()) {
            return Err(Error::Strict { reason: reason.name().to_owned() });
        }
        let again = ties.as_ref().is_some_and(|ties| ties.again);
        let mut flight = take_off(parts, &plan, again).await?;
        if plan.rids.len() < plan.items.len() * plan.n {
            // where none is assigned a header has one, which the engine may take
            flight.hide(!self.assign_rid);
        }
        // an id of ours is never used twice
        let lingers = again && (!self.assign_rid || !self.request.rids().is_empty());
        let recorder = match record {
            true => Some(on_body(length, || self.recorder(parts, &upstream, ties)).await),
            false => None,
        };
        let prompts = record.then(|| Prompts::of(&self.request)).flatten();
        let own_echo = self.request.return_prompt_token_ids && upstream.echoes_prompt;
        let echoed = plan.echo || own_echo;
        let Self { head, request, session, authorization, reads, .. } = self;
        drop(request);
        let capture = Capture::new(plan, flight, recorder, Arc::clone(&parts.tools), &upstream);
        let mut running = Running::new(Arc::clone(parts), capture, authorization);
        let asked = ask(parts, &head, &mut running, lingers);
        let (reply, prompts) = match prompts {
            // the reply will say them, unless the engine refuses what it was asked besides
            Some(prompts) if echoed => {
                let reply = asked.await?;
                let echoes = own_echo || running.capture().plan().echo;
                (reply, if echoes { None } else { prompts.tokenize(parts).await? })
            }
            Some(prompts) => tokio::try_join!(asked, prompts.tokenize(parts))?,
            None => (asked.await?, None),
        };
        if let (Some(prompts), Some(recorder)) = (prompts, running.capture_mut().recorder()) {
            recorder.tokenized(prompts);
        }
        let mut generation = finish(parts, reply, running, reads).await?;
        if record && let Ok(name) = HeaderValue::try_from(&*session) {
            generation.head.headers.insert(SESSION, name);
        }
        Ok(generation)
    }

    /// What records the reply.
    fn recorder(&self, parts: &Parts, upstream: &Capabilities, ties: Option<Ties>) -> Recorder {
        let sampled = upstream.lists_sampled_ids();
        let mut asked = Asked::of(&self.request, &upstream.model, parts.sessions.policy.epoch(), sampled);
        asked.chat = self.chat.clone();
        let mut call = trajectory::Call::new(Arc::clone(&parts.sessions), Arc::clone(&self.session));
        if self.is_last {
            call.last();
        }
        if let Some(ties) = ties {
            call.attempt(ties.turns, ties.before);
        }
        Recorder::new(call, asked)
    }
}

/// The plan of a request that the guard lets pass.
fn plan(parts: &Parts, upstream: &Capabilities, request: &GenerateRequest, assign_rid: bool) -> Result<Plan, Error> {
    let config = &parts.config.entropy;
    if !config.no_guard {
        let bounds = Bounds {
            generates: upstream.generates,
            vocab_size: upstream.vocab_size,
            max_top_logprobs: upstream.max_top_logprobs(config.max_top_logprobs),
        };
        guard::check(request, bounds).map_err(|refusal| refused(parts, refusal))?;
    }
    let record = parts.config.sessions.record;
    let max_reply_bytes = parts.config.limits.max_reply_bytes;
    let context = Context { assign_rid, record, max_reply_bytes, since: &|shape| parts.since(shape) };
    let mut plan = Plan::try_new(request, upstream, config, &context)?;
    // copies, beside the request itself, which has been let in
    plan.body = counted(parts, request, plan.body)?;
    plan.unforced = plan.unforced.map(|body| counted(parts, request, body)).transpose()?;
    Ok(plan)
}

/// A body that goes upstream, which takes of the budget where it is not the request's own bytes.
fn counted(parts: &Parts, request: &GenerateRequest, body: Bytes) -> Result<Bytes, Error> {
    if body.as_ptr() == request.bytes.as_ptr() {
        return Ok(body);
    }
    let mut share = parts.budget.request();
    if share.grow(body.len()).is_err() {
        share.shed();
        return Err(Failure::from(UploadError::NoRoom).into());
    }
    Ok(share.hold(body))
}

/// Takes the request's ids, which with the guard must not be running. Those of an attempt that was cut (`again`) are free in a moment,
/// when its aborts are through.
async fn take_off(parts: &Parts, plan: &Plan, again: bool) -> Result<Flight, Error> {
    let rids: Vec<String> = plan.rids.iter().map(|(rid, _)| rid.clone()).collect();
    let flights = &parts.tools.flights;
    if again {
        let mut aborting = parts.aborting.subscribe();
        let free = aborting.wait_for(|_| !rids.iter().any(|rid| flights.is_live(rid)));
        // whatever comes of the wait, the next lines look again
        let _ = tokio::time::timeout(ABORT, free).await;
    }
    if parts.config.entropy.no_guard {
        return Ok(flights.start(rids));
    }
    flights.try_start(&rids).map_err(|live| refused(parts, guard::live(&live)))
}

fn refused(parts: &Parts, refusal: Refusal) -> Error {
    parts.metrics.refused.with_label_values(&[refusal.rule]).inc();
    Error::bad_request(refusal.message)
}

/// Asks the engine, and once more as the client wrote it where forcing made the engine fail. With `lingers` a refusal may only mean
/// that the engine is not yet done with an attempt of the same id.
async fn ask(parts: &Arc<Parts>, head: &Head, running: &mut Running, lingers: bool) -> Result<Reply, Error> {
    running.ask();
    let mut pauses = LINGERING.iter().filter(|_| lingers);
    let first = loop {
        let reply = send(parts, routes::GENERATE, head.call(running.capture().plan().body.clone())).await;
        let reply = reply.inspect_err(|_| running.end())?;
        match pauses.next().filter(|_| reply.status() == StatusCode::BAD_REQUEST) {
            Some(pause) => tokio::time::sleep(Duration::from_millis(*pause)).await,
            None => break reply,
        }
    };
    let status = first.status();
    let forced = running.capture().plan().unforced.is_some();
    if !forced || !matches!(status, StatusCode::BAD_REQUEST | StatusCode::INTERNAL_SERVER_ERROR) {
        return Ok(first);
    }
    drop(first);
    parts.metrics.unforced_retries.with_label_values(&[status.as_str()]).inc();
    running.capture_mut().plan_mut().give_up(Reason::Refused);
    let second = send(parts, routes::GENERATE, head.call(running.capture().plan().body.clone())).await;
    let second = second.inspect_err(|_| running.end())?;
    let shape = running.capture().plan().shape;
    if status == StatusCode::INTERNAL_SERVER_ERROR && second.status().is_success() && shape.is_delicate() {
        tracing::warn!(
            ?shape,
            "the engine fails on such requests when logprobs are forced; they are not forced until the next probe"
        );
        parts.refuse(shape);
    }
    Ok(second)
}

async fn finish(parts: &Arc<Parts>, reply: Reply, mut running: Running, reads: Reads) -> Result<Generation, Error> {
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    let unparsed = |head, body| Generation { head, events: Events::Unparsed(Box::new(body)) };
    if head.status != StatusCode::OK {
        running.end();
        running.capture_mut().fail();
        return Ok(unparsed(head, Forwarded::patient(parts, Bytes::new(), body)));
    }
    running.capture_mut().plan_mut().answered();
    let limit = parts.config.limits.max_reply_bytes;
    if headers::is_event_stream(&head.headers) {
        head.headers.remove(header::CONTENT_LENGTH);
        let stream = EventStream::new(body, running, reads, limit);
        return Ok(Generation { head, events: Events::Stream(Box::new(stream)) });
    }
    if reads == Reads::Bytes && !running.capture().reads_reply() {
        return Ok(unparsed(head, Forwarded::generated(body, running)));
    }
    let strict = parts.config.entropy.strict && running.capture().plan().wish.wanted;
    let whole = match collect(body, &head.headers, limit, parts.budget.reply()).await {
        Ok(whole) => whole,
        Err(failure) => {
            running.end();
            return Err(failed(parts, failure));
        }
    };
    running.end();
    let body = match whole {
        Whole::All(bytes) => bytes,
        Whole::Passing { reason, .. } if strict => return Err(Error::Strict { reason: reason.name().to_owned() }),
        Whole::Passing { reason, head: read, rest } => {
            parts.metrics.skipped.with_label_values(&[reason.name()]).inc();
            running.capture_mut().incomplete();
            return Ok(unparsed(head, Forwarded::patient(parts, read, rest)));
        }
    };
    let (event, is_readable) = on_body(body.len(), || {
        let event = |parsed| GenerationEvent::whole(body.clone(), parsed, reads);
        match running.guarded(|capture| capture.reply(&body).map(event)) {
            Some(event) => (event, true),
            // a failure of ours costs numbers, not text
            None => match GenerationEvent::outline(body.clone(), reads) {
                Ok(event) => (event, false),
                Err(_) => (GenerationEvent::unparsed(body.clone(), Unparsed::Unreadable), false),
            },
        }
    })
    .await;
    if !is_readable {
        running.capture_mut().cut(Fault::Unreadable);
        running.capture_mut().incomplete();
    }
    running.recorded().await;
    let observed = *running.capture().observed();
    if strict {
        // a 200 in which no sequence came to its end is not a reply to this request
        let unread = !is_readable || observed.finished == 0 && !running.capture().plan().items.is_empty();
        let missing = if unread { Some(Reason::Unreadable) } else { observed.missing };
        if let Some(reason) = missing {
            let error = Error::Strict { reason: reason.name().to_owned() };
            return Ok(Generation::failed(error, Some(observed)));
        }
    }
    let event = event.counted(|changed| parts.budget.hold(changed));
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Generation { head, events: Events::Whole { event: Some(Arc::new(event)), observed: Some(observed) } })
}
