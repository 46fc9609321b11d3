//! What a caller of `Entropy.Compute` sends: slices that may be far apart, each of which must come in one go.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::call_slots::CallSlot;
use super::status;
use crate::engine::client::{UploadError, innermost};
use crate::error::Error;

/// A trainer may send its slices step by step, and a step takes its time.
const BETWEEN: Duration = Duration::from_secs(3600);

/// A flag and a length of four bytes.
const HEAD: usize = 5;

/// How far the messages have come.
#[derive(Debug, Default)]
struct Framing {
    /// Bytes of a head; none between messages.
    head: usize,
    /// What its length says is still to come.
    left: usize,
}

impl Framing {
    /// Counts these bytes; says whether a message ended within them.
    fn push(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while let Some((first, rest)) = bytes.split_first() {
            if self.head < HEAD {
                let is_flag = self.head == 0;
                self.left = if is_flag { 0 } else { (self.left << 8) | usize::from(*first) };
                self.head += 1;
                bytes = rest;
            } else {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
            }
            if self.head == HEAD && self.left == 0 {
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

/// The body. A message that has begun must be whole within a time, and the next begin within an hour; neither runs while tokentap
/// itself does not ask for more.
#[derive(Debug)]
pub(super) struct MessageReadTimeout<B> {
    body: B,
    place: Arc<CallSlot>,
    within: Duration,
    framing: Framing,
    /// Runs from when the caller was first waited for.
    limit: Option<Pin<Box<Sleep>>>,
}

impl<B> MessageReadTimeout<B> {
    /// Messages each of which comes `within` a time.
    pub(super) fn new(body: B, place: Arc<CallSlot>, within: Duration) -> Self {
        Self { body, place, within, framing: Framing::default(), limit: None }
    }

    fn late(&self) -> Status {
        let message = if self.framing.is_between() {
            "no slice came for an hour".to_owned()
        } else {
            format!("a slice took longer than the {} s of --client-body-timeout", self.within.as_secs_f64())
        };
        status::error(&Error::Client { status: StatusCode::REQUEST_TIMEOUT, message })
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
            self.place.waits(is_between);
            let time = if is_between { BETWEEN } else { self.within };
            let limit = self.limit.get_or_insert_with(|| Box::pin(sleep(time)));
            return limit.as_mut().poll(cx).map(|()| Some(Err(self.late())));
        };
        // frames without a byte are no sign of a slice
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref().filter(|data| !data.is_empty())
        {
            self.place.waits(false);
            let was_between = self.framing.is_between();
            // bytes of a message that goes on are no reason to wait longer for the rest
            if self.framing.push(data) || was_between {
                self.limit = None;
            }
        }
        let broken = |error: B::Error| status::upload(&UploadError::Broken(innermost(&error)).into());
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
    fn messages_are_told_apart_however_they_are_cut() {
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
