//! Control routes on the data port. Agents share an engine, so no agent may stop or change it for the others.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::engine::sglang::abort::{self, PATH as ABORT};
use crate::engine::sglang::routes::Route;
use crate::engine::transport::client::UpstreamCall;
use crate::engine::upstream::send;
use crate::error::Error;
use crate::serve::body::{Body, Upload};
use crate::serve::data::abort_relay::{self, LARGEST_ABORT};
use crate::serve::data::forward::{forwarded, upstream_headers};
use crate::serve::proxy::Proxy;
use crate::serve::reply::json_reply;

/// Serves a control route on the data port. Forwards the abort of a request that is in flight here and refuses everything else.
///
/// # Errors
/// When the request is refused, or the engine did not reply.
pub(crate) async fn control(
    state: &Arc<Proxy>,
    route: Route,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    // the only control route that agents may use, with limits
    if route.endpoint != ABORT {
        return Err(refused(format!(
            "{} is a control route of SGLang, which the data port refuses: send it to tokentap's control port, or see --allow-control",
            route.endpoint
        )));
    }
    if request.method() != Method::POST {
        return Ok(post_only());
    }
    let (head, body) = request.into_parts();
    let body = Upload::new(body, state.config.limits.client_body_timeout).read(LARGEST_ABORT).await?;
    let rid = abort::rid(&body)?;
    if !state.generator.context.flights.is_live(&rid) {
        let message = format!("no request with the id {rid:?} is in flight here; a prefix of an id is not enough");
        // the code shows a tokentap that sends an abort to several engines that this one has the route
        let body = serde_json::json!({"error": {"code": abort::NOT_IN_FLIGHT, "message": message}});
        return Ok(json_reply(StatusCode::NOT_FOUND, body.to_string().into_bytes()));
    }
    if state.generator.context.flights.is_prefix(&rid) {
        return Err(refused(format!(
            "SGLang would also abort other requests whose ids begin with {rid:?}; use ids of equal length"
        )));
    }
    if state.generator.context.flights.may_prefix_unknown_rid(&rid) {
        return Err(refused(format!(
            "SGLang aborts all requests whose ids begin with {rid:?}, and requests with unknown ids are running; use ids of 32 characters"
        )));
    }
    // serialized again, so that the engine parses the same id
    let body = abort::body(&rid);
    let mut headers = upstream_headers(head.headers);
    if state.config.keys.agent_token.is_some() {
        state.client.sign(&mut headers);
    }
    if abort_relay::are_sent_to_engines(state) {
        return Ok(abort_relay::send_to_engines(state, &headers, &Bytes::from(body)).await);
    }
    let call = UpstreamCall::whole(Method::POST, ABORT.into(), headers, Bytes::from(body));
    Ok(forwarded(state, send(&state.client, &state.metrics, route, call).await?))
}

/// The answer to an abort whose method is not POST, with the status and the header of SGLang.
fn post_only() -> Response<Body> {
    let error = Error::Client { status: StatusCode::METHOD_NOT_ALLOWED, message: format!("{ABORT}: only POST") };
    let mut reply = json_reply(error.status(), error.body());
    reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    reply
}

fn refused(message: String) -> Error {
    Error::Client { status: StatusCode::FORBIDDEN, message }
}
