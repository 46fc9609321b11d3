// SPDX-License-Identifier: Apache-2.0
//! The errors with which tokentap answers requests. [`Error::status`] alone decides their HTTP statuses; gRPC derives its codes from these.

use http::{HeaderValue, Response, StatusCode, header, response};

use crate::budget::Stopped;

/// An error of a body: it ends the connection, which is how the other side learns of it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error reply that is not the engine's. The messages say what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "every `message` is the text for the client")]
pub enum Error {
    /// The request is malformed or has invalid values.
    #[error("{message}")]
    BadRequest { message: String },
    /// A bearer token is missing or wrong.
    #[error("{message}")]
    Unauthorized { message: String },
    /// The client may not send this request, or has reached a limit of its session.
    #[error("{message}")]
    Forbidden { message: String },
    /// The session has a frozen version, and the request would change what is final then.
    #[error("{message}")]
    Frozen { message: String },
    /// The route does not have this method.
    #[error("{message}")]
    MethodNotAllowed { message: String },
    /// The request body arrives too slowly.
    #[error("{message}")]
    RequestTimeout { message: String },
    /// The request is larger than a limit.
    #[error("{message}")]
    TooLarge { message: String },
    /// The request needs a part of HTTP that tokentap does not support.
    #[error("{message}")]
    NotImplemented { message: String },
    /// The upstream cannot be reached, or its reply is cut off or unreadable.
    #[error("{message}")]
    Upstream { message: String },
    /// The upstream did not answer in time.
    #[error("{message}")]
    UpstreamTimeout { message: String },
    /// A limit is reached, or the upstream cannot be connected to. The client may retry in a moment.
    #[error("{message}")]
    Unavailable { message: String },
    /// A reply can only be encoded from token ids, and the engine reported none.
    #[error("the engine's chat endpoint reported no token ids")]
    NoTokenIds,
    /// The engine refused a prompt of ids with pictures, which its own chat endpoint may accept.
    #[error("the engine refused the ids of a prompt with pictures: {message}")]
    ImagesRefused { message: String },
    /// `--strict`, and an entropy is missing.
    #[error("entropy is missing ({reason}) and --strict is on")]
    Strict {
        /// The value of `entropy_info.reason`.
        reason: String,
    },
    /// A fault of tokentap.
    #[error("internal error in tokentap: {message}")]
    Internal { message: String },
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Self {
        let message = stopped.to_string();
        match stopped {
            Stopped::TooLarge { .. } => Self::TooLarge { message },
            // the client of abandoned work has gone
            Stopped::NoRoom(_) | Stopped::Abandoned => Self::Unavailable { message },
        }
    }
}

impl Error {
    /// A [`Self::BadRequest`] with this message.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::BadRequest { message: message.into() }
    }

    /// The status of the reply.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } => StatusCode::BAD_REQUEST,
            Self::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::Frozen { .. } => StatusCode::CONFLICT,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Internal { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NotImplemented { .. } => StatusCode::NOT_IMPLEMENTED,
            Self::Upstream { .. } | Self::NoTokenIds | Self::ImagesRefused { .. } | Self::Strict { .. } => {
                StatusCode::BAD_GATEWAY
            }
            Self::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamTimeout { .. } => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// What kind of error it is, for programs. The engine's errors have no such code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadRequest { .. } => "bad_request",
            Self::Unauthorized { .. } => "unauthorized",
            Self::Forbidden { .. } => "forbidden",
            Self::Frozen { .. } => "frozen",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::RequestTimeout { .. } => "request_timeout",
            Self::TooLarge { .. } => "too_large",
            Self::NotImplemented { .. } => "not_implemented",
            Self::Upstream { .. } | Self::NoTokenIds | Self::ImagesRefused { .. } => "upstream",
            Self::UpstreamTimeout { .. } => "upstream_timeout",
            Self::Unavailable { .. } => "unavailable",
            Self::Strict { .. } => "strict",
            Self::Internal { .. } => "internal",
        }
    }

    /// Status and headers of the reply.
    #[must_use]
    pub fn head(&self) -> response::Parts {
        head(self.status())
    }

    /// The body of the reply: `{"error":{"code":…,"message":…}}`, as /generate replies but for the code.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        serde_json::json!({ "error": { "code": self.code(), "message": self.to_string() } }).to_string().into_bytes()
    }
}

/// The head of an error reply in JSON.
pub(crate) fn head(status: StatusCode) -> response::Parts {
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = status;
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match status {
        StatusCode::UNAUTHORIZED => {
            drop(head.headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            drop(head.headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1")))
        }
        _ => {}
    }
    head
}
