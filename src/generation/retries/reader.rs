// SPDX-License-Identifier: Apache-2.0
//! One client's reader of a reply that other clients may read too.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::response;
use http_body::SizeHint;

use super::shared_reply::NextEvent;
use super::{Attempt, Retries};
use crate::error::BoxError;
use crate::generation::ReplyStats;
use crate::generation::event::GenerationEvent;
use crate::generation::request::RequestId;

/// Reads a reply from its first event. Dropping the last reader of an attempt aborts the attempt if it is still running.
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
    pub fn rid(&self) -> &Arc<RequestId> {
        &self.attempt.context.rid
    }

    /// Statistics of the reply, returned only to the first reader so that they are counted once.
    #[must_use]
    pub fn observed(&self) -> Option<ReplyStats> {
        if self.id == 0 { self.attempt.reply.lock().observed() } else { None }
    }

    /// Status and headers.
    pub async fn head(&mut self) -> response::Parts {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    fn poll_head(&self, cx: &mut Context<'_>) -> Poll<response::Parts> {
        let mut pulled = false;
        let mut reply = self.attempt.reply.lock();
        let polled = loop {
            if let Some(head) = reply.head(self.id) {
                break Poll::Ready(head);
            }
            if self.attempt.pull(&mut reply, self.id, cx).is_pending() {
                break Poll::Pending;
            }
            pulled = true;
        };
        let is_buffering = reply.is_buffering();
        drop(reply);
        if pulled {
            self.make_room(is_buffering);
            self.attempt.wakers.wake_others(self.id);
        }
        polled
    }

    /// Stops keeping events for later readers if all attempts together exceed their byte limit.
    fn make_room(&self, is_buffering: bool) {
        if is_buffering && !self.retries.has_room() {
            self.attempt.reply.lock().stop_buffering();
        }
    }

    /// Takes the event of a reply that does not stream. Call it after [`Self::head`].
    pub fn take_whole(&mut self) -> Option<Arc<GenerationEvent>> {
        let mut reply = self.attempt.reply.lock();
        if !reply.is_whole() {
            return None;
        }
        match reply.take(self.id) {
            NextEvent::Event(event) => Some(event),
            NextEvent::End | NextEvent::Failed(_) | NextEvent::Nothing => None,
        }
    }

    /// The next event.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arc<GenerationEvent>, BoxError>>> {
        let mut pulled = false;
        let mut reply = self.attempt.reply.lock();
        let polled = loop {
            match reply.take(self.id) {
                NextEvent::Event(event) => break Poll::Ready(Some(Ok(event))),
                NextEvent::End => break Poll::Ready(None),
                NextEvent::Failed(error) => break Poll::Ready(Some(Err((*error).into()))),
                NextEvent::Nothing => {}
            }
            if self.attempt.pull(&mut reply, self.id, cx).is_pending() {
                break Poll::Pending;
            }
            pulled = true;
        };
        let is_buffering = reply.is_buffering();
        drop(reply);
        if pulled {
            self.make_room(is_buffering);
        }
        if pulled || !is_buffering {
            self.attempt.wakers.wake_others(self.id);
        }
        polled
    }

    /// Whether the events come at the end of a generation that runs.
    #[must_use]
    pub fn is_deferred(&self) -> bool {
        self.attempt.reply.lock().is_deferred()
    }

    /// Records that all events taken so far were delivered to the client.
    pub fn acknowledge(&self) {
        self.attempt.reply.lock().acknowledge(self.id);
    }

    /// Whether no event follows.
    #[must_use]
    pub fn is_end_stream(&self) -> bool {
        self.attempt.reply.lock().is_at_end(self.id)
    }

    /// The number of bytes that follow.
    #[must_use]
    pub fn size_hint(&self) -> SizeHint {
        self.attempt.reply.lock().size_hint(self.id)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.attempt.leave(self.id) {
            self.retries.settle(&self.attempt);
        }
    }
}
