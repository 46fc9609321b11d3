//! A failure of the upstream in the middle of a body.

use std::task::{Context, Poll};

use crate::error::BoxError;

/// The failure. It is told to the connection, which then ends, once what came before has had its turn to be written.
#[derive(Debug, Default)]
pub struct Failed {
    error: Option<BoxError>,
    /// What came before has had its turn.
    written: bool,
}

impl Failed {
    /// From now on there is one.
    pub fn set(&mut self, error: impl Into<BoxError>) {
        self.error = Some(error.into());
    }

    /// The failure, where there is one to tell; comes back once before it does.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<BoxError>> {
        if self.error.is_some() && !std::mem::replace(&mut self.written, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.error.take())
    }
}
