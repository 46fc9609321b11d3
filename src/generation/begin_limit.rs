// SPDX-License-Identifier: Apache-2.0
//! How long an engine may take to begin the reply to a request with media.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::error::Error;

/// The limit of the time from a request with media to the first bytes of its reply. A stream begins after its head.
pub(super) struct BeginLimit {
    limit: Duration,
    expiry: Pin<Box<Sleep>>,
}

impl BeginLimit {
    /// A limit that begins now.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, expiry: Box::pin(tokio::time::sleep(limit)) }
    }

    /// Waits for the head of the reply.
    ///
    /// # Errors
    /// Those of `sent`, or that it took longer.
    pub(super) async fn head<T>(&mut self, sent: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            sent = sent => sent,
            () = &mut self.expiry => Err(unanswered_media(self.limit)),
        }
    }

    /// Resolves to the error once the time has passed.
    pub(super) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        self.expiry.as_mut().poll(cx).map(|()| unanswered_media(self.limit))
    }
}

/// The error of a request with media whose reply did not begin in time.
fn unanswered_media(limit: Duration) -> Error {
    let seconds = limit.as_secs_f64();
    Error::UpstreamTimeout {
        message: format!(
            "the engine did not begin its reply to a request with media within {seconds} s (--image-timeout); some processors never answer a malformed prompt"
        ),
    }
}
