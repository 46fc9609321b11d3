//! Requests that are not served from tokens.

/// Why a request is not served from tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is not valid: a 400.
    #[error("{0}")]
    Invalid(String),
    /// The conversation has reached a limit: a 403, after which clients do not try again.
    #[error("{message}")]
    LimitReached {
        /// The limit; a label of metrics.
        limit: &'static str,
        /// The message: the limit, how it was reached, and its setting.
        message: String,
    },
    /// Only the engine's own endpoint can serve it.
    #[error("{0}")]
    Unsupported(String),
}

impl RequestError {
    /// An invalid request, with the message for the client.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }
}
