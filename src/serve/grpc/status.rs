//! What a call is told that cannot be served: the statuses of HTTP in gRPC's words.

use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::error::BoxError;
use crate::error::Error;
use crate::serve::body::{Body, broken};
use crate::serve::control::v1::Problem;
use crate::serve::denied::Denied;

/// The status that HTTP answers in this case.
const HTTP_STATUS: &str = "tokentap-http-status";

/// The name of what is wrong.
const PROBLEM: &str = "tokentap-code";

/// The body of the engine's answer.
const BODY: &str = "tokentap-body-bin";

/// Bytes of such a body that trailers have room for: clients refuse more than 8 KiB of metadata, and these grow by a third on the way.
const LARGEST_BODY: usize = 3 << 10;

/// Bytes of a message on the way, where each that is not ASCII takes three.
const LONGEST_MESSAGE: usize = 3 << 10;

/// Bytes of an answer that are read for the sake of its message.
const READ: usize = 1 << 20;

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

/// What a trainer is told.
pub(super) fn problem(problem: &Problem) -> Status {
    with_trailers(problem.status, &problem.message, |trailers| {
        trailers.insert(PROBLEM, MetadataValue::from_static(problem.code));
    })
}

/// What an agent is told by tokentap itself.
pub(super) fn error(error: &Error) -> Status {
    with_trailers(error.status(), &error.to_string(), |_| {})
}

/// The reply to a call that its sender may not make.
#[must_use]
pub fn denied(denied: Denied) -> Response<tonic::body::Body> {
    let status = with_trailers(denied.status(), denied.message(), |trailers| {
        trailers.insert(PROBLEM, MetadataValue::from_static("denied"));
    });
    status.into_http()
}

/// The reply to a call that a layer refuses.
#[must_use]
pub fn refused(error: &Error) -> Response<tonic::body::Body> {
    self::error(error).into_http()
}

/// What somebody is told whose message did not come whole.
pub(super) fn upload(error: &BoxError) -> Status {
    self::error(&broken(error))
}

/// What somebody is told whose message is larger than its limit, which is not looked at beyond its length.
pub(super) fn sized(mut status: Status) -> Status {
    if status.code() == Code::OutOfRange {
        status.metadata_mut().insert(HTTP_STATUS, MetadataValue::from(StatusCode::PAYLOAD_TOO_LARGE.as_u16()));
    }
    status
}

/// Adds the HTTP status to a reply of tonic's own: to a message that is too large, or is no message.
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

/// The status of HTTP for a call that failed, from the headers or trailers that say so.
#[must_use]
pub fn failed_status(headers: &HeaderMap) -> Option<StatusCode> {
    let status = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)?;
    let named = headers.get(HTTP_STATUS).and_then(|named| StatusCode::from_bytes(named.as_bytes()).ok());
    Some(named.unwrap_or_else(|| http_status(status.code())))
}

/// The status of HTTP for a code of gRPC.
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
    StatusCode::from_u16(status).expect("all of them are from 200 to 599")
}

/// What an agent is told by an answer that is no success.
pub(super) async fn answer(reply: Response<Body>) -> Status {
    let (head, body) = reply.into_parts();
    // an answer that breaks off, or goes on for ever, has said its status
    let body = Limited::new(body, READ).collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    with_trailers(head.status, &message(&body), |trailers| {
        if !body.is_empty() && body.len() <= LARGEST_BODY {
            trailers.insert_bin(BODY, MetadataValue::from_bytes(&body));
        }
    })
}

/// The message of an error as SGLang and FastAPI write it, else the text.
fn message(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let said = [&value["error"]["message"], &value["message"], &value["detail"], &value["error"]];
    let said = said.into_iter().find_map(serde_json::Value::as_str);
    said.map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_http_have_their_codes() {
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

    #[tokio::test]
    async fn an_answer_keeps_its_body_where_there_is_room() {
        let reply = |text: String| {
            let mut reply = Response::new(Body::full(text));
            *reply.status_mut() = StatusCode::BAD_REQUEST;
            reply
        };
        let text = r#"{"error":{"message":"no such é"}}"#;
        let status = answer(reply(text.to_owned())).await;
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "no such é"));
        assert_eq!(status.metadata().get(HTTP_STATUS).unwrap(), "400");
        assert_eq!(status.metadata().get_bin(BODY).unwrap().to_bytes().unwrap(), text);
        let long = answer(reply("x".repeat(5000))).await;
        assert_eq!(long.message().len(), LONGEST_MESSAGE);
        let wide = answer(reply("漢".repeat(5000))).await;
        assert_eq!(wide.message().chars().count(), LONGEST_MESSAGE / 9);
        assert!(long.metadata().get_bin(BODY).is_none());
    }

    #[test]
    fn messages_are_found_where_servers_put_them() {
        assert_eq!(message(br#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(message(br#"{"object":"error","message":"m"}"#), "m");
        assert_eq!(message(b"plain\n"), "plain");
        assert_eq!(message(b""), "");
    }
}
