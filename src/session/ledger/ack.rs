// SPDX-License-Identifier: Apache-2.0
//! The acknowledgement of an append: whether the record is in the log.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

/// Why a record is not in the log.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The disk is slower than the incoming records.
    #[error("the queue of the log is full")]
    QueueFull,
    /// The log failed a moment ago and is not tried again yet.
    #[error("the log has failed and is tried again soon")]
    Degraded,
    /// The record cannot be encoded.
    #[error("the record cannot be encoded: {0}")]
    Encode(#[source] Arc<io::Error>),
    /// Writing to the disk failed.
    #[error("the log cannot be written: {0}")]
    Write(#[source] Arc<io::Error>),
    /// The shared ledger did not confirm the record in time. It is appended later.
    #[error("the shared ledger did not confirm the record in time")]
    Detached,
    /// The memory is full of turns that the shared ledger lacks, and there is no local log.
    #[error("the memory is full of turns that the shared ledger lacks")]
    NoRoom,
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
}

/// Resolves when the record is written, and synced if the log syncs every record. Dropping it has no effect.
#[derive(Debug)]
pub struct Ack(State);

#[derive(Debug)]
enum State {
    Resolved(Result<(), AppendError>),
    Awaited(oneshot::Receiver<Result<(), AppendError>>),
    Observed(AckOutcome),
}

/// The outcome of an append, which can be read while a caller awaits the ack. The caller may also have dropped it.
#[derive(Debug, Clone)]
pub(in crate::session) struct AckOutcome(Arc<Mutex<State>>);

impl AckOutcome {
    /// Whether the record is stored; `None` while that is unknown.
    pub(in crate::session) fn is_stored(&self) -> Option<bool> {
        let mut state = self.0.lock();
        if let State::Awaited(answer) = &mut *state {
            let result = match answer.try_recv() {
                Ok(result) => result,
                Err(TryRecvError::Closed) => Err(AppendError::Closed),
                // the waker of the caller is still registered
                Err(TryRecvError::Empty) => return None,
            };
            *state = State::Resolved(result);
        }
        match &*state {
            State::Resolved(result) => Some(result.is_ok()),
            State::Awaited(_) => None,
            State::Observed(outcome) => outcome.is_stored(),
        }
    }
}

impl Ack {
    /// The ack of a process without a log.
    #[must_use]
    pub fn done() -> Self {
        Self(State::Resolved(Ok(())))
    }

    /// Whether there is nothing to wait for and nothing to report.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.0, State::Resolved(Ok(())))
    }

    pub(crate) fn failed(error: AppendError) -> Self {
        Self(State::Resolved(Err(error)))
    }

    pub(crate) fn awaited(answer: oneshot::Receiver<Result<(), AppendError>>) -> Self {
        Self(State::Awaited(answer))
    }

    /// The ack, and its outcome for another reader.
    pub(in crate::session) fn observe(self) -> (Self, AckOutcome) {
        let outcome = AckOutcome(Arc::new(Mutex::new(self.0)));
        (Self(State::Observed(outcome.clone())), outcome)
    }
}

impl Future for Ack {
    type Output = Result<(), AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

impl State {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AppendError>> {
        let result = match self {
            Self::Resolved(result) => return Poll::Ready(result.clone()),
            Self::Observed(outcome) => return outcome.0.lock().poll(context),
            // the writer always answers, unless it has ended
            Self::Awaited(answer) => match Pin::new(answer).poll(context) {
                Poll::Ready(answer) => answer.unwrap_or(Err(AppendError::Closed)),
                Poll::Pending => return Poll::Pending,
            },
        };
        *self = Self::Resolved(result.clone());
        Poll::Ready(result)
    }
}
