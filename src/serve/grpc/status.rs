// SPDX-License-Identifier: Apache-2.0
//! Converts errors to gRPC statuses. The code follows from the HTTP status, here alone.

use http::{HeaderMap, Response, StatusCode};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::engine::transport::failure::UploadError;
use crate::error::Error;
use crate::serve::body;
use crate::serve::problem::Problem;

/// The trailer with the status that HTTP would reply.
const HTTP_STATUS: &str = "tokentap-http-status";

/// The trailer with the name of the error.
const PROBLEM: &str = "tokentap-code";

/// The trailer with the body of the engine's reply.
const BODY: &str = "tokentap-body-bin";

/// The maximum bytes of such a body. Clients refuse more than 8 KiB of metadata, and base64 makes it a third larger.
const LARGEST_BODY: usize = 3 << 10;

/// The maximum bytes of an encoded message. Each byte that is not ASCII takes three.
const LONGEST_MESSAGE: usize = 3 << 10;

fn code(status: StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 | 410 => Code::NotFound,
        408 | 504 => Code::DeadlineExceeded,
        413 | 429 => Code::ResourceExhausted,
        501 => Code::Unimplemented,
        502 | 503 => Code::Unavailable,
        _ if status.is_client_error() => Code::FailedPrecondition,
        _ => Code::Internal,
    }
}

fn with_trailers(status: StatusCode, message: &str, more: impl FnOnce(&mut MetadataMap)) -> Status {
    let mut trailers = MetadataMap::new();
    trailers.insert(HTTP_STATUS, MetadataValue::from(status.as_u16()));
    more(&mut trailers);
    let mut room = LONGEST_MESSAGE;
    let fits = |char: &char| {
        let needed = if (' '..='~').contains(char) && *char != '%' { 1 } else { 3 * char.len_utf8() };
        room.checked_sub(needed).map(|left| room = left).is_some()
    };
    let message: String = message.chars().take_while(fits).collect();
    Status::with_metadata(code(status), message, trailers)
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Self {
        with_trailers(problem.code.status, &problem.message, |trailers| {
            trailers.insert(PROBLEM, MetadataValue::from_static(problem.code.name));
        })
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        with_trailers(error.status(), &error.to_string(), |_| {})
    }
}

/// The response of a call that ends with this status before its first message.
pub(crate) fn into_response(status: Status) -> Response<tonic::body::Body> {
    status.into_http()
}

/// The status of a message that could not be read.
pub(super) fn upload_error(error: UploadError) -> Status {
    body::upload_error(error).into()
}

/// Adds the HTTP status to tonic's error for a message larger than its limit.
pub(super) fn oversize(mut status: Status) -> Status {
    if status.code() == Code::OutOfRange {
        status.metadata_mut().insert(HTTP_STATUS, MetadataValue::from(StatusCode::PAYLOAD_TOO_LARGE.as_u16()));
    }
    status
}

/// Adds the HTTP status to tonic's own error replies, for a message that is too large or malformed.
pub(super) fn with_http_status<B>(mut reply: Response<B>) -> Response<B> {
    let refused = Status::from_header_map(reply.headers()).filter(|_| !reply.headers().contains_key(HTTP_STATUS));
    let status = match refused.map(|status| status.code()) {
        Some(Code::OutOfRange) => StatusCode::PAYLOAD_TOO_LARGE,
        Some(Code::Internal) => StatusCode::BAD_REQUEST,
        _ => return reply,
    };
    reply.headers_mut().insert(HTTP_STATUS, status.as_u16().into());
    reply
}

/// Returns the HTTP status of a failed call from its headers or trailers.
pub(crate) fn failed_status(headers: &HeaderMap) -> Option<StatusCode> {
    let status = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)?;
    let named = headers.get(HTTP_STATUS).and_then(|named| StatusCode::from_bytes(named.as_bytes()).ok());
    Some(named.unwrap_or_else(|| http_status(status.code())))
}

/// Converts a gRPC code to an HTTP status.
fn http_status(code: Code) -> StatusCode {
    let status = match code {
        Code::Ok => 200,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::ResourceExhausted => 429,
        Code::Cancelled => 499,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
    };
    StatusCode::from_u16(status).expect("all statuses are between 200 and 599")
}

/// Converts an error reply of the engine. `body` is empty if it could not be read.
pub(super) fn engine_error(status: StatusCode, body: &[u8]) -> Status {
    with_trailers(status, &message(body), |trailers| {
        if !body.is_empty() && body.len() <= LARGEST_BODY {
            trailers.insert_bin(BODY, MetadataValue::from_bytes(body));
        }
    })
}

/// Finds the message in an error body of SGLang or FastAPI; otherwise returns the whole text.
fn message(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let members = [&value["error"]["message"], &value["message"], &value["detail"], &value["error"]];
    let message = members.into_iter().find_map(serde_json::Value::as_str);
    message.map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_statuses_map_to_grpc_codes() {
        let of = |status: u16| code(StatusCode::from_u16(status).unwrap());
        assert_eq!([400, 401, 403].map(of), [Code::InvalidArgument, Code::Unauthenticated, Code::PermissionDenied]);
        assert_eq!([404, 410, 409].map(of), [Code::NotFound, Code::NotFound, Code::FailedPrecondition]);
        assert_eq!([413, 429].map(of), [Code::ResourceExhausted; 2]);
        assert_eq!(
            [500, 501, 502, 503].map(of),
            [Code::Internal, Code::Unimplemented, Code::Unavailable, Code::Unavailable]
        );
        assert_eq!([504, 408, 422].map(of), [Code::DeadlineExceeded, Code::DeadlineExceeded, Code::FailedPrecondition]);
    }

    #[test]
    fn status_has_the_body_of_the_reply_up_to_the_size_limit() {
        let error = |text: &str| engine_error(StatusCode::BAD_REQUEST, text.as_bytes());
        let text = r#"{"error":{"message":"no such é"}}"#;
        let status = error(text);
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "no such é"));
        assert_eq!(status.metadata().get(HTTP_STATUS).unwrap(), "400");
        assert_eq!(status.metadata().get_bin(BODY).unwrap().to_bytes().unwrap(), text);
        let long = error(&"x".repeat(5000));
        assert_eq!(long.message().len(), LONGEST_MESSAGE);
        let wide = error(&"漢".repeat(5000));
        assert_eq!(wide.message().chars().count(), LONGEST_MESSAGE / 9);
        assert!(long.metadata().get_bin(BODY).is_none());
    }

    #[test]
    fn message_is_read_from_the_error_formats_of_sglang_and_fastapi() {
        assert_eq!(message(br#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(message(br#"{"object":"error","message":"m"}"#), "m");
        assert_eq!(message(b"plain\n"), "plain");
        assert_eq!(message(b""), "");
    }
}
