//! Why the upstream gave no answer.

use http::StatusCode;

use crate::error::Error;

/// Why a reply, or the rest of one, did not come.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The target cannot be sent as it was written.
    #[error("the path {0:?} would be changed on its way to the engine; send it normalised and percent-encoded")]
    Target(String),
    /// No connection.
    #[error("cannot connect to the SGLang server at {upstream}: {cause}")]
    Connect {
        /// Where it should be.
        upstream: String,
        /// What the system said.
        cause: String,
    },
    /// No connection could be made so often in a row that none was tried.
    #[error(
        "the SGLang server at {upstream} could not be connected to {failures} times in a row; try again in a moment"
    )]
    Unreachable {
        /// Where it should be.
        upstream: String,
        /// In a row.
        failures: u32,
    },
    /// Too late.
    #[error("the SGLang server did not answer in time")]
    Timeout,
    /// The connection ended, or what came is not HTTP.
    #[error("the connection to the SGLang server failed: {0}")]
    Broken(String),
    /// The client's own body ended early or came too slowly.
    #[error(transparent)]
    RequestBody(#[from] UploadError),
}

/// Why a client's body did not come to its end. Bodies of calls fail with it, so that the upstream is not blamed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UploadError {
    /// It was waited for too long.
    #[error(
        "the request body came too slowly: it paused for --client-body-timeout, or was that far behind 1 KiB a second"
    )]
    Slow,
    /// There is no room for it; it may be sent again in a moment.
    #[error("tokentap holds as many bytes of requests as it may; try again, or raise --max-bytes-in-flight")]
    NoRoom,
    /// It ended early, or is not HTTP.
    #[error("the request body could not be read: {0}")]
    Broken(String),
}

impl Failure {
    /// The name metrics use; `None` where the upstream is not at fault.
    #[must_use]
    pub fn kind(&self) -> Option<&'static str> {
        match self {
            Self::Connect { .. } => Some("connect"),
            Self::Timeout => Some("timeout"),
            Self::Broken(_) => Some("reset"),
            // of these the metrics of what was shed tell
            Self::Unreachable { .. } | Self::Target(_) | Self::RequestBody(_) => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        match failure {
            Failure::RequestBody(UploadError::Slow) => Self::Client { status: StatusCode::REQUEST_TIMEOUT, message },
            Failure::RequestBody(UploadError::NoRoom) | Failure::Unreachable { .. } => Self::Unavailable { message },
            Failure::Target(_) | Failure::RequestBody(UploadError::Broken(_)) => Self::bad_request(message),
            Failure::Timeout => Self::Upstream { status: StatusCode::GATEWAY_TIMEOUT, message },
            Failure::Connect { .. } | Failure::Broken(_) => Self::Upstream { status: StatusCode::BAD_GATEWAY, message },
        }
    }
}

/// The innermost cause of an error: the outer layers only say that something failed.
#[must_use]
pub fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).last().unwrap_or(error).to_string()
}

/// An error and its causes, from the outermost on.
pub(super) fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}
