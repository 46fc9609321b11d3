//! Errors of requests that tokentap does not serve from tokens.

use crate::budget::Stopped;

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
    #[error("The input ({tokens} tokens) is longer than the model's context length ({context} tokens).")]
    TooLong {
        /// The number of its tokens. It has more if it is more than twice as long as the context, because only so many are encoded.
        tokens: usize,
        /// The context of the model, in tokens.
        context: u64,
    },
    /// The work on it does not go on. If there was no room, the reply is a 503.
    #[error(transparent)]
    Stopped(#[from] Stopped),
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
