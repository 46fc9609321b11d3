// SPDX-License-Identifier: Apache-2.0
//! `/abort_request`: its body, and what engines answer.

use http::StatusCode;

use crate::error::Error;

/// The path.
pub(crate) const PATH: &str = "/abort_request";

/// The error code of a tokentap that is asked to abort a request that it does not run.
pub(crate) const NOT_IN_FLIGHT: &str = "not_in_flight";

/// The body of an abort. A duplicate member is refused.
#[derive(serde::Deserialize)]
struct AbortBody {
    #[serde(default)]
    rid: Option<String>,
    #[serde(default)]
    abort_all: Option<bool>,
}

/// The body of the abort of a request.
#[must_use]
pub(crate) fn body(rid: &str) -> String {
    serde_json::json!({ "rid": rid }).to_string()
}

/// Parses the id of the request to abort.
///
/// # Errors
/// When the body is not valid, has no id, or aborts every request.
pub fn rid(body: &[u8]) -> Result<String, Error> {
    let abort: AbortBody =
        serde_json::from_slice(body).map_err(|error| Error::bad_request(format!("{PATH}: the body: {error}")))?;
    let refused = |message: &str| Error::Forbidden { message: message.to_owned() };
    if abort.abort_all == Some(true) {
        return Err(refused("agents may not abort all requests; see --allow-control"));
    }
    let rid = abort.rid.filter(|rid| !rid.is_empty());
    rid.ok_or_else(|| refused("an abort without an id aborts all requests; name one that is in flight here"))
}

/// Distinguishes the 404 of another tokentap, whose request has ended, from that of a server without the route.
pub(crate) fn is_not_in_flight(status: StatusCode, body: &[u8]) -> bool {
    let code = || Some(serde_json::from_slice::<serde_json::Value>(body).ok()?["error"]["code"] == NOT_IN_FLIGHT);
    status == StatusCode::NOT_FOUND && code() == Some(true)
}
