// SPDX-License-Identifier: Apache-2.0
//! Errors in OpenAI's format.
//!
//! SGLang writes the members of an error without OpenAI's `error` around them. Its clients read them there, and OpenAI's client for JavaScript
//! reads nothing but `error`. So the body has the members in both places.
//!
//! Clients decide by the status whether to retry. 413 and 422 become 400, which all clients treat as final. Clients detect a conversation
//! that is too long by words in the message.

use http::StatusCode;
use serde::Serialize;

use crate::api::{ApiError, to_json};
use crate::json::Value;

/// The words by which clients detect that a conversation is too long.
const CONTEXT_OVERFLOW: &str = "maximum context length";

/// Words in engine messages that mean the same.
const ENGINE_OVERFLOWS: [&str; 2] = ["context length", "maximum allowed length"];

/// An error that is sent to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenAiError {
    /// 4xx or 5xx.
    pub status: StatusCode,
    /// The message.
    pub message: String,
}

/// The body of an error reply, which is also the data of an event.
#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(flatten)]
    members: ErrorMembers<'a>,
    error: ErrorMembers<'a>,
}

#[derive(Clone, Copy, Serialize)]
struct ErrorMembers<'a> {
    object: &'static str,
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<()>,
    code: u16,
}

impl OpenAiError {
    /// An error with the status and the words that clients expect: 413 and 422 become 400, and a message about a context overflow gets
    /// the words that clients look for. An error that has them already stays the same.
    #[must_use]
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        match status {
            StatusCode::PAYLOAD_TOO_LARGE if !message.contains(CONTEXT_OVERFLOW) => Self {
                status: StatusCode::BAD_REQUEST,
                message: format!("{message} (a request of this size exceeds the {CONTEXT_OVERFLOW})"),
            },
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
                Self { status: StatusCode::BAD_REQUEST, message }
            }
            status
                if ENGINE_OVERFLOWS.iter().any(|words| message.contains(words))
                    && !message.contains(CONTEXT_OVERFLOW) =>
            {
                Self { status, message: format!("This conversation exceeds the {CONTEXT_OVERFLOW}. {message}") }
            }
            status => Self { status, message },
        }
    }

    /// Converts an error reply of the engine to a /generate request.
    #[must_use]
    pub fn from_engine(status: StatusCode, body: &[u8]) -> Self {
        let message = Value::parse(body).ok().and_then(|value| {
            ["error", "message", "detail"].iter().find_map(|name| {
                let member = value.get(name)?;
                member.as_str().or_else(|| member.get_str("message")).map(str::to_owned)
            })
        });
        Self::new(status, message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned()))
    }

    /// Converts the `error` member of an event of a /generate stream.
    #[must_use]
    pub fn from_event(error: &str) -> Self {
        let value = Value::parse(error.as_bytes()).unwrap_or_default();
        let code = if let Some(Value::Number(code)) = value.get("code") { code.parse().ok() } else { None };
        let status = code.and_then(|code: u16| StatusCode::from_u16(code).ok());
        let status = status.filter(|status| status.is_client_error() || status.is_server_error());
        let message = value.get_str("message");
        // SGLang 0.5.6 sends no code, and sends such events only for invalid requests
        let default_status = match message {
            Some(_) if value.get("code").is_none() => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status.unwrap_or(default_status), value.as_str().or(message).unwrap_or(error))
    }

    /// The body of the error reply, as JSON text.
    #[must_use]
    pub fn body(&self) -> String {
        let kind = match self.status {
            StatusCode::BAD_REQUEST => "BadRequestError",
            StatusCode::UNAUTHORIZED => "AuthenticationError",
            StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
            status if status.is_client_error() => "InvalidRequestError",
            _ => "InternalServerError",
        };
        let code = self.status.as_u16();
        let members = ErrorMembers { object: "error", message: &self.message, kind, param: None, code };
        to_json(&ErrorBody { members, error: members })
    }
}

impl From<OpenAiError> for ApiError {
    fn from(error: OpenAiError) -> Self {
        Self { status: error.status, body: error.body() }
    }
}

/// Appends the event of a stream that fails.
pub(crate) fn write_event(error: &ApiError, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&error.body);
    out.push_str("\n\n");
}

/// Appends the event that ends a stream.
pub(crate) fn write_done(out: &mut String) {
    out.push_str("data: [DONE]\n\n");
}
