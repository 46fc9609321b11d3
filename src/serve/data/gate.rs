//! What agents may do on the data port: they share an engine, and none may stop or change it for the others.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::engine::client::Call;
use crate::engine::engines::NOT_IN_FLIGHT;
use crate::engine::routes::Route;
use crate::engine::upstream::send;
use crate::error::Error;
use crate::serve::body::{Body, Upload};
use crate::serve::data::aborts::{self, LARGEST_ABORT};
use crate::serve::data::forward::{forwarded, upstream_headers};
use crate::serve::proxy_state::ProxyState;
use crate::serve::reply::json_reply;

/// The one control route of which agents have a part.
pub(super) const ABORT: &str = "/abort_request";

/// Answers a control route on the data port: the abort of a request that is in flight here passes, anything else is refused.
///
/// # Errors
/// Why it is refused, or the error for the client when the engine gave no answer.
pub(crate) async fn control(
    state: &Arc<ProxyState>,
    route: Route,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    if route.endpoint != ABORT {
        return Err(refused(format!(
            "{} is SGLang's control route and is refused where agents are: send it to tokentap's control port, or see --allow-control",
            route.endpoint
        )));
    }
    let (head, body) = request.into_parts();
    let body = Upload::new(body, state.config.limits.client_body_timeout).read(LARGEST_ABORT).await?;
    let rid = rid(&body)?;
    if !state.tools.flights.is_live(&rid) {
        let message = format!("no request with the id {rid:?} is in flight here, and its beginning is not enough");
        // the code tells a tokentap that sends an abort to several engines that this one has the route
        let body = serde_json::json!({"error": {"code": NOT_IN_FLIGHT, "message": message}});
        return Ok(json_reply(StatusCode::NOT_FOUND, body.to_string().into_bytes()));
    }
    if state.tools.flights.is_prefix(&rid) {
        return Err(refused(format!(
            "SGLang would also abort those whose ids begin with {rid:?}; use ids of one length"
        )));
    }
    if state.tools.flights.may_hide(&rid) {
        return Err(refused(format!(
            "SGLang aborts all whose ids begin with {rid:?}, and some are running whose ids are not known here; use ids of 32 characters"
        )));
    }
    // made anew, so that the engine reads what was read here
    let body = serde_json::json!({ "rid": rid }).to_string();
    let mut headers = upstream_headers(head.headers);
    if state.config.keys.agent_token.is_some() {
        state.client.sign(&mut headers);
    }
    if aborts::are_sent_to_engines(state) {
        return Ok(aborts::send_to_engines(state, &headers, &Bytes::from(body)).await);
    }
    let call = Call::whole(Method::POST, ABORT.to_owned(), headers, Bytes::from(body));
    Ok(forwarded(state, send(&state.client, &state.metrics, route, call).await?))
}

/// What an abort asks for; an id that stands twice is refused.
#[derive(serde::Deserialize)]
struct Abort {
    #[serde(default)]
    rid: Option<String>,
    #[serde(default)]
    abort_all: Option<bool>,
}

/// The id that is to be aborted.
///
/// # Errors
/// When it names none, or every request.
pub fn rid(body: &[u8]) -> Result<String, Error> {
    let abort: Abort =
        serde_json::from_slice(body).map_err(|error| Error::bad_request(format!("{ABORT}: the body: {error}")))?;
    if abort.abort_all == Some(true) {
        return Err(refused("agents may not abort everything; see --allow-control".to_owned()));
    }
    let rid = abort.rid.filter(|rid| !rid.is_empty());
    rid.ok_or_else(|| refused("an abort without an id ends every request; name one that is in flight here".to_owned()))
}

fn refused(message: String) -> Error {
    Error::Client { status: StatusCode::FORBIDDEN, message }
}
