//! The answer to an append: whether the record is in the log.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// Why a record is not in the log.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The disk is slower than the incoming records.
    #[error("the queue of the log is full")]
    QueueFull,
    /// The log failed a moment ago and is not tried again yet.
    #[error("the log has failed and is tried again soon")]
    Degraded,
    /// The record has no form that the log takes.
    #[error("the record cannot be encoded: {0}")]
    Encode(#[source] Arc<io::Error>),
    /// The disk refused it.
    #[error("the log cannot be written: {0}")]
    Write(#[source] Arc<io::Error>),
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
}

/// Resolves when the record is written, and synced where every record is; dropping it changes nothing.
#[derive(Debug)]
pub struct Ack(State);

#[derive(Debug)]
enum State {
    Known(Result<(), AppendError>),
    Awaited(oneshot::Receiver<Result<(), AppendError>>),
}

impl Ack {
    /// That of a tokentap without a log.
    #[must_use]
    pub fn done() -> Self {
        Self(State::Known(Ok(())))
    }

    /// Whether there is nothing to wait for and nothing to report.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.0, State::Known(Ok(())))
    }

    pub(super) fn failed(error: AppendError) -> Self {
        Self(State::Known(Err(error)))
    }

    pub(super) fn awaited(answer: oneshot::Receiver<Result<(), AppendError>>) -> Self {
        Self(State::Awaited(answer))
    }
}

impl Future for Ack {
    type Output = Result<(), AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Known(known) => Poll::Ready(known.clone()),
            // the writer always answers, unless it is gone
            State::Awaited(answer) => {
                Pin::new(answer).poll(context).map(|answer| answer.unwrap_or(Err(AppendError::Closed)))
            }
        }
    }
}
