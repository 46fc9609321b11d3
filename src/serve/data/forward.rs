//! Everything that is not captured: streamed both ways, byte for byte.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::engine::client::{Call, Failure, Reply};
use crate::engine::forwarded::Forwarded;
use crate::engine::headers;
use crate::engine::routes::{Kind, Route};
use crate::engine::upstream::{failed, send};
use crate::error::Error;
use crate::serve::body::{Body, Upload};
use crate::serve::data::aborts::{self, LARGEST_ABORT};
use crate::serve::data::identity::Identity;
use crate::serve::data::{gate, policy};
use crate::serve::proxy_state::ProxyState;

/// Forwards a request.
///
/// # Errors
/// When no head of a reply came.
pub async fn forward(
    state: &Arc<ProxyState>,
    route: Route,
    request: Request<Incoming>,
    session: Option<Arc<str>>,
) -> Result<Response<Body>, Error> {
    let generates = route.kind == Kind::Uncaptured && request.method() == Method::POST;
    let unseen = if generates {
        let identity = Identity::of(&state.config, session.as_ref(), request.uri(), request.headers(), None)?;
        identity.report_ignored(state);
        Some(Unseen::new(state, route, &identity))
    } else {
        None
    };
    if route.endpoint == gate::ABORT && request.method() == Method::POST && aborts::are_sent_to_engines(state) {
        let (head, body) = request.into_parts();
        let body = Upload::new(body, state.config.limits.client_body_timeout).read(LARGEST_ABORT).await?;
        return Ok(aborts::send_to_engines(state, &head.headers, &body).await);
    }
    let change = route.changes_policy().then(|| policy::Change::new(state));
    let (head, body) = request.into_parts();
    let target = target(&head.uri);
    let upload = Upload::new(body, state.config.limits.client_body_timeout);
    let call = Call::new(head.method, target, upstream_headers(head.headers), upload);
    let limits = &state.config.limits;
    let limit = |limit: Duration| (!limit.is_zero() && !route.is_patient()).then_some(limit);
    let started = Instant::now();
    let deadline = limit(6 * limits.upstream_timeout).map(|total| started + total);
    let reply = match limit(limits.upstream_timeout) {
        Some(patience) => tokio::time::timeout(patience, send(&state.client, &state.metrics, route, call))
            .await
            .map_err(|_| failed(&state.metrics, Failure::Timeout))??,
        None => send(&state.client, &state.metrics, route, call).await?,
    };
    if let Some(unseen) = unseen {
        unseen.answered(reply.status());
    }
    if let Some(change) = change {
        change.answered(reply.status());
        return policy::observe(state, reply).await;
    }
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    let body = Forwarded::limited(&state.metrics, body, limit(limits.upstream_timeout), deadline);
    Ok(Response::from_parts(head, Body::forwarded(body)))
}

/// A reply, unchanged.
#[must_use]
pub fn forwarded(state: &ProxyState, reply: Reply) -> Response<Body> {
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    Response::from_parts(head, Body::forwarded(Forwarded::patient(&state.metrics, Bytes::new(), body)))
}

/// The path and query; the authority of an absolute target is ignored, because the upstream is given by the settings.
#[must_use]
pub fn target(uri: &http::Uri) -> String {
    uri.path_and_query().map_or_else(|| uri.path().to_owned(), |target| target.as_str().to_owned())
}

/// The headers that go upstream.
#[must_use]
pub fn upstream_headers(mut headers: HeaderMap) -> HeaderMap {
    headers::upstream(&mut headers);
    headers
}

/// A generation that tokentap does not see. It is counted, and its session is marked, unless the engine's answer was an error; also
/// where no answer came, for something may have been generated.
#[derive(Debug)]
pub struct Unseen {
    state: Arc<ProxyState>,
    route: Route,
    session: Option<Arc<str>>,
    /// There is nothing that was not seen.
    over: bool,
}

impl Unseen {
    /// One that is about to be asked for.
    #[must_use]
    pub fn new(state: &Arc<ProxyState>, route: Route, identity: &Identity) -> Self {
        let named = identity.explicit && state.config.sessions.record;
        let session = named.then(|| Arc::clone(&identity.session));
        Self { state: Arc::clone(state), route, session, over: false }
    }

    /// The engine has answered.
    pub fn answered(mut self, status: http::StatusCode) {
        self.over = status.is_client_error() || status.is_server_error();
    }

    /// It was seen after all.
    pub fn seen(mut self) {
        self.over = true;
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let Self { state, route, .. } = self;
        if let Some(session) = &self.session {
            state.sessions.incomplete(session);
        }
        state.metrics.uncaptured.with_label_values(&[route.endpoint]).inc();
        let first = state.uncaptured.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(route.endpoint);
        if first {
            tracing::warn!(
                endpoint = route.endpoint,
                "this request generates tokens that tokentap does not see; agents should send JSON to /generate"
            );
        }
    }
}
