//! Requests that a layer rejects.

use http::Response;

use super::ReplyBody;
use crate::error::Error;
use crate::serve::grpc;
use crate::serve::problem::Problem;
use crate::serve::request_info::{Port, Protocol, RequestInfo};

/// Why a layer rejects a request.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The request is not valid. An HTTP/1 connection is then closed, because its client may frame the body in another way.
    Invalid(Error),
    /// The request failed authentication.
    Denied(Error),
    /// The request cannot be served now.
    Refused(Error),
}

impl Rejection {
    /// Builds the response in the protocol of the request, and in the error format of its API or port.
    pub(crate) fn into_response(self, info: &RequestInfo) -> Response<ReplyBody> {
        let (error, code, ends_connection) = match self {
            Self::Invalid(error) => (error, "bad_request", true),
            Self::Denied(error) => (error, "denied", false),
            // no request to the control port needs a permit
            Self::Refused(error) => (error, "restoring", false),
        };
        let response = match (info.protocol, info.port, &info.api) {
            (Protocol::Grpc, ..) if code == "denied" => {
                grpc::into_response(Problem::from_error(code, &error).into()).map(ReplyBody::grpc)
            }
            (Protocol::Grpc, ..) => grpc::into_response(error.into()).map(ReplyBody::grpc),
            (Protocol::Http, Port::Control, _) => {
                Problem::from_error(code, &error).into_response().map(ReplyBody::http)
            }
            (Protocol::Http, Port::Data, Some(api)) => error.into_api_response(&**api).map(ReplyBody::http),
            (Protocol::Http, Port::Data, None) => error.into_response().map(ReplyBody::http),
        };
        response.map(|body| if ends_connection { body.ending_connection() } else { body })
    }
}
