// SPDX-License-Identifier: Apache-2.0
//! `/abort_request`: the only control route of SGLang that agents may use, and only for a request that is in flight here. Agents share an
//! engine, so no agent may stop or change it for the others.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use tokio::time::Instant;

use crate::engine::engines::AbortOutcome;
use crate::engine::sglang::abort::{self, PATH};
use crate::engine::sglang::routes::Route;
use crate::engine::transport::client::UpstreamCall;
use crate::engine::transport::headers;
use crate::engine::upstream::send;
use crate::error::Error;
use crate::serve::body::{Body, read_body};
use crate::serve::proxy::Proxy;
use crate::serve::response::{forwarded_response, json_response};

/// The maximum bytes of an abort's body.
const LARGEST: u64 = 64 << 10;

/// Serves a control route on the data port. Forwards the abort of a request that is in flight here and refuses everything else.
///
/// # Errors
/// When the request is refused, or the engine did not reply.
pub(crate) async fn handle_control(
    proxy: &Arc<Proxy>,
    route: Route,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    if route.endpoint != PATH {
        return Err(refused(format!(
            "{} is a control route of SGLang, which the data port refuses: send it to tokentap's control port, or see --allow-control",
            route.endpoint
        )));
    }
    if request.method() != Method::POST {
        let mut response = Error::MethodNotAllowed { message: format!("{PATH}: only POST") }.into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return Ok(response);
    }
    let (head, body) = request.into_parts();
    let body = read_body(body, &proxy.config.limits, None, LARGEST).await?;
    let rid = abort::rid(&body)?;
    let flights = &proxy.generator.context.flights;
    if !flights.is_live(&rid) {
        let message = format!("no request with the id {rid:?} is in flight here; a prefix of an id is not enough");
        // the code shows a tokentap that sends an abort to several engines that this one has the route
        let body = json!({"error": {"code": abort::NOT_IN_FLIGHT, "message": message}});
        return Ok(json_response(StatusCode::NOT_FOUND, body.to_string()));
    }
    if flights.is_prefix(&rid) {
        return Err(refused(format!(
            "SGLang would also abort other requests whose ids begin with {rid:?}; use ids of equal length"
        )));
    }
    if flights.may_prefix_unknown_rid(&rid) {
        return Err(refused(format!(
            "SGLang aborts all requests whose ids begin with {rid:?}, and requests with unknown ids are running; use ids of 32 characters"
        )));
    }
    // serialized again, so that the engine parses the same id
    let current = flights.mark_aborted(&rid);
    let body = Bytes::from(abort::body(current.as_deref().unwrap_or(&rid)));
    let mut headers = head.headers;
    headers::upstream(&mut headers);
    if proxy.config.keys.agent_token.is_some() {
        proxy.client.sign(&mut headers);
    }
    if has_several_engines(proxy) {
        return Ok(send_to_engines(proxy, &headers, &body).await);
    }
    let call = UpstreamCall::whole(Method::POST, PATH.into(), headers, body);
    Ok(forwarded_response(proxy, send(&proxy.client, &proxy.metrics, route, call, Instant::now()).await?))
}

fn refused(message: String) -> Error {
    Error::Forbidden { message }
}

/// Whether an abort must go to the engines of a list: a router does not have the route.
pub(super) fn has_several_engines(proxy: &Proxy) -> bool {
    !proxy.engines.current().engines.is_empty()
}

/// Reads an abort and sends it to every engine.
///
/// # Errors
/// When the body cannot be read.
pub(super) async fn relay(proxy: &Proxy, request: Request<Incoming>) -> Result<Response<Body>, Error> {
    let (head, body) = request.into_parts();
    let body = read_body(body, &proxy.config.limits, None, LARGEST).await?;
    Ok(send_to_engines(proxy, &head.headers, &body).await)
}

/// Sends an abort to every engine; the engine that runs the request ends it. If one engine fails, replies its failure, because that engine may
/// run the request. A 404 is no failure if another engine accepts the abort: a tokentap before an engine replies 404 if the request does not
/// run there.
async fn send_to_engines(proxy: &Proxy, headers: &HeaderMap, body: &Bytes) -> Response<Body> {
    let has_failed =
        |outcome: &&AbortOutcome| !outcome.is_accepted() && !outcome.is_unsupported() && !outcome.is_absent;
    let body = String::from_utf8_lossy(body).into_owned();
    let outcomes = proxy.engines.send_abort(body, headers.get(header::AUTHORIZATION).cloned()).await;
    let failed = outcomes.iter().find(has_failed);
    if failed.is_none() && outcomes.iter().any(AbortOutcome::is_accepted) {
        return Response::new(Body::full(Bytes::new()));
    }
    let failed = failed.or_else(|| outcomes.iter().find(|outcome| !outcome.is_accepted()));
    let status = failed.and_then(|outcome| outcome.answer.as_ref().ok()).copied().unwrap_or(StatusCode::BAD_GATEWAY);
    let problems: Vec<String> = outcomes.iter().filter_map(AbortOutcome::problem).collect();
    let message = format!("an engine did not accept the abort: {}", problems.join("; "));
    json_response(status, json!({"error": {"code": "abort", "message": message}}).to_string())
}
