//! `/v1/*` of the control port: the routes for trainers.

mod advantages;
mod entropy;
pub(crate) mod finished;
mod path;
mod policy;
mod query;
mod running;
pub(crate) mod samples;
pub(crate) mod sessions;
mod shm;
mod small;

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::json::percent_decode;
use crate::long_work::{BodyLength, offload, offload_export, on_body};
use crate::serve::body::{Body, Upload};
use crate::serve::control_route::{self, ControlRoute};
use crate::serve::offload::Items;
use crate::serve::proxy::Proxy;
use crate::serve::reply::json_reply;
use crate::session::ledger::{Ack, LedgerError};
use crate::session::{Session, SessionError};
use query::Query;

/// The maximum bytes of a trainer's request, which lists names, not tokens.
pub(crate) const LARGEST: u64 = 64 << 20;

/// The maximum bytes of a reward's body. Every exported row of the session holds the reward.
const LARGEST_REWARD: u64 = 64 << 10;

/// An error reply: `{"error":{"code","message"}}`.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The status.
    pub status: StatusCode,
    /// The name of the error.
    pub code: &'static str,
    /// The cause, and what to do about it.
    pub message: String,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// A 400 with this message.
    #[must_use]
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// The 404 for an unknown request id or sequence.
    #[must_use]
    pub(crate) fn no_entropies() -> Self {
        let message = "no such request or sequence; entropies are kept for 300 s after the end";
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The reply.
    #[must_use]
    pub(crate) fn reply(&self) -> Response<Body> {
        let body = json!({"error": {"code": self.code, "message": self.message}});
        let mut reply = json_reply(self.status, body.to_string().into_bytes());
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        reply
    }
}

/// Serves a route below `/v1/`; `None` for any other path.
pub(crate) async fn serve(state: &Arc<Proxy>, request: Request<Incoming>) -> Option<Response<Body>> {
    let path = request.uri().path().to_owned();
    let ControlRoute { methods, query, .. } = control_route::below_v1(&path)?;
    let names: Vec<String> = path.split('/').skip(2).map(|part| percent_decode(part).into_owned()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    if !methods.contains(method) {
        return Some(not_allowed(methods));
    }
    let query = Query::parse(request.uri(), if *method == Method::GET { query } else { &[] });
    let reply = async { answer(state, &names, query?, request).await };
    Some(reply.await.unwrap_or_else(|problem| problem.reply()))
}

/// Builds the 405 reply. A route that allows GET also allows HEAD.
#[must_use]
pub(crate) fn not_allowed(allowed: &[Method]) -> Response<Body> {
    let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
    let message = format!("only {}", names.join(" and "));
    let mut reply = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method", message).reply();
    let names = names.join(", ").replace("GET", "GET, HEAD");
    reply.headers_mut().insert(header::ALLOW, HeaderValue::try_from(names).expect("names of methods are tokens"));
    reply
}

async fn answer(
    state: &Arc<Proxy>,
    names: &[&str],
    query: Query,
    request: Request<Incoming>,
) -> Result<Response<Body>, Problem> {
    if let (&Method::GET | &Method::HEAD, ["sessions", id, ..]) = (request.method(), names) {
        refresh(state, [id]).await?;
    }
    match *names {
        ["sessions"] => sessions::list(state, query).await,
        ["sessions", id] if request.method() == Method::DELETE => sessions::delete(state, id).await,
        ["sessions", id] => {
            let id = id.to_owned();
            short_answer(state, move |state| sessions::show(state, &id, query)).await
        }
        ["sessions", id, "trajectories"] => {
            let id = id.to_owned();
            long_answer(state, move |state| sessions::trajectories(state, &id, query)).await
        }
        ["sessions", id, "paths", leaf] => {
            let (id, leaf) = (id.to_owned(), leaf.to_owned());
            long_answer(state, move |state| path::show(state, &id, &leaf, query)).await
        }
        ["requests"] => short_answer(state, move |state| Ok(running::list(state, &query))).await,
        ["sessions", id, "freeze"] => sessions::freeze(state, id).await,
        ["sessions", id, _] => {
            let body = bytes_within(state, request, LARGEST_REWARD).await.map_err(too_large_reward)?;
            sessions::reward(state, id, parse(&body).await?).await
        }
        ["trajectories"] => finished::stream(state, query).await,
        ["policy"] if request.method() == Method::POST => policy::name(state, read(state, request).await?).await,
        ["policy"] => Ok(policy::show(state)),
        ["entropy"] => entropy::measure(state, request).await,
        ["samples"] => {
            let body: samples::SamplesRequest = read(state, request).await?;
            refresh(state, &body.sessions).await?;
            long_answer(state, move |state| samples::export(state, &body).map(samples::reply)).await
        }
        _ => {
            let body = bytes(state, request).await?;
            let request = advantages::parse(state, &body).await?;
            refresh(state, advantages::names(&request).collect::<BTreeSet<_>>()).await?;
            long_answer(state, move |state| advantages::compute(state, &request)).await
        }
    }
}

/// Runs a short call, such as one about a page of sessions.
async fn short_answer(
    state: &Arc<Proxy>,
    work: impl FnOnce(&Proxy) -> Result<Response<Body>, Problem> + Send + 'static,
) -> Result<Response<Body>, Problem> {
    let state = Arc::clone(state);
    offload(move || work(&state)).await
}

/// Runs a call whose work grows with the number of turns.
async fn long_answer(
    state: &Arc<Proxy>,
    work: impl FnOnce(&Proxy) -> Result<Response<Body>, Problem> + Send + 'static,
) -> Result<Response<Body>, Problem> {
    let state = Arc::clone(state);
    offload_export(move || work(&state)).await
}

async fn bytes(state: &Proxy, request: Request<Incoming>) -> Result<bytes::Bytes, Problem> {
    bytes_within(state, request, LARGEST).await
}

async fn bytes_within(state: &Proxy, request: Request<Incoming>, limit: u64) -> Result<bytes::Bytes, Problem> {
    let timeout = state.config.limits.client_body_timeout;
    // a share of the whole budget, so that agents cannot block trainers
    let upload = Upload::new(request.into_body(), timeout).with_share(Some(state.budget.reply()));
    upload.read(limit).await.map_err(|error| body_problem(&error))
}

/// The reply if the body could not be read.
fn body_problem(error: &crate::error::Error) -> Problem {
    Problem::new(error.status(), "body", error.to_string())
}

fn too_large_reward(problem: Problem) -> Problem {
    match problem.status {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let message =
                format!("the body is larger than {LARGEST_REWARD} bytes: every exported row holds its reward");
            Problem::new(problem.status, "reward_too_large", message)
        }
        _ => problem,
    }
}

async fn read<T: DeserializeOwned>(state: &Proxy, request: Request<Incoming>) -> Result<T, Problem> {
    parse(&bytes(state, request).await?).await
}

async fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let parsed = on_body(BodyLength::Request(bytes.len()), || serde_json::from_slice(bytes)).await;
    parsed.map_err(|error| Problem::bad(format!("the body: {error}")))
}

fn ok(body: &Value) -> Response<Body> {
    json_reply(StatusCode::OK, body.to_string().into_bytes())
}

/// Returns the session with this name.
///
/// # Errors
/// 404 for an unknown name, 410 for a session that was evicted.
pub(crate) fn session(state: &Proxy, id: &str) -> Result<Arc<Session>, Problem> {
    state.sessions.session(id).ok_or_else(|| no_session(state, id))
}

/// The 404 for an unknown session, or the 410 for one that was evicted.
fn no_session(state: &Proxy, id: &str) -> Problem {
    match state.sessions.eviction_of(id) {
        Some(gone) => {
            let hint = if gone.reason == "ttl" { "--session-ttl" } else { "--session-bytes" };
            let message = format!("session {id:?} was evicted ({}); see {hint} and --data-dir", gone.reason);
            Problem::new(StatusCode::GONE, "evicted", message)
        }
        None => unknown_session(id),
    }
}

/// The 404 for an unknown session.
fn unknown_session(id: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_such_session", format!("there is no session {id:?}"))
}

/// Reads what other processes have appended to these sessions.
///
/// # Errors
/// 503 if the shared ledger fails.
pub(crate) async fn refresh(state: &Proxy, names: impl IntoIterator<Item: AsRef<str>>) -> Result<(), Problem> {
    state.sessions.refresh(names).await.map_err(|error| ledger_problem(&error))
}

/// The 503 for a shared ledger that fails.
pub(crate) fn ledger_problem(error: &LedgerError) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger_unavailable", error.to_string())
}

/// Returns the reply for a session error.
#[must_use]
pub(crate) fn session_problem(id: &str, error: SessionError) -> Problem {
    let (status, code) = match error {
        SessionError::Unknown => return unknown_session(id),
        SessionError::NoGenerations => return Problem::bad(error.to_string()),
        SessionError::NoVersion => (StatusCode::NOT_FOUND, "no_such_version"),
        SessionError::NoTurn => (StatusCode::NOT_FOUND, "no_such_leaf"),
        SessionError::Frozen => (StatusCode::CONFLICT, "frozen"),
        SessionError::EvictedSession => (StatusCode::GONE, "evicted"),
        SessionError::Unconfirmed => (StatusCode::SERVICE_UNAVAILABLE, "unconfirmed"),
        SessionError::OtherGeneration(_) => (StatusCode::CONFLICT, "other_generation"),
    };
    Problem::new(status, code, format!("session {id:?}: {error}"))
}

/// Waits until a record is on disk, or until the time limit of replies.
pub(crate) async fn wait_written(state: &Proxy, ack: Ack) {
    state.generator.context.log_wait.wait(vec![ack]).await;
}

/// Builds a reply that is produced as the client reads it.
fn stream_reply(content_type: &'static str, length: Option<u64>, chunks: Items<bytes::Bytes>) -> Response<Body> {
    let mut reply = Response::new(Body::offloaded(chunks));
    reply.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    if let Some(length) = length {
        reply.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    reply
}
