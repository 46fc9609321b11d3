//! Requests that came to the wrong port or path: which URL was meant.
//!
//! The engine is asked first wherever it could have the route, so nothing that it serves is refused. Its 404 for a route that it does not have
//! becomes one that names the URL.

use std::sync::Arc;

use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use serde_json::Value;

use crate::api::openai::problem::Problem;
use crate::engine::client::{Failure, innermost};
use crate::engine::routes::{self, Route};
use crate::error::Error;
use crate::serve::body::Body;
use crate::serve::data::identity;
use crate::serve::proxy_state::ProxyState;

/// The longest 404 that may be that of a route which the engine does not have, in bytes.
const LONGEST: u64 = 512;

/// Routes below `/v1` whose clients may have forgotten it.
const BELOW_V1: [&str; 7] =
    ["/chat/completions", "/completions", "/responses", "/messages", "/models", "/embeddings", "/rerank"];

/// What only the control port has.
const CONTROL: [&str; 8] = [
    "/livez",
    "/readyz",
    "/v1/sessions",
    "/v1/trajectories",
    "/v1/requests",
    "/v1/samples",
    "/v1/advantages",
    "/v1/policy",
];

/// What a request to the data port must be remembered by, until the engine has answered.
#[derive(Debug)]
pub(super) struct MisdirectedRequest {
    method: Method,
    path: String,
    /// The session in the path, which stands before what the engine is asked.
    session: Option<Arc<str>>,
    /// Scheme and host as the client wrote them; empty where it named no host.
    origin: String,
}

impl MisdirectedRequest {
    pub(super) fn new<B>(state: &ProxyState, request: &Request<B>, session: Option<&Arc<str>>) -> Self {
        let scheme = if state.config.tls.data().is_some() { "https" } else { "http" };
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| request.uri().authority().map(Authority::as_str));
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            session: session.cloned(),
            origin: host.map(|host| format!("{scheme}://{host}")).unwrap_or_default(),
        }
    }

    /// The engine's answer, or one that names the URL where the engine does not have the route.
    ///
    /// # Errors
    /// When the body of a 404 breaks off.
    pub(super) async fn answer(&self, route: Route, mut reply: Response<Body>) -> Result<Response<Body>, Error> {
        if reply.status().is_redirection()
            && let Some(location) = self.location(reply.headers())
        {
            reply.headers_mut().insert(header::LOCATION, location);
        }
        if reply.status() != StatusCode::NOT_FOUND || reply.size_hint().exact().is_none_or(|length| length > LONGEST) {
            return Ok(reply);
        }
        let Some(meant) = self.meant(route) else { return Ok(reply) };
        let (head, body) = reply.into_parts();
        let body = body.collect().await.map_err(|error| Failure::Broken(innermost(&*error)))?.to_bytes();
        let passed = || Response::from_parts(head, Body::full(body.clone()));
        Ok(if is_missing_route(&body) { self.not_found(&meant) } else { passed() })
    }

    /// Where an engine sends a path with a slash behind it, which it does by its own address: the same here, so that the client does not go past
    /// tokentap.
    fn location(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let location: Uri = headers.get(header::LOCATION)?.to_str().ok()?.parse().ok()?;
        if Some(location.path()) != self.path.strip_suffix('/') {
            return None;
        }
        let target = location.path_and_query()?;
        let location = format!("{}{target}", self.session());
        // two slashes would lead to another host
        if location.starts_with("//") { None } else { HeaderValue::try_from(location).ok() }
    }

    /// Which URL was meant.
    fn meant(&self, route: Route) -> Option<String> {
        let path = &*self.path;
        let below =
            |parent: &str| path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if path.starts_with("/v1/v1/") {
            return Some(format!("/v1 stands twice; the base URL of the client is {}", self.url("/v1")));
        }
        if BELOW_V1.iter().any(|route| below(route)) {
            return Some(format!("/v1 is missing; the base URL of an OpenAI client is {}", self.url("/v1")));
        }
        if CONTROL.iter().any(|route| below(route)) {
            return Some(
                "it is a route of tokentap's control port (--control-listen), and this is the data port".to_owned(),
            );
        }
        match route.endpoint {
            "/v1/responses" => Some(format!(
                "this engine does not serve the Responses API; use Chat Completions, {} (in openai-agents: \
                 set_default_openai_api(\"chat_completions\"))",
                self.url(routes::CHAT)
            )),
            "/v1/messages" => Some(format!(
                "this engine does not serve the Messages API; use Chat Completions, {}",
                self.url(routes::CHAT)
            )),
            _ => None,
        }
    }

    /// A path as the client has to write it.
    fn url(&self, path: &str) -> String {
        format!("{}{}{path}", self.origin, self.session())
    }

    /// What stands before the engine's path.
    fn session(&self) -> String {
        self.session.as_ref().map(|name| format!("/sessions/{name}")).unwrap_or_default()
    }

    fn not_found(&self, meant: &str) -> Response<Body> {
        not_found(&format!("{} {} is not served: {meant}", self.method, self.path))
    }
}

/// The answer to a request that the control port does not serve and the data port does.
pub(super) fn on_control(state: &ProxyState, method: &Method, path: &str, route: Route) -> Option<Response<Body>> {
    let bound = identity::in_path(path).is_some();
    let missing = || BELOW_V1.iter().any(|below| path.starts_with(below));
    if !bound && route.endpoint == "other" && !missing() && !path.starts_with("/v1/models/") {
        return None;
    }
    let listen = state.config.listen;
    // a port that the system chose is not in the settings
    let place = if listen.port() == 0 { String::new() } else { format!(", {listen}") };
    let message = format!(
        "{method} {path} is not served: it is a route of the data port (--listen{place}), and this is the control port"
    );
    Some(not_found(&message))
}

/// Whether a 404 with this body says that the server does not have the route: sglang-router's is empty, FastAPI's has one text, and the demo
/// engine's names the route. Any other is an answer of the route, such as that of `/v1/responses` to a `previous_response_id` that it does
/// not know.
fn is_missing_route(body: &[u8]) -> bool {
    let detail = || match serde_json::from_slice::<Value>(body).ok()? {
        Value::Object(mut members) if members.len() == 1 => members.remove("detail")?.as_str().map(str::to_owned),
        _ => None,
    };
    let is_detail = |detail: String| detail == "Not Found" || detail.ends_with("is not supported by the demo engine");
    body.is_empty() || detail().is_some_and(is_detail)
}

/// A 404 in the shape that OpenAI's clients read.
fn not_found(message: &str) -> Response<Body> {
    let problem = Problem { status: StatusCode::NOT_FOUND, message: message.to_owned() };
    let mut reply = Response::new(Body::full(problem.body()));
    *reply.status_mut() = problem.status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
