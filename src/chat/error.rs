//! Errors of requests that tokentap does not serve from tokens.

/// Why tokentap does not serve a request from tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request is invalid. The reply is a 400.
    #[error("{0}")]
    Invalid(String),
    /// The conversation has reached a limit. The reply is a 403, after which clients do not retry.
    #[error("{message}")]
    LimitReached {
        /// The name of the limit, a label of metrics.
        limit: &'static str,
        /// The message for the client: the count, the limit and its flag.
        message: String,
    },
    /// The prompt leaves no room for a reply in the context of the model. The reply is a 400.
    #[error("{0}")]
    TooLong(String),
    /// Only the engine's own endpoint can serve it.
    #[error("{0}")]
    Unsupported(String),
}

impl RequestError {
    /// An invalid request. `message` is sent to the client.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }
}
