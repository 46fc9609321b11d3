//! Requests to the wrong port or path. The 404 reply suggests the right URL.
//!
//! The engine gets the request first if it could have the route, so no route of the engine is refused. Its 404 for a missing route is
//! replaced by a 404 that suggests a URL, or by a 200 where an agent checks that the server is up.

use std::sync::Arc;

use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use serde_json::Value;

use crate::api::openai::error::OpenAiError;
use crate::engine::client::{Failure, innermost};
use crate::engine::routes::{self, Route};
use crate::error::Error;
use crate::serve::body::Body;
use crate::serve::identity;
use crate::serve::proxy_state::ProxyState;

/// The maximum bytes of the engine's 404 for a missing route.
const LONGEST: u64 = 512;

/// Routes below `/v1` that clients request without `/v1` by mistake.
const BELOW_V1: [&str; 7] =
    ["/chat/completions", "/completions", "/responses", "/messages", "/models", "/embeddings", "/rerank"];

/// Routes that take only POST.
const POSTED: [&str; 6] = [
    routes::CHAT,
    routes::COMPLETIONS,
    routes::RESPONSES,
    routes::INPUT_TOKENS,
    routes::MESSAGES,
    routes::COUNT_TOKENS,
];

/// Ollama's routes.
const OLLAMA: [&str; 9] = [
    "/api/chat",
    "/api/generate",
    "/api/tags",
    "/api/show",
    "/api/ps",
    "/api/version",
    "/api/embed",
    "/api/embeddings",
    "/api/pull",
];

/// Paths that Claude Code requests to check that the server is up.
const PROBES: [&str; 2] = ["/", "/api/hello"];

/// Routes that only the control port has.
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

/// The parts of a request to the data port that are needed after the engine's reply.
#[derive(Debug)]
pub(super) struct MisdirectedRequest {
    method: Method,
    path: String,
    /// The session in the path, which precedes the engine's path.
    session: Option<Arc<str>>,
    /// Scheme and host as the client wrote them; empty if it sent no host.
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

    /// Returns the engine's reply, or a 404 that suggests a URL if the engine does not have the route.
    ///
    /// # Errors
    /// When the body of a 404 is cut off.
    pub(super) async fn answer(&self, route: Route, mut reply: Response<Body>) -> Result<Response<Body>, Error> {
        if reply.status().is_redirection()
            && let Some(location) = self.location(reply.headers())
        {
            reply.headers_mut().insert(header::LOCATION, location);
        }
        if reply.status() == StatusCode::NOT_FOUND && self.is_probe() {
            return Ok(Response::new(Body::full("")));
        }
        // Gemini's method of a model has the path of a model, which takes GET only
        let is_missing = match reply.status() {
            StatusCode::NOT_FOUND => true,
            StatusCode::METHOD_NOT_ALLOWED => foreign_api(&self.path).is_some(),
            _ => false,
        };
        if !is_missing || reply.size_hint().exact().is_none_or(|length| length > LONGEST) {
            return Ok(reply);
        }
        let Some(suggestion) = self.suggestion(route) else { return Ok(reply) };
        let (head, body) = reply.into_parts();
        let body = body.collect().await.map_err(|error| Failure::Broken(innermost(&*error)))?.to_bytes();
        let unchanged = || Response::from_parts(head, Body::full(body.clone()));
        Ok(if is_missing_route(&body) { not_served(&self.method, &self.path, &suggestion) } else { unchanged() })
    }

    /// Whether an agent only checks that the server is up. The engine has no route for it.
    fn is_probe(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD) && PROBES.contains(&&*self.path)
    }

    /// Rewrites the `location` of an engine's redirect that removes a trailing slash. The engine names its own address, so the client would
    /// bypass tokentap.
    fn location(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let location: Uri = headers.get(header::LOCATION)?.to_str().ok()?.parse().ok()?;
        if Some(location.path()) != self.path.strip_suffix('/') {
            return None;
        }
        let target = location.path_and_query()?;
        let location = format!("{}{target}", self.session_prefix());
        // two slashes would lead to another host
        if location.starts_with("//") { None } else { HeaderValue::try_from(location).ok() }
    }

    /// Suggests the right URL.
    fn suggestion(&self, route: Route) -> Option<String> {
        let path = &*self.path;
        let below =
            |parent: &str| path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        // clients of the Messages API add /v1 to the base URL themselves
        if path.starts_with("/v1/v1/messages") || path.starts_with("/messages") {
            return Some(format!("the base URL of a Messages client is {}", self.url("")));
        }
        if path.starts_with("/v1/v1/") {
            return Some(format!("/v1 is in the path twice; the base URL of the client is {}", self.url("/v1")));
        }
        if BELOW_V1.iter().any(|route| below(route)) {
            return Some(format!("/v1 is missing; the base URL of an OpenAI client is {}", self.url("/v1")));
        }
        if CONTROL.iter().any(|route| below(route)) {
            return Some(
                "it is a route of tokentap's control port (--control-listen), and this is the data port".to_owned(),
            );
        }
        if let Some(api) = foreign_api(path) {
            return Some(format!(
                "it is a route of {api}; the base URL of an OpenAI client is {}, and the base URL of a Messages client is {}",
                self.url("/v1"),
                self.url("")
            ));
        }
        if self.method != Method::POST && POSTED.contains(&route.endpoint) {
            let stored = match route.endpoint {
                routes::RESPONSES if self.session.is_some() => {
                    format!("; a stored response is at {}/ID", self.url(routes::RESPONSES))
                }
                routes::RESPONSES => {
                    format!("; a stored response is at {}/sessions/NAME{}/ID", self.origin, routes::RESPONSES)
                }
                _ => String::new(),
            };
            return Some(format!("send POST{stored}"));
        }
        match route.endpoint {
            routes::RESPONSES | routes::INPUT_TOKENS => Some(format!(
                "this engine does not serve the Responses API, and tokentap serves it only where it can read the model's tokenizer (see --tokenizer); use Chat Completions, {} (in openai-agents: set_default_openai_api(\"chat_completions\"))",
                self.url(routes::CHAT)
            )),
            routes::MESSAGES | routes::COUNT_TOKENS => Some(format!(
                "this engine does not serve the Messages API, and tokentap serves it only where it can read the model's tokenizer (see --tokenizer); use Chat Completions, {}",
                self.url(routes::CHAT)
            )),
            _ => None,
        }
    }

    /// The URL that a client must use for a path.
    fn url(&self, path: &str) -> String {
        format!("{}{}{path}", self.origin, self.session_prefix())
    }

    /// The prefix of the engine's path.
    fn session_prefix(&self) -> String {
        self.session.as_ref().map(|name| format!("/sessions/{name}")).unwrap_or_default()
    }
}

/// The API of another provider that has this path, which may follow a base URL that ends in `/v1`.
fn foreign_api(path: &str) -> Option<&'static str> {
    let path = path.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).unwrap_or(path);
    let after = |start: &str| path.strip_prefix(start);
    // Gemini's and Vertex AI's paths end with the name of a method
    let method = path.rsplit_once('/').and_then(|(_, last)| last.split_once(':'));
    if after("/v1beta/").is_some() || method.is_some_and(|(_, name)| name.ends_with("Content") || name == "countTokens")
    {
        return Some("Gemini's API");
    }
    if method.is_some_and(|(_, name)| matches!(name, "rawPredict" | "streamRawPredict")) {
        return Some("Vertex AI");
    }
    if after("/openai/").is_some() {
        return Some("Azure OpenAI");
    }
    if OLLAMA.contains(&path) {
        return Some("Ollama's API");
    }
    let (_, operation) = after("/model/")?.rsplit_once('/')?;
    matches!(operation, "invoke" | "invoke-with-response-stream" | "converse" | "converse-stream")
        .then_some("Amazon Bedrock")
}

/// Replies to a request on the control port for a route of the data port.
pub(super) fn on_control(state: &ProxyState, method: &Method, path: &str, route: Route) -> Option<Response<Body>> {
    let bound = identity::in_path(path).is_some();
    let missing = || BELOW_V1.iter().any(|below| path.starts_with(below));
    if !bound && route.endpoint == "other" && !missing() && !path.starts_with("/v1/models/") {
        return None;
    }
    let listen = state.config.listen;
    // a port that the kernel chose is not in the settings
    let place = if listen.port() == 0 { String::new() } else { format!(", {listen}") };
    let reason = format!("it is a route of the data port (--listen{place}), and this is the control port");
    Some(not_served(method, path, &reason))
}

/// Whether a 404 with this body means that the server does not have the route. The body is empty from sglang-router, a fixed text from
/// FastAPI, and names the route from the demo engine. Any other body comes from the route itself, such as the reply of `/v1/responses` to
/// an unknown `previous_response_id`.
fn is_missing_route(body: &[u8]) -> bool {
    let detail = || match serde_json::from_slice::<Value>(body).ok()? {
        Value::Object(mut members) if members.len() == 1 => members.remove("detail")?.as_str().map(str::to_owned),
        _ => None,
    };
    let is_detail = |detail: String| {
        matches!(&*detail, "Not Found" | "Method Not Allowed")
            || detail.ends_with("is not supported by the demo engine")
    };
    body.is_empty() || detail().is_some_and(is_detail)
}

/// Builds a 404 in the error format of OpenAI.
fn not_served(method: &Method, path: &str, reason: &str) -> Response<Body> {
    // the length of a reply to HEAD is that of the reply to GET
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let message = format!("{method} {path} is not served: {reason}");
    let error = OpenAiError { status: StatusCode::NOT_FOUND, message };
    let mut reply = Response::new(Body::full(error.body()));
    *reply.status_mut() = error.status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
