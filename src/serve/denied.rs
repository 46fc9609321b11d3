//! Requests that their senders may not send.

use http::{HeaderValue, Response, StatusCode, header};

use crate::error::Error;
use crate::serve::body::Body;
use crate::serve::control::problem;
use crate::serve::reply::error_reply;
use crate::serve::request_info::Port;

/// Why a request may not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The `Host` is neither loopback nor configured: a page that rebinds its name would send its own.
    Host,
    /// The request is a foreign page's.
    Origin,
    /// The bearer token is missing or wrong.
    Token,
    /// The same on the data port.
    Agent,
}

impl Denied {
    /// 401 where a token would help, else 403.
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
            Self::Host => "this Host is neither loopback nor named by --control-host",
            Self::Origin => "requests of foreign pages are refused",
            Self::Agent => "a bearer token is needed, tokentap's own: see --agent-token",
            Self::Token => "a bearer token is needed: see --control-token and --metrics-token",
        }
    }

    /// The reply over HTTP, in the port's shape of an error.
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
