//! An upstream failure in the middle of a body.

use std::task::{Context, Poll};

use crate::error::BoxError;

/// Holds the failure back for one poll, so that the connection writes earlier bytes before the failure ends it.
#[derive(Debug, Default)]
pub(crate) struct BodyFailure {
    error: Option<BoxError>,
    /// The body has yielded once, so earlier bytes can be written.
    written: bool,
}

impl BodyFailure {
    /// Sets the failure.
    pub(crate) fn set(&mut self, error: impl Into<BoxError>) {
        self.error = Some(error.into());
    }

    /// Returns the failure, if one is set. The first poll after it was set yields.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<BoxError>> {
        if self.error.is_some() && !std::mem::replace(&mut self.written, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.error.take())
    }
}
