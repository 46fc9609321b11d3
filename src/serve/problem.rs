// SPDX-License-Identifier: Apache-2.0
//! The errors of the control port, over HTTP and gRPC. This file alone decides their codes and statuses.

use std::io::ErrorKind;

use http::{HeaderValue, Method, Response, StatusCode, header};
use serde_json::json;

use crate::error::{self, Error};
use crate::export::{TooLarge, UnusedOption};
use crate::logits::safetensors::SafetensorsError;
use crate::logits::shm::ShmError;
use crate::rl;
use crate::serve::body::Body;
use crate::session::ledger::LedgerError;
use crate::session::{FinishedError, ListError, SessionError};

/// The code of an error, with its status. The OpenAPI document lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ErrorCode {
    pub name: &'static str,
    pub status: StatusCode,
}

impl ErrorCode {
    pub(crate) const BAD_REQUEST: Self = Self::new("bad_request", StatusCode::BAD_REQUEST);
    pub(crate) const NO_SHM_DIR: Self = Self::new("no_shm_dir", StatusCode::FORBIDDEN);
    pub(crate) const NOT_FOUND: Self = Self::new("not_found", StatusCode::NOT_FOUND);
    pub(crate) const NO_SUCH_SESSION: Self = Self::new("no_such_session", StatusCode::NOT_FOUND);
    pub(crate) const NO_SUCH_VERSION: Self = Self::new("no_such_version", StatusCode::NOT_FOUND);
    pub(crate) const NO_SUCH_LEAF: Self = Self::new("no_such_leaf", StatusCode::NOT_FOUND);
    pub(crate) const NO_SUCH_IMAGE: Self = Self::new("no_such_image", StatusCode::NOT_FOUND);
    pub(crate) const NO_SUCH_TEACHER: Self = Self::new("no_such_teacher", StatusCode::NOT_FOUND);
    pub(crate) const TEACHER_NOT_ALLOWED: Self = Self::new("teacher_not_allowed", StatusCode::FORBIDDEN);
    pub(crate) const TEACHER_MISMATCH: Self = Self::new("teacher_mismatch", StatusCode::CONFLICT);
    pub(crate) const TEACHER_FAILED: Self = Self::new("teacher_failed", StatusCode::BAD_GATEWAY);
    pub(crate) const METHOD: Self = Self::new("method", StatusCode::METHOD_NOT_ALLOWED);
    pub(crate) const SLOW: Self = Self::new("slow", StatusCode::REQUEST_TIMEOUT);
    pub(crate) const FROZEN: Self = Self::new("frozen", StatusCode::CONFLICT);
    pub(crate) const OTHER_GENERATION: Self = Self::new("other_generation", StatusCode::CONFLICT);
    pub(crate) const NO_TOKENIZER: Self = Self::new("no_tokenizer", StatusCode::CONFLICT);
    pub(crate) const EVICTED: Self = Self::new("evicted", StatusCode::GONE);
    pub(crate) const OTHER_STORE: Self = Self::new("other_store", StatusCode::GONE);
    pub(crate) const TOO_LARGE: Self = Self::new("too_large", StatusCode::PAYLOAD_TOO_LARGE);
    pub(crate) const REWARD_TOO_LARGE: Self = Self::new("reward_too_large", StatusCode::PAYLOAD_TOO_LARGE);
    pub(crate) const EXPORT_TOO_LARGE: Self = Self::new("export_too_large", StatusCode::PAYLOAD_TOO_LARGE);
    pub(crate) const CONTENT_TYPE: Self = Self::new("content_type", StatusCode::UNSUPPORTED_MEDIA_TYPE);
    pub(crate) const INTERNAL: Self = Self::new("internal", StatusCode::INTERNAL_SERVER_ERROR);
    pub(crate) const UNMEASURED: Self = Self::new("unmeasured", StatusCode::SERVICE_UNAVAILABLE);
    pub(crate) const NO_MEMORY: Self = Self::new("no_memory", StatusCode::SERVICE_UNAVAILABLE);
    pub(crate) const UNCONFIRMED: Self = Self::new("unconfirmed", StatusCode::SERVICE_UNAVAILABLE);
    pub(crate) const LEDGER_UNAVAILABLE: Self = Self::new("ledger_unavailable", StatusCode::SERVICE_UNAVAILABLE);

    const fn new(name: &'static str, status: StatusCode) -> Self {
        Self { name, status }
    }
}

/// The bytes of the beginning and of the end of an error message, at most. Lists of names are shorter.
const LONGEST_END: usize = 1024;

/// An error of the control port.
#[derive(Debug)]
pub(crate) struct Problem {
    pub code: ErrorCode,
    /// The cause, and what to do about it.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: bounded(message.into()) }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BAD_REQUEST, message)
    }

    pub(crate) fn no_such_session(id: &str) -> Self {
        Self::new(ErrorCode::NO_SUCH_SESSION, format!("there is no session {id:?}"))
    }

    /// The problem of an unknown request id or sequence.
    pub(crate) fn no_entropies() -> Self {
        let message = "no such request or sequence; entropies are kept for 300 s after the end";
        Self::new(ErrorCode::NOT_FOUND, message)
    }

    /// The problem of an error that both ports have, under the code `name`.
    pub(crate) fn from_error(name: &'static str, error: &Error) -> Self {
        Self::new(ErrorCode::new(name, error.status()), error.to_string())
    }

    /// The problem of a body that could not be read.
    pub(crate) fn body(error: &Error) -> Self {
        Self::from_error("body", error)
    }

    /// The problem of an operation on the session `id`.
    pub(crate) fn session(id: &str, error: SessionError) -> Self {
        let code = match error {
            SessionError::Unknown => return Self::no_such_session(id),
            SessionError::NoGenerations => return Self::bad_request(error.to_string()),
            SessionError::NoVersion(_) => ErrorCode::NO_SUCH_VERSION,
            SessionError::NoTurn(_) => ErrorCode::NO_SUCH_LEAF,
            SessionError::Frozen | SessionError::TagsFrozen => ErrorCode::FROZEN,
            SessionError::TooManyTags(_) => ErrorCode::BAD_REQUEST,
            SessionError::EvictedSession => ErrorCode::EVICTED,
            SessionError::Unconfirmed => ErrorCode::UNCONFIRMED,
            SessionError::OtherGeneration(_) => ErrorCode::OTHER_GENERATION,
            SessionError::OtherColumns => ErrorCode::TEACHER_FAILED,
        };
        Self::new(code, format!("session {id:?}: {error}"))
    }

    /// The response `{"error":{"code","message"}}`.
    pub(crate) fn into_response(self) -> Response<Body> {
        let body = json!({"error": {"code": self.code.name, "message": self.message}});
        Response::from_parts(error::head(self.code.status), Body::full(body.to_string()))
    }
}

/// A message that repeats a long value without its middle. The ends have the name of the member and what is allowed.
fn bounded(message: String) -> String {
    let Some(cut) = message.len().checked_sub(2 * LONGEST_END).filter(|cut| *cut > 0) else { return message };
    let start = (0..=LONGEST_END).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
    let end = message.len() - LONGEST_END;
    let end = (end..).find(|at| message.is_char_boundary(*at)).unwrap_or(message.len());
    format!("{}[... {cut} bytes ...]{}", &message[..start], &message[end..])
}

/// The 405 for a route with these methods. A route that allows GET also allows HEAD.
pub(crate) fn method_not_allowed(allowed: &[Method]) -> Response<Body> {
    let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
    let mut response = Problem::new(ErrorCode::METHOD, format!("only {}", names.join(" and "))).into_response();
    let names = names.join(", ").replace("GET", "GET, HEAD");
    response.headers_mut().insert(header::ALLOW, HeaderValue::try_from(names).expect("names of methods are tokens"));
    response
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        Self::new(ErrorCode::LEDGER_UNAVAILABLE, error.to_string())
    }
}

impl From<ListError> for Problem {
    fn from(error: ListError) -> Self {
        match error {
            ListError::Ledger(error) => error.into(),
            error => Self::bad_request(error.to_string()),
        }
    }
}

impl From<FinishedError> for Problem {
    fn from(error: FinishedError) -> Self {
        match error {
            FinishedError::Ledger(error) => error.into(),
            FinishedError::OtherStore | FinishedError::OtherFleet => {
                Self::new(ErrorCode::OTHER_STORE, error.to_string())
            }
            FinishedError::Malformed(_) | FinishedError::NoPartitions => Self::bad_request(error.to_string()),
        }
    }
}

impl From<UnusedOption> for Problem {
    fn from(error: UnusedOption) -> Self {
        Self::bad_request(format!("{}: {error}", error.option.name()))
    }
}

impl From<TooLarge> for Problem {
    fn from(error: TooLarge) -> Self {
        Self::new(ErrorCode::EXPORT_TOO_LARGE, error.to_string())
    }
}

impl From<rl::RequestError> for Problem {
    fn from(error: rl::RequestError) -> Self {
        // all other codes of these errors are a 400
        let is_missing = error.code == ErrorCode::NOT_FOUND.name;
        let status = if is_missing { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
        Self::new(ErrorCode::new(error.code, status), error.to_string())
    }
}

impl From<SafetensorsError> for Problem {
    fn from(error: SafetensorsError) -> Self {
        let code = match error {
            SafetensorsError::Bad(_) => ErrorCode::BAD_REQUEST,
            SafetensorsError::TooLarge(_) => ErrorCode::TOO_LARGE,
            SafetensorsError::Measure(_) => ErrorCode::UNMEASURED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ShmError> for Problem {
    fn from(error: ShmError) -> Self {
        match error {
            ShmError::Safetensors(error) => error.into(),
            ShmError::Missing => Self::new(ErrorCode::NOT_FOUND, error.to_string()),
            ShmError::Name | ShmError::Irregular | ShmError::Early(_) => Self::bad_request(error.to_string()),
            ShmError::Failed(ref cause) => {
                let denied = cause.kind() == ErrorKind::PermissionDenied;
                let status = if denied { StatusCode::FORBIDDEN } else { StatusCode::INTERNAL_SERVER_ERROR };
                Self::new(ErrorCode::new("unread", status), error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_not_repeated_in_full() {
        let value = "\u{e4}".repeat(50_000);
        let message = Problem::bad_request(format!("format: {value} is not one of verl, miles")).message;
        assert!(message.len() < 2 * LONGEST_END + 40, "{}", message.len());
        assert!(
            message.starts_with("format: \u{e4}") && message.ends_with("\u{e4} is not one of verl, miles"),
            "{message}"
        );
        assert_eq!(Problem::bad_request("short").message, "short");
    }
}
