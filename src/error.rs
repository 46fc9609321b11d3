//! Errors of tokentap itself: a status and a body in SGLang's shape.

use http::{HeaderValue, Response, StatusCode, header, response};

use crate::budget::Stopped;

/// An error of a body: it ends the connection, which is how the other side learns of it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An answer that did not come from the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be served as it is.
    #[error("{message}")]
    Client {
        /// 4xx or 501.
        status: StatusCode,
        /// What is wrong, where, and what to do.
        message: String,
    },
    /// The upstream could not be reached, or ended before it had answered.
    #[error("{message}")]
    Upstream {
        /// 502 or 504.
        status: StatusCode,
        /// What happened.
        message: String,
    },
    /// Not now: a limit is reached, or the upstream cannot be connected to. The same request may be sent again in a moment.
    #[error("{message}")]
    Unavailable {
        /// Which resource is missing, and what to do.
        message: String,
    },
    /// A reply can only be encoded from token ids, and the engine reported none.
    #[error("the engine's chat endpoint reported no token ids")]
    NoTokenIds,
    /// `--strict`, and an entropy is missing.
    #[error("entropy is missing ({reason}) and --strict is on")]
    Strict {
        /// The value of `entropy_info.reason`.
        reason: String,
    },
    /// A fault of tokentap.
    #[error("internal error in tokentap: {message}")]
    Internal {
        /// What broke.
        message: String,
    },
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Self {
        let message = stopped.to_string();
        match stopped {
            Stopped::TooLarge { .. } => Self::Client { status: StatusCode::PAYLOAD_TOO_LARGE, message },
            // the client of abandoned work has gone
            Stopped::NoRoom(_) | Stopped::Abandoned => Self::Unavailable { message },
        }
    }
}

impl Error {
    /// A 400 with this message.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::Client { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Client { status, .. } | Self::Upstream { status, .. } => *status,
            Self::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoTokenIds | Self::Strict { .. } => StatusCode::BAD_GATEWAY,
            Self::Internal { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Status and headers of the answer.
    #[must_use]
    pub fn head(&self) -> response::Parts {
        let (mut head, ()) = Response::new(()).into_parts();
        head.status = self.status();
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self, Self::Unavailable { .. }) {
            head.headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        head
    }

    /// The body of the answer: `{"error":{"message":…}}`, as /generate answers.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        serde_json::json!({ "error": { "message": self.to_string() } }).to_string().into_bytes()
    }
}
