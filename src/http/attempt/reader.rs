//! One client of a reply that others may read too.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::response;
use http_body::{Frame, SizeHint};

use super::reply::Next;
use super::{Attempt, Attempts};
use crate::generation::Observed;
use crate::http::body::BoxError;

/// Reads a reply from its beginning. When the last reader of an attempt is dropped, what has not ended is aborted.
pub struct Reader {
    pub(super) attempt: Arc<Attempt>,
    pub(super) attempts: Attempts,
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
    pub fn rid(&self) -> &Arc<OnceLock<String>> {
        &self.attempt.ties.rid
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
        drop(reply);
        if pulled {
            self.attempt.waiting.wake_others(self.id);
        }
        polled
    }

    /// The next bytes for the client.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut pulled = false;
        let mut reply = self.attempt.reply();
        let polled = loop {
            match reply.take(self.id) {
                Next::Frame(frame) => break Poll::Ready(Some(Ok(frame))),
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
        if pulled && keeps && !self.attempts.has_room() {
            self.attempt.reply().stop_keeping();
        }
        if pulled || !keeps {
            self.attempt.waiting.wake_others(self.id);
        }
        polled
    }

    /// Says whether what is taken here is only gathered: then the client has nothing of it until that is taken back.
    pub fn hold(&self, held: bool) {
        self.attempt.reply().hold(self.id, held);
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
            self.attempts.settle(&self.attempt);
        }
    }
}
