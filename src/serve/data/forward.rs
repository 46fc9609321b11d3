// SPDX-License-Identifier: Apache-2.0
//! Forwards requests whose replies are not read. Bodies are streamed in both directions, byte for byte.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::engine::sglang::abort::PATH;
use crate::engine::sglang::routes::{self, Route, RouteKind};
use crate::engine::transport::client::UpstreamCall;
use crate::engine::transport::failure::Failure;
use crate::engine::transport::forwarded::ForwardedBody;
use crate::engine::transport::headers;
use crate::engine::upstream::{failed, send};
use crate::error::Error;
use crate::generation::events::Generation;
use crate::generation::uncaptured::UncapturedGeneration;
use crate::serve::body::{Body, Upload};
use crate::serve::data::{abort, policy};
use crate::serve::identity::Identity;
use crate::serve::proxy::Proxy;

/// Forwards a request.
///
/// # Errors
/// When the engine sent no head of a reply.
pub(crate) async fn forward(
    proxy: &Arc<Proxy>,
    route: Route,
    request: Request<Incoming>,
    session: Option<Arc<str>>,
) -> Result<Response<Body>, Error> {
    let generates = route.kind == RouteKind::Generating && request.method() == Method::POST;
    let uncaptured = if generates {
        let identity = Identity::find(&proxy.config, session.as_ref(), request.uri().query(), request.headers(), None)?;
        Some(begin_uncaptured(proxy, route, &identity))
    } else {
        None
    };
    if route.endpoint == PATH && request.method() == Method::POST && abort::has_several_engines(proxy) {
        return abort::relay(proxy, request).await;
    }
    let update = policy::WeightUpdate::new(proxy, route);
    let adapter_update = policy::AdapterUpdate::new(proxy, route);
    let pause = policy::PauseCall::new(proxy, route);
    let (head, body) = request.into_parts();
    let target = target(&head.uri);
    let upload = Upload::new(body, proxy.config.limits.client_body_timeout);
    let headers = upstream_headers(head.headers);
    let call = match &adapter_update {
        Some(update) => UpstreamCall::new(head.method, target, headers, update.watch(upload)),
        None => UpstreamCall::new(head.method, target, headers, upload),
    };
    let limits = &proxy.config.limits;
    let limit = |limit: Duration| (!limit.is_zero() && !route.allows_long_silence()).then_some(limit);
    let started = Instant::now();
    let deadline = limit(6 * limits.upstream_timeout).map(|total| started + total);
    let reply = match limit(limits.upstream_timeout) {
        Some(timeout) => tokio::time::timeout(timeout, send(&proxy.client, &proxy.metrics, route, call, started))
            .await
            .map_err(|_| failed(&proxy.metrics, Failure::Timeout))??,
        None => send(&proxy.client, &proxy.metrics, route, call, started).await?,
    };
    if let Some(uncaptured) = uncaptured {
        uncaptured.answered(reply.status());
    }
    if let Some(pause) = pause {
        pause.observe(reply.status());
    }
    if let Some(update) = update {
        return update.observe(reply).await;
    }
    if let Some(update) = adapter_update {
        update.observe(reply.status()).await;
    }
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    let body = ForwardedBody::limited(&proxy.metrics, body, limit(limits.upstream_timeout), deadline);
    Ok(Response::from_parts(head, Body::forwarded(body)))
}

/// The path and query of a request. The authority of an absolute target is ignored, because the settings name the upstream.
pub(crate) fn target(uri: &http::Uri) -> Cow<'static, str> {
    let target = uri.path_and_query().map_or_else(|| uri.path(), |target| target.as_str());
    if target == routes::GENERATE.endpoint { routes::GENERATE.endpoint.into() } else { target.to_owned().into() }
}

/// Returns the headers that are sent upstream.
pub(crate) fn upstream_headers(mut headers: HeaderMap) -> HeaderMap {
    headers::upstream(&mut headers);
    headers
}

/// Begins a generation whose tokens are not captured.
fn begin_uncaptured(proxy: &Proxy, route: Route, identity: &Identity) -> UncapturedGeneration {
    identity.report_ignored(proxy);
    let is_recorded = identity.explicit && proxy.config.sessions.record;
    proxy.generator.uncaptured.begin(route.endpoint, is_recorded.then(|| Arc::clone(&identity.session)))
}

/// Sends a generation whose tokens are not captured. Its reply is not read.
///
/// # Errors
/// When the engine sent no head of a reply.
pub(crate) async fn send_uncaptured(
    proxy: &Proxy,
    route: Route,
    identity: &Identity,
    call: UpstreamCall,
) -> Result<Generation, Error> {
    let unnamed = proxy.generator.context.flights.unnamed();
    let uncaptured = begin_uncaptured(proxy, route, identity);
    let reply = send(&proxy.client, &proxy.metrics, route, call, Instant::now()).await?;
    uncaptured.answered(reply.status());
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    Ok(Generation::unparsed(head, &proxy.metrics, Bytes::new(), body).with_unknown_rid(unnamed))
}
