//! `/abort_request` behind a router, which does not have this route. Every engine gets the abort, and the engine that runs the request
//! ends it.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use serde_json::json;

use crate::engine::engines::AbortOutcome;
use crate::serve::body::Body;
use crate::serve::proxy::Proxy;
use crate::serve::reply::json_reply;

/// The maximum bytes of an abort's body.
pub(crate) const LARGEST_ABORT: u64 = 64 << 10;

/// Whether aborts go to the engines of a list, and not to the upstream.
#[must_use]
pub(crate) fn are_sent_to_engines(state: &Proxy) -> bool {
    !state.engines.current().engines.is_empty()
}

/// Whether an engine that may run the request did not accept the abort.
fn has_failed(outcome: &AbortOutcome) -> bool {
    !outcome.is_accepted() && !outcome.is_unsupported() && !outcome.is_absent
}

/// Sends an abort to every engine. If one engine fails, replies its failure, because that engine may run the request. A 404 is no failure
/// if another engine accepts the abort: a tokentap before an engine replies 404 if the request does not run there.
pub(crate) async fn send_to_engines(state: &Proxy, headers: &HeaderMap, body: &Bytes) -> Response<Body> {
    let body = String::from_utf8_lossy(body).into_owned();
    let outcomes = state.engines.send_abort(body, headers.get(header::AUTHORIZATION).cloned()).await;
    let problems: Vec<String> = outcomes.iter().filter_map(AbortOutcome::problem).collect();
    let accepted = outcomes.iter().any(AbortOutcome::is_accepted);
    if accepted && outcomes.iter().all(|outcome| !has_failed(outcome)) {
        return Response::new(Body::full(Bytes::new()));
    }
    let failed = outcomes
        .iter()
        .find(|outcome| has_failed(outcome))
        .or_else(|| outcomes.iter().find(|outcome| !outcome.is_accepted()));
    let status = failed.and_then(|outcome| outcome.answer.as_ref().ok()).copied().unwrap_or(StatusCode::BAD_GATEWAY);
    let message = format!("an engine did not accept the abort: {}", problems.join("; "));
    json_reply(status, json!({"error": {"code": "abort", "message": message}}).to_string().into_bytes())
}
