// SPDX-License-Identifier: Apache-2.0
//! The router of the engine, and its responses: complete, or a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::engine::Engine;
use super::options::Dialect;
use super::refusal::Refusal;
use super::{admin, generate, info, wire};
use crate::engine::sglang::routes as sglang;

/// The path prefix of a model; its name follows.
const MODEL_PREFIX: &str = "/v1/models/";

/// Answers a request whose body has been read.
pub(super) async fn route(
    engine: Arc<Engine>,
    head: &http::request::Parts,
    body: Bytes,
) -> Result<Response<ReplyBody>, Refusal> {
    let path = head.uri.path();
    let allow = methods(&engine, path).ok_or_else(|| match sglang::route(path).endpoint {
        "other" => Refusal::Route { status: StatusCode::NOT_FOUND, allow: None },
        endpoint => Refusal::Unsupported { endpoint },
    })?;
    if path.len() > 1 && path.ends_with('/') {
        return Ok(redirect(head));
    }
    if !allow.split(", ").any(|method| method == head.method.as_str()) {
        return Err(Refusal::Route { status: StatusCode::METHOD_NOT_ALLOWED, allow: Some(allow) });
    }
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if head.method != Method::GET && !body.is_empty() && kind.is_some_and(|kind| !kind.contains("json")) {
        return Err(Refusal::field("", "dictionary"));
    }
    match path {
        "/generate" => Ok(generate::generate(engine, body).await),
        "/tokenize" | "/v1/tokenize" => info::tokenize(&engine, &body),
        "/detokenize" | "/v1/detokenize" => info::detokenize(&engine, &body),
        "/model_info" | "/get_model_info" => Ok(info::model_info(&engine)),
        "/server_info" | "/get_server_info" => Ok(info::server_info(&engine)),
        "/v1/models" => Ok(info::models(&engine)),
        _ if path.starts_with(MODEL_PREFIX) => info::model(&engine, &path[MODEL_PREFIX.len()..]),
        "/metrics" => Ok(info::metrics(&engine)),
        "/ready" if engine.control.is_paused() => Ok(respond(StatusCode::SERVICE_UNAVAILABLE, "", "")),
        "/abort_request" => admin::abort(&engine, &body),
        "/pause_generation" => admin::pause(&engine, &body).await,
        "/continue_generation" => Ok(admin::continue_generation(&engine)),
        "/flush_cache" => Ok(admin::flush(&engine)),
        "/update_weights_from_disk" => admin::update_weights(&engine, &body).await,
        "/update_weight_version" => admin::update_weight_version(&engine, &body).await,
        "/begin_weight_update" => Ok(admin::begin_update(&engine).await),
        "/update_weights_from_tensor" | "/update_weights_from_distributed" => admin::load_tensors(&engine, &body).await,
        "/end_weight_update" => Ok(admin::end_update(&engine).await),
        // /health, /health_generate, /ready and /ping have an empty body
        _ => Ok(respond(StatusCode::OK, "", "")),
    }
}

/// The methods of a path, in the format of the `allow` header; `None` for an unknown route.
fn methods(engine: &Engine, path: &str) -> Option<&'static str> {
    let newer = engine.options().dialect == Dialect::Sglang0523;
    Some(match path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path) {
        "/generate" => "PUT, POST",
        "/flush_cache" => "GET, POST",
        "/health" | "/health_generate" | "/ping" => "GET",
        "/model_info" | "/get_model_info" | "/server_info" | "/get_server_info" | "/v1/models" => "GET",
        path if path.starts_with(MODEL_PREFIX) => "GET",
        "/ready" if newer => "GET",
        "/metrics" if newer && engine.options().metrics => "GET",
        "/tokenize" | "/detokenize" | "/v1/tokenize" | "/v1/detokenize" | "/abort_request" => "POST",
        "/pause_generation" | "/continue_generation" => "POST",
        "/update_weights_from_disk" | "/update_weight_version" => "POST",
        "/begin_weight_update" | "/update_weights_from_tensor" if newer => "POST",
        "/update_weights_from_distributed" | "/end_weight_update" if newer => "POST",
        _ => return None,
    })
}

/// Builds a complete response. It has no content type if `kind` is empty.
pub(super) fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(body));
    *response.status_mut() = status;
    if !kind.is_empty() {
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    response
}

/// Builds a complete response with a JSON body.
pub(super) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<ReplyBody> {
    respond(status, "application/json", body)
}

/// Parses the body of a request.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::Types(format!("1 validation error:\n  {{'msg': '{error}'}}\n")))
}

/// The default of members that are true if they are left out.
pub(super) fn default_true() -> bool {
    true
}

pub(super) fn refuse(refusal: &Refusal) -> Response<ReplyBody> {
    let (body, kind) = refusal.body();
    let mut response = respond(refusal.status(), kind, body);
    if let Refusal::Route { allow: Some(allow), .. } = refusal {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    response
}

/// Redirects a path with a trailing slash to the path without it.
fn redirect(head: &http::request::Parts) -> Response<ReplyBody> {
    let mut response = respond(StatusCode::TEMPORARY_REDIRECT, "", "");
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let location = format!("http://{host}{}", head.uri.path().trim_end_matches('/'));
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The body of every response of the demo engine.
#[derive(Debug)]
pub struct ReplyBody(Kind);

#[derive(Debug)]
enum Kind {
    Whole(Option<Bytes>),
    Events {
        events: mpsc::Receiver<Bytes>,
        /// The tasks that generate the events. Dropping the body cancels them, so a client that disconnects aborts its requests.
        _work: JoinSet<()>,
        done: bool,
    },
}

impl ReplyBody {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self(Kind::Whole(Some(bytes.into()).filter(|bytes| !bytes.is_empty())))
    }

    /// Returns the events of `events` until `work` drops the sender, then `[DONE]`.
    pub(super) fn events(events: mpsc::Receiver<Bytes>, work: JoinSet<()>) -> Self {
        Self(Kind::Events { events, _work: work, done: false })
    }
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut self.0 {
            Kind::Whole(bytes) => bytes.take(),
            Kind::Events { events, done, .. } => match std::task::ready!(events.poll_recv(cx)) {
                None if !std::mem::replace(done, true) => Some(Bytes::from_static(wire::DONE)),
                event => event,
            },
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Kind::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Events { .. } => SizeHint::default(),
        }
    }
}
