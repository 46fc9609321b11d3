//! Errors as OpenAI's clients read them.
//!
//! Clients decide by the status whether to send a request again. 413 and 422 become 400, which all clients treat as final,
//! and a conversation that is too long is named by the words that they look for.

use http::StatusCode;
use serde::Serialize;

use super::to_json;
use crate::api::ApiError;
use crate::json::Value;

/// Words that every client looks for when a conversation is too long.
const TOO_LONG: &str = "maximum context length";

/// Words of engines for the same.
const OVERFLOWS: [&str; 2] = ["context length", "maximum allowed length"];

/// An error for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// 4xx or 5xx.
    pub status: StatusCode,
    /// What is wrong.
    pub message: String,
}

/// The body of an error.
#[derive(Serialize)]
struct ErrorMember<'a> {
    object: &'static str,
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<()>,
    code: u16,
}

impl Problem {
    /// The error for a status and a message, in the status and the words that clients act on.
    #[must_use]
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        match status {
            StatusCode::PAYLOAD_TOO_LARGE => Self {
                status: StatusCode::BAD_REQUEST,
                message: format!("{message} (longer than any conversation of this {TOO_LONG})"),
            },
            StatusCode::UNPROCESSABLE_ENTITY => Self { status: StatusCode::BAD_REQUEST, message },
            status if OVERFLOWS.iter().any(|words| message.contains(words)) && !message.contains(TOO_LONG) => {
                Self { status, message: format!("This conversation exceeds the {TOO_LONG}. {message}") }
            }
            status => Self { status, message },
        }
    }

    /// What the engine answered to a native request.
    #[must_use]
    pub fn from_engine(status: StatusCode, body: &[u8]) -> Self {
        let said = Value::parse(body).ok().and_then(|value| {
            ["error", "message", "detail"].iter().find_map(|name| {
                let said = value.get(name)?;
                said.as_str().or_else(|| said.get("message")?.as_str()).map(str::to_owned)
            })
        });
        Self::new(status, said.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned()))
    }

    /// The `error` of an event of a native stream.
    #[must_use]
    pub fn from_event(error: &str) -> Self {
        let value = Value::parse(error.as_bytes()).unwrap_or_default();
        let code = if let Some(Value::Number(code)) = value.get("code") { code.parse().ok() } else { None };
        let status = code.and_then(|code: u16| StatusCode::from_u16(code).ok());
        let status = status.filter(|status| status.is_client_error() || status.is_server_error());
        let told = value.get("message").and_then(Value::as_str);
        // SGLang 0.5.6 gives no code, and has such events for requests that are wrong alone
        let otherwise = match told {
            Some(_) if value.get("code").is_none() => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status.unwrap_or(otherwise), value.as_str().or(told).unwrap_or(error))
    }

    /// The body of a reply.
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
        to_json(&ErrorMember { object: "error", message: &self.message, kind, param: None, code })
    }
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        Self { status: problem.status, body: problem.body() }
    }
}

/// Appends the event of a stream that cannot go on.
pub(crate) fn write_event(error: &ApiError, out: &mut String) {
    out.push_str("data: {\"error\":");
    out.push_str(&error.body);
    out.push_str("}\n\n");
}

/// Appends the event that ends a stream.
pub(crate) fn write_done(out: &mut String) {
    out.push_str("data: [DONE]\n\n");
}
