//! A future whose reply a layer changes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;

use crate::serve::ReplyBody;

/// A change that a layer makes to a reply.
pub(crate) trait ReplyChange: Unpin {
    /// Changes the reply.
    fn apply(self, reply: &mut Response<ReplyBody>);
}

/// The future of a layer that changes replies. If it is dropped before the reply, it drops the change too.
#[derive(Debug)]
pub(crate) struct OnReply<F, C> {
    future: F,
    change: Option<C>,
}

impl<F, C> OnReply<F, C> {
    /// Applies `change` to the reply of `future`.
    pub(crate) fn new(future: F, change: C) -> Self {
        Self { future, change: Some(change) }
    }
}

impl<F, C> Future for OnReply<F, C>
where
    F: Future<Output = Result<Response<ReplyBody>, Infallible>> + Unpin,
    C: ReplyChange,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(mut reply) = ready!(Pin::new(&mut self.future).poll(cx));
        if let Some(change) = self.change.take() {
            change.apply(&mut reply);
        }
        Poll::Ready(Ok(reply))
    }
}
