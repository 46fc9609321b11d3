// SPDX-License-Identifier: Apache-2.0
//! Errors in the format of OpenAI's SDKs, `{"error":{…}}`.
//!
//! Clients decide by the status and the code: agents compact the conversation at `context_length_exceeded`.

use http::StatusCode;
use serde::Serialize;

use crate::api::openai::error::OpenAiError;
use crate::api::{ApiError, to_json};
use crate::chat::RequestError;
use crate::json::Value;
use crate::session::TurnKey;

/// The code of a prompt that is too long.
const CONTEXT_LENGTH_EXCEEDED: &str = "context_length_exceeded";

/// The code of a failed generation.
const SERVER_ERROR: &str = "server_error";

/// Words in messages that mean a prompt that is too long.
const OVERFLOWS: [&str; 3] = ["maximum context length", "context length", "maximum allowed length"];

/// The first words of the message for a previous response that is not stored.
const NO_PREVIOUS_RESPONSE: &str = "there is no stored response";

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ResponsesError<'a>,
}

#[derive(Serialize)]
struct ResponsesError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'static str>,
    code: Option<&'static str>,
}

/// The error for a status and a message.
pub(super) fn error(status: StatusCode, message: impl Into<String>) -> ApiError {
    let OpenAiError { status, message } = OpenAiError::new(status, message);
    let overflows = status.is_client_error() && OVERFLOWS.iter().any(|words| message.contains(words));
    let is_unknown_response = message.starts_with(NO_PREVIOUS_RESPONSE);
    let (kind, code) = match status {
        _ if overflows => ("invalid_request_error", Some(CONTEXT_LENGTH_EXCEEDED)),
        _ if is_unknown_response => ("invalid_request_error", Some("previous_response_not_found")),
        StatusCode::UNAUTHORIZED => ("authentication_error", None),
        StatusCode::FORBIDDEN => ("permission_error", None),
        StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", Some("rate_limit_exceeded")),
        status if status.is_client_error() => ("invalid_request_error", None),
        _ => (SERVER_ERROR, Some(SERVER_ERROR)),
    };
    let param = match is_unknown_response {
        true => Some("previous_response_id"),
        false => overflows.then_some("input"),
    };
    ApiError { status, body: to_json(&ErrorBody { error: ResponsesError { message: &message, kind, param, code } }) }
}

/// The error for a request that continues a response that is not stored. An id that tokentap has not made may be one of the engine.
pub(super) fn no_previous_response(id: &str) -> RequestError {
    if TurnKey::in_response_id(id).is_none() {
        return RequestError::Unsupported(format!("the previous response {id:?}, which is not stored here"));
    }
    RequestError::invalid(format!(
        "{NO_PREVIOUS_RESPONSE} {id:?}: it was deleted or not stored, or belongs to another session or API key. Responses are stored in named sessions: /sessions/ID/v1, or the header X-Session-Id"
    ))
}

/// The error for a request that only the engine can serve, although it refers to what only the session has.
pub(super) fn not_for_engine() -> RequestError {
    RequestError::invalid(
        "only the engine's own endpoint can serve this request, and it does not know previous_response_id and item_reference; send the whole conversation in input",
    )
}

/// The message for a prompt that leaves no room for a reply.
pub(super) fn prompt_too_long(tokens: usize, context: u64) -> String {
    format!("the input has {tokens} tokens, and the model's maximum context length is {context} tokens")
}

/// The error for a generation that the engine aborted, for example for an update of its weights. Clients retry it.
pub(super) fn aborted() -> ApiError {
    error(StatusCode::SERVICE_UNAVAILABLE, "the engine aborted the generation; try again")
}

/// The error of a stored response whose generation ended early.
pub(super) fn cut() -> ApiError {
    error(StatusCode::INTERNAL_SERVER_ERROR, "the generation ended early, for example because the client disconnected")
}

/// The member `error` of a failed response, as JSON text.
pub(super) fn response_member(error: &ApiError) -> String {
    let body = Value::parse(error.body.as_bytes()).unwrap_or_default();
    let member = |name: &str| body.get("error").and_then(|error| error.get(name)).and_then(Value::as_str);
    let code = member("code").unwrap_or(if error.status.is_client_error() { "invalid_prompt" } else { SERVER_ERROR });
    let message = member("message").unwrap_or("the generation failed");
    to_json(&serde_json::json!({ "code": code, "message": message }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_types_and_codes_that_clients_look_for() {
        for (status, message, expected_status, expected, code) in [
            (
                400,
                "no",
                400,
                r#"{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}"#,
                "invalid_prompt",
            ),
            (
                422,
                "no",
                400,
                r#"{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}"#,
                "invalid_prompt",
            ),
            (
                502,
                "gone",
                502,
                r#"{"error":{"message":"gone","type":"server_error","param":null,"code":"server_error"}}"#,
                "server_error",
            ),
            (
                400,
                "longer than the maximum context length",
                400,
                r#"{"error":{"message":"longer than the maximum context length","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}"#,
                "context_length_exceeded",
            ),
        ] {
            let error = error(StatusCode::from_u16(status).unwrap(), message);
            assert_eq!((error.status.as_u16(), &*error.body), (expected_status, expected));
            assert!(response_member(&error).contains(code), "{}", response_member(&error));
        }
    }
}
