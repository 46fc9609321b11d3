//! Requests that a layer rejects.

use http::Response;

use super::ReplyBody;
use crate::error::Error;
use crate::serve::denied::Denied;
use crate::serve::grpc;
use crate::serve::reply::{coded_error_reply, error_reply, in_format_of};
use crate::serve::request_info::{Port, Protocol, RequestInfo};

/// Why a layer rejects a request.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The request is not valid. An HTTP/1 connection is then closed, because its client may frame the body in another way.
    Invalid(Error),
    /// The request failed authentication.
    Denied(Denied),
    /// The request cannot be served now.
    Refused(Error),
}

impl Rejection {
    /// Builds the reply in the protocol of the request, and in the error format of its API or port.
    pub(crate) fn reply(self, info: &RequestInfo) -> Response<ReplyBody> {
        let ends_connection = matches!(self, Self::Invalid(_));
        let reply = match (info.protocol, self) {
            (Protocol::Http, rejection) => {
                let message = match &rejection {
                    Self::Denied(denied) => denied.message().to_owned(),
                    Self::Invalid(error) | Self::Refused(error) => error.to_string(),
                };
                let reply = match rejection {
                    Self::Denied(denied) => denied.reply(info.port),
                    Self::Invalid(error) if info.port == Port::Control => coded_error_reply(&error, "bad_request"),
                    // no request to the control port needs a permit
                    Self::Refused(error) if info.port == Port::Control => coded_error_reply(&error, "restoring"),
                    Self::Invalid(error) | Self::Refused(error) => error_reply(&error),
                };
                match &info.api {
                    Some(api) => in_format_of(&**api, reply, message).map(ReplyBody::http),
                    None => reply.map(ReplyBody::http),
                }
            }
            (Protocol::Grpc, Self::Denied(denied)) => grpc::denied(denied).map(ReplyBody::grpc),
            (Protocol::Grpc, Self::Invalid(error) | Self::Refused(error)) => grpc::refused(&error).map(ReplyBody::grpc),
        };
        reply.map(|body| if ends_connection { body.ending_connection() } else { body })
    }
}
