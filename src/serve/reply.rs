//! Replies that tokentap itself builds, for HTTP clients.

use http::{HeaderValue, Response, header};

use crate::error::Error;
use crate::serve::body::Body;

/// Builds the reply for an error.
#[must_use]
pub fn error_reply(error: &Error) -> Response<Body> {
    Response::from_parts(error.head(), Body::full(error.body()))
}

/// Builds a JSON reply.
#[must_use]
pub fn json_reply(status: http::StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut reply = Response::new(Body::full(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
