//! One client of a reply that others may read too.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::response;
use http_body::SizeHint;

use super::shared_reply::Next;
use super::{Attempt, Retries};
use crate::error::BoxError;
use crate::generation::Observed;
use crate::generation::event::GenerationEvent;
use crate::generation::request::RequestId;

/// Reads a reply from its beginning. When the last reader of an attempt is dropped, what has not ended is aborted.
pub struct Reader {
    pub(super) attempt: Arc<Attempt>,
    pub(super) retries: Retries,
    pub(super) id: u64,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Reader {
    /// The request's id, once it is known.
    #[must_use]
    pub fn rid(&self) -> &RequestId {
        &self.attempt.context.rid
    }

    /// What has been seen of the reply: told to the reader that came first, so that it is counted once.
    #[must_use]
    pub fn observed(&self) -> Option<Observed> {
        if self.id == 0 { self.attempt.reply().observed() } else { None }
    }

    /// Status and headers.
    pub async fn head(&mut self) -> response::Parts {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    fn poll_head(&self, cx: &mut Context<'_>) -> Poll<response::Parts> {
        let mut pulled = false;
        let mut reply = self.attempt.reply();
        let polled = loop {
            if let Some(head) = reply.head(self.id) {
                break Poll::Ready(head);
            }
            if self.attempt.pull(&mut reply, self.id, cx).is_pending() {
                break Poll::Pending;
            }
            pulled = true;
        };
        let keeps = reply.keeps();
        drop(reply);
        if pulled {
            self.make_room(keeps);
            self.attempt.wakers.wake_others(self.id);
        }
        polled
    }

    /// Stops keeping events, where they are kept, if all attempts together hold too many bytes.
    fn make_room(&self, keeps: bool) {
        if keeps && !self.retries.has_room() {
            self.attempt.reply().stop_keeping();
        }
    }

    /// The event of a reply that does not stream, until it was taken; after [`Self::head`].
    pub fn take_whole(&mut self) -> Option<Arc<GenerationEvent>> {
        let mut reply = self.attempt.reply();
        if !reply.is_whole() {
            return None;
        }
        match reply.take(self.id) {
            Next::Event(event) => Some(event),
            Next::End | Next::Failed(_) | Next::Warning | Next::Nothing => None,
        }
    }

    /// The next event.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arc<GenerationEvent>, BoxError>>> {
        let mut pulled = false;
        let mut reply = self.attempt.reply();
        let polled = loop {
            match reply.take(self.id) {
                Next::Event(event) => break Poll::Ready(Some(Ok(event))),
                Next::End => break Poll::Ready(None),
                Next::Failed(error) => break Poll::Ready(Some(Err((*error).into()))),
                Next::Warning => {
                    cx.waker().wake_by_ref();
                    break Poll::Pending;
                }
                Next::Nothing => {}
            }
            if self.attempt.pull(&mut reply, self.id, cx).is_pending() {
                break Poll::Pending;
            }
            pulled = true;
        };
        let keeps = reply.keeps();
        drop(reply);
        if pulled {
            self.make_room(keeps);
        }
        if pulled || !keeps {
            self.attempt.wakers.wake_others(self.id);
        }
        polled
    }

    /// The client was given all events that were taken here.
    pub fn acknowledge(&self) {
        self.attempt.reply().acknowledge(self.id);
    }

    /// Whether nothing more will come.
    #[must_use]
    pub fn is_end_stream(&self) -> bool {
        self.attempt.reply().is_at_end(self.id)
    }

    /// How much will come.
    #[must_use]
    pub fn size_hint(&self) -> SizeHint {
        self.attempt.reply().size_hint(self.id)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.attempt.leave(self.id) {
            self.retries.settle(&self.attempt);
        }
    }
}
