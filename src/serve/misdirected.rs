// SPDX-License-Identifier: Apache-2.0
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

use crate::api::{self, Api};
use crate::engine::sglang::routes::{self, Route};
use crate::engine::transport::failure::{Failure, innermost};
use crate::error::Error;
use crate::serve::body::Body;
use crate::serve::client_route::{self, ClientApi, MeantRoute};
use crate::serve::proxy::Proxy;
use crate::serve::{control_route, identity};

/// The maximum bytes of the engine's 404 for a missing route.
const LONGEST: u64 = 512;

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

/// The parts of a request to the data port that a suggestion needs after the engine's reply.
#[derive(Debug)]
pub(super) struct MisdirectedRequest {
    method: Method,
    path: String,
    /// The session in the path, which precedes the engine's path.
    session: Option<Arc<str>>,
    /// Scheme and host as the client wrote them; empty if it sent no host.
    origin: String,
    /// The path of `--upstream`.
    base_path: String,
}

impl MisdirectedRequest {
    pub(super) fn new<B>(proxy: &Proxy, request: &Request<B>, session: Option<&Arc<str>>) -> Self {
        let scheme = if proxy.config.tls.data().is_some() { "https" } else { "http" };
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| request.uri().authority().map(Authority::as_str));
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            session: session.cloned(),
            origin: host.map(|host| format!("{scheme}://{host}")).unwrap_or_default(),
            base_path: proxy.client.base_path().to_owned(),
        }
    }

    /// Returns the engine's reply, or a 404 that suggests a URL if the engine does not have the route.
    ///
    /// # Errors
    /// When the body of a 404 is cut off.
    pub(super) async fn explain(&self, mut reply: Response<Body>) -> Result<Response<Body>, Error> {
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
        if !is_missing {
            return Ok(reply);
        }
        let Some(suggestion) = self.suggestion() else { return Ok(reply) };
        let not_served = || not_served(&self.method, &self.path, &suggestion);
        Ok(from_existing_route(reply).await?.unwrap_or_else(not_served))
    }

    /// Whether an agent only checks that the server is up. The engine has no route for it.
    fn is_probe(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD) && PROBES.contains(&&*self.path)
    }

    /// Rewrites the `location` of an engine's redirect that removes a trailing slash. The engine names its own address, so the client would
    /// bypass tokentap.
    fn location(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let location: Uri = headers.get(header::LOCATION)?.to_str().ok()?.parse().ok()?;
        let target = location.path_and_query()?.as_str();
        // an engine below a path may know it, or a proxy in front removes it
        let target = target.strip_prefix(&*self.base_path).unwrap_or(target);
        if target.split('?').next() != self.path.strip_suffix('/') {
            return None;
        }
        let location = format!("{}{target}", self.session_prefix());
        // two slashes would lead to another host
        if location.starts_with("//") { None } else { HeaderValue::try_from(location).ok() }
    }

    /// Suggests the right URL and method, or says why tokentap does not serve the route itself.
    fn suggestion(&self) -> Option<String> {
        let base_url = |api: ClientApi| {
            let (client, path) = api.client();
            format!("the base URL of {client} client is {}", self.url(path))
        };
        // SGLang has /metrics, too
        let is_sglang = routes::route(&self.path).endpoint != "other";
        if control_route::is_route(&self.path) && !is_sglang {
            let control = "it is a route of tokentap's control port (--control-listen, 30002 by default)";
            return Some(format!("{control}, and this is the data port"));
        }
        if let Some(SessionServer { name, format }) = self.session_server() {
            let session = self.session.as_deref().unwrap_or("NAME");
            return Some(format!(
                "it is a route of {name}; here a session begins with its first call: the base URL of an OpenAI client is {}/sessions/{session}/v1, and the control port (--control-listen, 30002 by default) returns what was recorded: POST /v1/samples with {{\"sessions\":[\"{session}\"],\"format\":\"{format}\"}}",
                self.origin
            ));
        }
        if let Some(api) = foreign_api(&self.path) {
            let [openai, messages] = [ClientApi::OpenAi, ClientApi::Messages].map(base_url);
            return Some(format!("it is a route of {api}; {openai}, and {messages}"));
        }
        let MeantRoute { route, path } = client_route::meant(&self.path)?;
        let mut hints = Vec::new();
        if path != self.path {
            hints.push(format!("the right URL is {}, and {}", self.url(&path), base_url(route.api)));
        }
        if !route.accepts(&self.method) {
            let methods: Vec<&str> = route.methods.iter().map(Method::as_str).collect();
            hints.push(format!("send {}", methods.join(" or ")));
            if route.path == routes::RESPONSES {
                let session = self.session.as_deref().unwrap_or("NAME");
                hints.push(format!(
                    "a stored response is at {}/sessions/{session}{}/ID",
                    self.origin,
                    routes::RESPONSES
                ));
            }
        }
        if hints.is_empty() {
            let (name, setting) = match route.api {
                ClientApi::OpenAi => return None,
                ClientApi::Responses => {
                    ("Responses", " (in openai-agents: set_default_openai_api(\"chat_completions\"))")
                }
                ClientApi::Messages => ("Messages", ""),
            };
            hints.push(format!(
                "this engine does not serve the {name} API, and tokentap serves it only where it can read the model's tokenizer (see --tokenizer); use Chat Completions, {}{setting}",
                self.url(routes::CHAT)
            ));
        }
        Some(hints.join("; "))
    }

    /// The server of another project whose route this is.
    fn session_server(&self) -> Option<SessionServer> {
        const MILES: SessionServer = SessionServer { name: "miles' session server", format: "miles" };
        const RLLM: SessionServer = SessionServer { name: "rLLM's model gateway", format: "rllm" };
        const BOTH: SessionServer =
            SessionServer { name: "miles' session server and of rLLM's model gateway", format: "miles" };
        match (&self.session, &*self.path) {
            (Some(_), "/samples") => Some(MILES),
            (Some(_), "/traces") => Some(RLLM),
            (None, path) if path.starts_with("/traces/") => Some(RLLM),
            (None, "/sessions") => Some(BOTH),
            (None, path) => path.strip_prefix("/sessions/").filter(|name| !name.contains('/')).map(|_| BOTH),
            (Some(_), _) => None,
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

/// A server of another project that records sessions.
struct SessionServer {
    name: &'static str,
    /// The format of an export that its clients read.
    format: &'static str,
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
    if OLLAMA.contains(&path) {
        return Some("Ollama's API");
    }
    let (_, operation) = after("/model/")?.rsplit_once('/')?;
    matches!(operation, "invoke" | "invoke-with-response-stream" | "converse" | "converse-stream")
        .then_some("Amazon Bedrock")
}

/// Replies to a request on the control port for a route of the data port.
pub(super) fn on_control(proxy: &Proxy, method: &Method, path: &str, route: Route) -> Option<Response<Body>> {
    let is_bound = identity::in_path(path).is_some();
    if !is_bound && route.endpoint == "other" && client_route::meant(path).is_none() {
        return None;
    }
    let listen = proxy.config.listen;
    let reason = format!("it is a route of the data port (--listen, {listen}), and this is the control port");
    Some(not_served(method, path, &reason))
}

/// A request that tokentap leaves to the engine, although it has the route.
pub(super) struct UnsupportedRequest {
    pub(super) api: Arc<dyn Api>,
    pub(super) path: String,
    /// What tokentap cannot serve.
    pub(super) reason: String,
}

impl UnsupportedRequest {
    /// Returns the engine's reply, or an error with the reason if the engine does not have the route.
    ///
    /// # Errors
    /// When the body of a 404 is cut off.
    pub(super) async fn explain(self, reply: Response<Body>) -> Result<Response<Body>, Error> {
        if reply.status() != StatusCode::NOT_FOUND {
            return Ok(reply);
        }
        let Self { api, path, reason } = self;
        let message =
            format!("tokentap cannot serve this request ({reason}), and the engine does not have the route {path}");
        let not_served = || api.error(StatusCode::NOT_FOUND, message).into_response();
        Ok(from_existing_route(reply).await?.unwrap_or_else(not_served))
    }
}

/// Returns a reply, or `None` if it says that the engine does not have the route.
///
/// # Errors
/// When its body is cut off.
async fn from_existing_route(reply: Response<Body>) -> Result<Option<Response<Body>>, Error> {
    if reply.size_hint().exact().is_none_or(|length| length > LONGEST) {
        return Ok(Some(reply));
    }
    let (head, body) = reply.into_parts();
    let body = body.collect().await.map_err(|error| Failure::Broken(innermost(&*error)))?.to_bytes();
    Ok((!is_missing_route(&body)).then(|| Response::from_parts(head, Body::full(body))))
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

/// Builds a 404.
fn not_served(method: &Method, path: &str, reason: &str) -> Response<Body> {
    // the length of a reply to HEAD is that of the reply to GET
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let message = format!("{method} {path} is not served: {reason}");
    api::unserved(StatusCode::NOT_FOUND, message).into_response()
}
