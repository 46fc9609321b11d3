//! POST and PUT /generate: captured.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use crate::error::Error;
use crate::generation::capture::Capture;
use crate::generation::flight::Flight;
use crate::generation::guard::{self, Bounds, Refusal};
use crate::generation::plan::{Context, Plan};
use crate::generation::reason::Reason;
use crate::generation::record::{Asked, Recorder};
use crate::http::body::{Body, Forwarded, Upload};
use crate::http::forward::{failed, send, target, uncaptured, upstream_headers};
use crate::http::identity::Identity;
use crate::http::prompts::Prompts;
use crate::http::running::{Outcome, Running};
use crate::http::served::Served;
use crate::http::stream::Enriched;
use crate::http::whole::{Whole, collect};
use crate::http::{Parts, headers};
use crate::sglang::client::{Call, Reply};
use crate::sglang::probe::{Capabilities, Dialect};
use crate::sglang::request::GenerateRequest;
use crate::sglang::routes;
use crate::trajectory::{self, Fault};

/// With `SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES` the engine takes its request id from here, so none may be given in the body.
const OVERRIDE_RID: &str = "x-override-rid";

/// Names the session of a reply.
pub const SESSION: HeaderName = HeaderName::from_static("x-tokentap-session");

/// What of a request goes upstream again and again.
struct Head {
    method: Method,
    target: String,
    headers: HeaderMap,
}

impl Head {
    fn call(&self, body: Bytes) -> Call {
        Call::whole(self.method.clone(), self.target.clone(), self.headers.clone(), body)
    }
}

/// Serves a generation; `session` is the one that the path names.
///
/// # Errors
/// What the client is told when the engine's own answer cannot be given.
pub async fn generate(
    parts: &Arc<Parts>,
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    served: &mut Served,
) -> Result<Response<Body>, Error> {
    let (head, body) = request.into_parts();
    let limits = &parts.config.limits;
    let body = Upload::new(body, limits.client_body_timeout).read(limits.max_request_bytes).await?;
    let upstream = Arc::clone(&parts.upstream.borrow());
    let request = parse(parts, &body)?;
    let identity = Identity::of(&parts.config, session.as_ref(), &head.uri, &head.headers, request.as_ref());
    let key = head.headers.get(header::AUTHORIZATION).cloned();
    let assign_rid = !head.headers.contains_key(OVERRIDE_RID);
    let last = is_last(&head.headers);
    let mut head = Head { target: target(&head.uri), headers: upstream_headers(head.headers), method: head.method };
    // replies that are read must come as they are
    head.headers.remove(header::ACCEPT_ENCODING);
    let Some(request) = request else {
        uncaptured(parts, routes::GENERATE, identity.explicit.then_some(&identity.session));
        let reply = send(parts, routes::GENERATE, head.call(body)).await?;
        return Ok(forwarded(reply));
    };
    let record = parts.config.sessions.record;
    let plan = plan(parts, &upstream, &request, assign_rid)?;
    served.streaming = plan.stream;
    served.rid = plan.rid.clone().or_else(|| plan.rids.first().map(|(rid, _)| rid.clone()));
    if let (true, Some(reason)) = (parts.config.entropy.strict && plan.wish.wanted, plan.hopeless()) {
        return Err(Error::Strict { reason: reason.name().to_owned() });
    }
    let flight = take_off(parts, &plan)?;
    let recorder = record.then(|| recorder(parts, &upstream, &request, &identity, last));
    let prompts = record.then(|| Prompts::of(&request, &plan)).flatten();
    drop(request);
    let capture = Capture::new(plan, flight, recorder, Arc::clone(&parts.tools), &upstream);
    let mut running = Running::new(Arc::clone(parts), capture, key);
    let asked = ask(parts, &head, &mut running);
    let (reply, prompts) = match prompts {
        Some(prompts) => tokio::try_join!(asked, prompts.tokenize(parts))?,
        None => (asked.await?, None),
    };
    if let (Some(prompts), Some(recorder)) = (prompts, running.capture_mut().recorder()) {
        recorder.tokenized(prompts);
    }
    let mut reply = finish(parts, reply, running, served).await?;
    if record && let Ok(name) = HeaderValue::try_from(&*identity.session) {
        reply.headers_mut().insert(SESSION, name);
    }
    Ok(reply)
}

/// What records the reply.
fn recorder(
    parts: &Parts,
    upstream: &Capabilities,
    request: &GenerateRequest,
    identity: &Identity,
    last: bool,
) -> Recorder {
    let sampled = upstream.dialect != Some(Dialect::Jax);
    let asked = Asked::of(request, &upstream.model, parts.sessions.policy.epoch(), sampled);
    let mut call = trajectory::Call::new(Arc::clone(&parts.sessions), Arc::clone(&identity.session));
    if last {
        call.last();
    }
    Recorder::new(call, asked)
}

/// Whether the client says that nothing follows in this session.
fn is_last(headers: &HeaderMap) -> bool {
    let said = headers.get("x-session-done").and_then(|value| value.to_str().ok());
    said.is_some_and(|said| !matches!(said.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "no"))
}

/// The request of a body; `None` for one that is not a JSON object, which is the engine's to refuse.
fn parse(parts: &Parts, body: &Bytes) -> Result<Option<GenerateRequest>, Error> {
    match GenerateRequest::parse(body.clone()) {
        Ok(request) => Ok(Some(request)),
        Err(error) if error.too_deep && !parts.config.entropy.no_guard => {
            parts.metrics.refused.with_label_values(&["nesting"]).inc();
            Err(Error::bad_request(format!("the body nests deeper than 128 levels at byte {}", error.at)))
        }
        Err(_) => Ok(None),
    }
}

/// The plan of a request that the guard lets pass.
fn plan(parts: &Parts, upstream: &Capabilities, request: &GenerateRequest, assign_rid: bool) -> Result<Plan, Error> {
    let config = &parts.config.entropy;
    if !config.no_guard {
        let bounds = Bounds {
            vocab_size: upstream.vocab_size,
            max_top_logprobs: upstream.max_top_logprobs(config.max_top_logprobs),
        };
        guard::check(request, bounds).map_err(|refusal| refused(parts, refusal))?;
    }
    let record = parts.config.sessions.record;
    let context = Context { assign_rid, record, refused: &|shape| parts.is_refused(shape) };
    Plan::try_new(request, upstream, config, &context)
}

/// Takes the request's ids, which with the guard must not be running.
fn take_off(parts: &Parts, plan: &Plan) -> Result<Flight, Error> {
    let rids: Vec<String> = plan.rids.iter().map(|(rid, _)| rid.clone()).collect();
    if parts.config.entropy.no_guard {
        return Ok(parts.tools.flights.start(rids));
    }
    parts.tools.flights.try_start(&rids).map_err(|live| refused(parts, guard::live(&live)))
}

fn refused(parts: &Parts, refusal: Refusal) -> Error {
    parts.metrics.refused.with_label_values(&[refusal.rule]).inc();
    Error::bad_request(refusal.message)
}

/// Asks the engine, and once more as the client wrote it where forcing made the engine fail.
async fn ask(parts: &Arc<Parts>, head: &Head, running: &mut Running) -> Result<Reply, Error> {
    running.ask();
    let first = send(parts, routes::GENERATE, head.call(running.capture().plan().body.clone())).await;
    let first = first.inspect_err(|_| running.end())?;
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

async fn finish(
    parts: &Arc<Parts>,
    reply: Reply,
    mut running: Running,
    served: &mut Served,
) -> Result<Response<Body>, Error> {
    if reply.status() != StatusCode::OK {
        running.end();
        running.capture_mut().fail();
        return Ok(forwarded(reply));
    }
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    if is_event_stream(&head.headers) {
        head.headers.remove(header::CONTENT_LENGTH);
        let limit = parts.config.limits.max_reply_bytes;
        return Ok(Response::from_parts(head, Body::enriched(Enriched::new(body, running, limit))));
    }
    if !running.capture().reads_reply() {
        return Ok(Response::from_parts(head, Body::forwarded(Forwarded::generated(body, running))));
    }
    let strict = parts.config.entropy.strict && running.capture().plan().wish.wanted;
    let whole = match collect(body, &head.headers, parts.config.limits.max_reply_bytes).await {
        Ok(whole) => whole,
        Err(failure) => {
            running.end();
            return Err(failed(parts, failure));
        }
    };
    running.end();
    let body = match whole {
        Whole::All(bytes) => bytes,
        Whole::TooLarge { .. } if strict => return Err(Error::Strict { reason: Reason::TooLarge.name().to_owned() }),
        Whole::TooLarge { head: read, rest } => {
            parts.metrics.skipped.with_label_values(&[Reason::TooLarge.name()]).inc();
            running.capture_mut().incomplete();
            return Ok(Response::from_parts(head, Body::forwarded(Forwarded::patient(read, rest))));
        }
    };
    let outcome = running.guarded(|capture| capture.reply(&body));
    if outcome == Outcome::Unreadable {
        running.capture_mut().cut(Fault::Unreadable);
        running.capture_mut().incomplete();
    }
    running.recorded().await;
    let observed = *running.capture().observed();
    served.observed = Some(observed);
    if strict {
        // a 200 in which no sequence came to its end is not a reply to this request
        let unread =
            outcome == Outcome::Unreadable || observed.finished == 0 && !running.capture().plan().items.is_empty();
        let missing = if unread { Some(Reason::Unreadable) } else { observed.missing };
        if let Some(reason) = missing {
            return Err(Error::Strict { reason: reason.name().to_owned() });
        }
    }
    let body = match outcome {
        Outcome::Changed(changed) => changed.into(),
        Outcome::Unchanged | Outcome::Unreadable => body,
    };
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::full(body)))
}

fn forwarded(reply: Reply) -> Response<Body> {
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    Response::from_parts(head, Body::forwarded(Forwarded::patient(Bytes::new(), body)))
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}
