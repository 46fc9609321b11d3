//! Replies that tokentap itself builds, for HTTP clients.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use crate::api::Api;
use crate::error::Error;
use crate::serve::body::Body;

/// Builds the reply for an error.
#[must_use]
pub(crate) fn error_reply(error: &Error) -> Response<Body> {
    Response::from_parts(error.head(), Body::full(error.body()))
}

/// Builds the reply for an error in the format of the control port.
#[must_use]
pub(crate) fn coded_error_reply(error: &Error, code: &str) -> Response<Body> {
    let body = json!({"error": {"code": code, "message": error.to_string()}});
    Response::from_parts(error.head(), Body::full(body.to_string()))
}

/// Builds a JSON reply.
#[must_use]
pub(crate) fn json_reply(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut reply = Response::new(Body::full(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// Builds a plain-text reply.
pub(crate) fn text(status: StatusCode, body: String) -> Response<Body> {
    let mut reply = Response::new(Body::full(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    reply
}

/// Builds an error reply in the format of the control port: `{"error":{"code","message"}}`.
pub(crate) fn problem(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    json_reply(status, json!({"error": {"code": code, "message": message}}).to_string().into_bytes())
}

/// An error reply with the status and the body of an API. The headers stay.
pub(crate) fn in_format_of(api: &dyn Api, mut reply: Response<Body>, message: String) -> Response<Body> {
    let error = api.error(reply.status(), message);
    *reply.status_mut() = error.status;
    reply.map(|_| Body::full(error.body))
}
