// SPDX-License-Identifier: Apache-2.0
//! Errors of calls to the upstream.

use crate::error::Error;

/// Why a reply, or the rest of one, did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The target cannot be sent unchanged.
    #[error("the path {0:?} would be changed on its way to the engine; send it normalised and percent-encoded")]
    Target(String),
    /// No connection.
    #[error("cannot connect to the SGLang server at {upstream}: {cause}")]
    Connect {
        /// The URL of the upstream.
        upstream: String,
        /// The error of the system.
        cause: String,
    },
    /// Connecting failed so often in a row that no attempt was made.
    #[error(
        "the SGLang server at {upstream} could not be connected to {failures} times in a row; try again in a moment"
    )]
    Unreachable {
        /// The URL of the upstream.
        upstream: String,
        /// Consecutive failures.
        failures: u32,
    },
    /// The upstream did not answer in time.
    #[error("the SGLang server did not answer in time")]
    Timeout,
    /// The connection ended, or the reply is not HTTP.
    #[error("the connection to the SGLang server failed: {0}")]
    Broken(String),
    /// The client's body ended early or arrived too slowly.
    #[error(transparent)]
    RequestBody(#[from] UploadError),
}

/// Why a client's body was not read completely. A call's body fails with this error, so that the failure is not attributed to the upstream.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UploadError {
    /// It arrived too slowly.
    #[error("the request body arrived too slowly: it paused for 30 s, or fell that far behind 1 KiB a second")]
    Slow,
    /// The byte budget is used up. The client may retry.
    #[error("the byte budget for requests is used up; try again, or raise --max-bytes-in-flight")]
    NoRoom,
    /// It ended early, or is not HTTP.
    #[error("the request body could not be read: {0}")]
    Broken(String),
}

impl Failure {
    /// The metric's label; `None` if the upstream is not at fault.
    #[must_use]
    pub fn kind(&self) -> Option<&'static str> {
        match self {
            Self::Connect { .. } => Some("connect"),
            Self::Timeout => Some("timeout"),
            Self::Broken(_) => Some("reset"),
            // other metrics count these
            Self::Unreachable { .. } | Self::Target(_) | Self::RequestBody(_) => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        match failure {
            Failure::RequestBody(UploadError::Slow) => Self::RequestTimeout { message },
            Failure::RequestBody(UploadError::NoRoom) | Failure::Unreachable { .. } => Self::Unavailable { message },
            Failure::Target(_) | Failure::RequestBody(UploadError::Broken(_)) => Self::bad_request(message),
            Failure::Timeout => Self::UpstreamTimeout { message },
            Failure::Connect { .. } | Failure::Broken(_) => Self::Upstream { message },
        }
    }
}

/// The innermost cause of an error. The outer layers only report that something failed.
#[must_use]
pub fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error).to_string()
}
