// SPDX-License-Identifier: Apache-2.0
//! Errors in Anthropic's format.
//!
//! Clients decide by the type, the status and some words of the message: Claude Code compacts the conversation when a message says "prompt
//! is too long".

use http::StatusCode;
use serde::Serialize;

use crate::api::{ApiError, to_json};

/// The status of an overloaded server. It is not registered, so `http` has no name for it.
const OVERLOADED: u16 = 529;

/// Words in engine messages that mean a prompt that is too long.
const OVERFLOWS: [&str; 3] = ["context length", "maximum allowed length", "prompt is too long"];

/// The words by which clients recognise a prompt that is too long.
const PROMPT_TOO_LONG: &str = "prompt is too long";

#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicError<'a>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<ErrorDetails>,
}

#[derive(Serialize)]
struct ErrorDetails {
    error_code: &'static str,
    unsupported: [&'static str; 1],
}

/// The message of the error for a request of a message thread, whose earlier messages the client expects the server to know. Its details
/// make Anthropic's SDKs and Claude Code send the whole conversation instead.
pub(super) const NO_THREADS: &str =
    "thread: message threads are not supported; send the whole conversation without `thread`";

/// The error for a status and a message.
pub(super) fn error(status: StatusCode, message: &str) -> ApiError {
    let message = &*total_too_long(message).unwrap_or_else(|| message.to_owned());
    let overflow = OVERFLOWS.iter().any(|words| message.contains(words)) && !message.contains(PROMPT_TOO_LONG);
    let message = if overflow { format!("{PROMPT_TOO_LONG}: {message}") } else { message.to_owned() };
    // clients treat a 422 as unknown, and retry a 503 only as "overloaded"
    let status = match status {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        StatusCode::SERVICE_UNAVAILABLE => overloaded(),
        status => status,
    };
    let details = (message == NO_THREADS)
        .then_some(ErrorDetails { error_code: "thread_unsupported_request", unsupported: ["thread"] });
    let body = ErrorBody { kind: "error", error: AnthropicError { kind: kind(status), message: &message, details } };
    ApiError { status, body: to_json(&body) }
}

/// The message for a request whose prompt and `max_tokens` exceed the context together, in the words on which clients ask for fewer tokens.
/// `None` for other messages of the engine.
fn total_too_long(message: &str) -> Option<String> {
    if !message.contains("Requested token count exceeds") {
        return None;
    }
    let numbers = message.split(|character: char| !character.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let [context, _, input, output] = numbers.collect::<Vec<_>>()[..] else { return None };
    Some(format!("input length and `max_tokens` exceed the limit: {input} + {output} > {context}"))
}

/// The error for a prompt that leaves no room for a reply.
pub(super) fn prompt_too_long(tokens: usize, context: u64) -> String {
    format!("{PROMPT_TOO_LONG}: {tokens} tokens > {context} maximum")
}

/// The error for a generation that the engine aborted, for example for an update of its weights. Clients retry it.
pub(super) fn aborted() -> ApiError {
    error(overloaded(), "the engine aborted the generation; try again")
}

fn overloaded() -> StatusCode {
    StatusCode::from_u16(OVERLOADED).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}

fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        OVERLOADED => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_types_and_words_that_clients_look_for() {
        for (status, message, expected_status, expected) in [
            (400, "no", 400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#),
            (422, "no", 400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#),
            (503, "full", 529, r#"{"type":"error","error":{"type":"overloaded_error","message":"full"}}"#),
            (502, "gone", 502, r#"{"type":"error","error":{"type":"api_error","message":"gone"}}"#),
            (
                400,
                NO_THREADS,
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"thread: message threads are not supported; send the whole conversation without `thread`","details":{"error_code":"thread_unsupported_request","unsupported":["thread"]}}}"#,
            ),
            (
                400,
                "longer than the model's context length",
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: longer than the model's context length"}}"#,
            ),
        ] {
            let error = error(StatusCode::from_u16(status).unwrap(), message);
            assert_eq!((error.status.as_u16(), &*error.body), (expected_status, expected));
        }
    }
}
