//! The HTTP edge: bytes to types and back, on the data port and on the control port.

pub mod aborts;
pub mod access_log;
pub mod api;
pub mod body;
pub mod control;
pub mod data;
pub mod denied;
pub mod forward;
pub mod gate;
pub mod generate;
pub mod identity;
mod misdirected;
pub mod offload;
pub mod page;
pub mod passthrough;
pub mod policy;
pub mod proxy_state;
pub mod readiness;
pub mod redact;
pub mod request_info;
pub mod trainer_state;
pub mod v1;

use http::{HeaderValue, Response, header};

use crate::error::Error;
use body::Body;

/// The answer to an error.
#[must_use]
pub fn error_reply(error: &Error) -> Response<Body> {
    Response::from_parts(error.head(), Body::full(error.body()))
}

/// An answer in JSON.
#[must_use]
pub fn json_reply(status: http::StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut reply = Response::new(Body::full(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
