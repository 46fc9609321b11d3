// SPDX-License-Identifier: Apache-2.0
//! The read timeouts of `Entropy.Compute`: a long one between messages, and a short one within a message.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::call_slots::CallSlot;
use super::status;
use crate::engine::transport::failure::{UploadError, innermost};
use crate::error::Error;

/// The time limit between messages. A trainer may send a slice per training step, and a step may be long.
const BETWEEN: Duration = Duration::from_secs(3600);

/// The bytes of a message header: a flag, and a length of four bytes.
const HEAD: usize = 5;

/// The position in the stream of messages.
#[derive(Debug, Default)]
struct Framing {
    /// Received bytes of the current header; 0 between messages.
    head: usize,
    /// Bytes of the current message that are not received yet.
    remaining: usize,
}

impl Framing {
    /// Parses received bytes. Returns whether a message ended in them.
    fn push(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while let Some((first, rest)) = bytes.split_first() {
            if self.head < HEAD {
                let is_flag = self.head == 0;
                self.remaining = if is_flag { 0 } else { (self.remaining << 8) | usize::from(*first) };
                self.head += 1;
                bytes = rest;
            } else {
                let taken = self.remaining.min(bytes.len());
                self.remaining -= taken;
                bytes = &bytes[taken..];
            }
            if self.head == HEAD && self.remaining == 0 {
                self.head = 0;
                ended = true;
            }
        }
        ended
    }

    fn is_between(&self) -> bool {
        self.head == 0
    }
}

/// A body with read timeouts. A message must be complete within a time limit, and the next one must begin within an hour. The time only
/// runs while tokentap polls for bytes.
#[derive(Debug)]
pub(super) struct MessageReadTimeout<B> {
    body: B,
    slot: Arc<CallSlot>,
    message_timeout: Duration,
    framing: Framing,
    /// The timer of the current wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> MessageReadTimeout<B> {
    /// Wraps `body`. Each message must be complete within `message_timeout`.
    pub(super) fn new(body: B, slot: Arc<CallSlot>, message_timeout: Duration) -> Self {
        Self { body, slot, message_timeout, framing: Framing::default(), timer: None }
    }

    fn timeout_status(&self) -> Status {
        let message = if self.framing.is_between() {
            "no slice was received for an hour".to_owned()
        } else {
            format!("a slice took longer than {} s", self.message_timeout.as_secs_f64())
        };
        Error::RequestTimeout { message }.into()
    }
}

impl<B> Body for MessageReadTimeout<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: StdError + 'static,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let is_between = self.framing.is_between();
            self.slot.set_waiting(is_between);
            let limit = if is_between { BETWEEN } else { self.message_timeout };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
            return timer.as_mut().poll(cx).map(|()| Some(Err(self.timeout_status())));
        };
        // empty frames do not begin a slice
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref().filter(|data| !data.is_empty())
        {
            self.slot.set_waiting(false);
            let was_between = self.framing.is_between();
            // more bytes of the same message do not restart its timer
            if self.framing.push(data) || was_between {
                self.timer = None;
            }
        }
        let broken = |error: B::Error| status::upload_error(UploadError::Broken(innermost(&error)));
        Poll::Ready(frame.map(|frame| frame.map_err(broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framing_finds_message_ends_at_any_chunk_size() {
        let long = vec![7; 300];
        let messages: [&[u8]; 4] = [b"abc", b"", &long, b"x"];
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for message in messages {
            bytes.push(1);
            bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            bytes.extend(message);
            ends.push(bytes.len());
        }
        for size in [1, 2, 3, 5, 8, 100, bytes.len()] {
            let (mut framing, mut at) = (Framing::default(), 0);
            for piece in bytes.chunks(size) {
                let ended = framing.push(piece);
                let within = at + 1..=at + piece.len();
                at += piece.len();
                assert_eq!(ended, ends.iter().any(|end| within.contains(end)), "{size} at {at}");
                assert_eq!(framing.is_between(), ends.contains(&at), "{size} at {at}");
            }
        }
    }
}
