//! What a client of OpenAI's API is told when a request fails.
//!
//! Clients decide by the status whether to send a request again. 413 and 422 say the same as 400 here, which all of them take for final,
//! and a conversation that is too long is named by the words that they look for.

use http::StatusCode;

use super::quoted;
use crate::json::Value;

/// More of an engine's error is not read.
pub const LARGEST: usize = 1 << 20;

/// What every client looks for when a conversation has become too long.
const TOO_LONG: &str = "maximum context length";

/// The status and the body of an error.
#[must_use]
pub fn of(status: StatusCode, message: &str) -> (StatusCode, Vec<u8>) {
    let (status, message) = match status {
        StatusCode::PAYLOAD_TOO_LARGE => {
            (StatusCode::BAD_REQUEST, format!("{message} (longer than any conversation of this {TOO_LONG})"))
        }
        StatusCode::UNPROCESSABLE_ENTITY => (StatusCode::BAD_REQUEST, message.to_owned()),
        status if message.contains("context length") && !message.contains(TOO_LONG) => {
            (status, format!("This conversation exceeds the {TOO_LONG}. {message}"))
        }
        status => (status, message.to_owned()),
    };
    let kind = match status {
        StatusCode::BAD_REQUEST => "BadRequestError",
        StatusCode::UNAUTHORIZED => "AuthenticationError",
        StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
        status if status.is_client_error() => "InvalidRequestError",
        _ => "InternalServerError",
    };
    let body = format!(
        "{{\"object\":\"error\",\"message\":{},\"type\":\"{kind}\",\"param\":null,\"code\":{}}}",
        quoted(&message),
        status.as_u16()
    );
    (status, body.into_bytes())
}

/// The same for what the engine answered to a native request.
#[must_use]
pub fn from_engine(status: StatusCode, body: &[u8]) -> (StatusCode, Vec<u8>) {
    let message = match Value::parse(body) {
        Ok(value) => ["error", "message", "detail"].iter().find_map(|name| {
            let said = value.get(name)?;
            said.as_str().or_else(|| said.get("message")?.as_str()).map(str::to_owned)
        }),
        Err(_) => None,
    };
    of(status, &message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned()))
}
