//! Requests that fail authentication.

use http::{HeaderValue, Response, StatusCode, header};

use crate::error::Error;
use crate::serve::body::Body;
use crate::serve::reply::error_reply;
use crate::serve::reply::problem;
use crate::serve::request_info::Port;

/// Why a request is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The `Host` is neither loopback nor configured. A page that rebinds its DNS name would send its own name.
    Host,
    /// The request comes from a page of another site.
    Origin,
    /// The bearer token is missing or wrong.
    Token,
    /// The bearer token is missing or wrong on the data port.
    Agent,
}

impl Denied {
    /// 401 if a token would help, else 403.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::Token | Self::Agent => StatusCode::UNAUTHORIZED,
            Self::Host | Self::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// The message for the client.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::Host => "this Host is neither loopback nor one of --control-host",
            Self::Origin => "requests from pages of other sites are refused",
            Self::Agent => "tokentap's bearer token is needed: see --agent-token",
            Self::Token => "a bearer token is needed: see --control-token and --metrics-token",
        }
    }

    /// Builds the reply over HTTP, in the error format of the port.
    #[must_use]
    pub fn reply(self, port: Port) -> Response<Body> {
        let (status, message) = (self.status(), self.message());
        let mut reply = match port {
            Port::Data => error_reply(&Error::Client { status, message: message.to_owned() }),
            Port::Control => problem(status, "denied", message),
        };
        if status == StatusCode::UNAUTHORIZED {
            reply.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        reply
    }
}
