//! Requests that a layer refuses.

use http::Response;

use super::ReplyBody;
use crate::error::Error;
use crate::serve::denied::Denied;
use crate::serve::grpc;
use crate::serve::reply::error_reply;
use crate::serve::request_info::{Protocol, RequestInfo};

/// Why a layer refuses a request.
#[derive(Debug)]
pub enum Rejection {
    /// The request is not valid. Over HTTP/1 its connection ends: its client may also count its bytes in another way.
    Invalid(Error),
    /// The sender may not send it.
    Denied(Denied),
    /// It cannot be served, or not now.
    Refused(Error),
}

impl Rejection {
    /// The reply, in the request's protocol and the port's shape of an error.
    pub fn reply(self, info: &RequestInfo) -> Response<ReplyBody> {
        let ends_connection = matches!(self, Self::Invalid(_));
        let reply = match (info.protocol, self) {
            (Protocol::Http, Self::Denied(denied)) => denied.reply(info.port).map(ReplyBody::http),
            (Protocol::Http, Self::Invalid(error) | Self::Refused(error)) => error_reply(&error).map(ReplyBody::http),
            (Protocol::Grpc, Self::Denied(denied)) => grpc::denied(denied).map(ReplyBody::grpc),
            (Protocol::Grpc, Self::Invalid(error) | Self::Refused(error)) => grpc::refused(&error).map(ReplyBody::grpc),
        };
        reply.map(|body| if ends_connection { body.ending_connection() } else { body })
    }
}
