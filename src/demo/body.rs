//! Response bodies: complete, or a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::wire;

/// The body of every response of the demo engine.
#[derive(Debug)]
pub struct ReplyBody(Kind);

#[derive(Debug)]
enum Kind {
    Whole(Option<Bytes>),
    Events {
        events: mpsc::Receiver<Bytes>,
        /// The tasks that generate the events. Dropping the body cancels them, so a client that disconnects aborts its requests.
        _work: JoinSet<()>,
        done: bool,
    },
}

impl ReplyBody {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self(Kind::Whole(Some(bytes.into()).filter(|bytes| !bytes.is_empty())))
    }

    /// Returns the events of `events` until `work` drops the sender, then `[DONE]`.
    pub(super) fn events(events: mpsc::Receiver<Bytes>, work: JoinSet<()>) -> Self {
        Self(Kind::Events { events, _work: work, done: false })
    }
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut self.0 {
            Kind::Whole(bytes) => bytes.take(),
            Kind::Events { events, done, .. } => match std::task::ready!(events.poll_recv(cx)) {
                None if !std::mem::replace(done, true) => Some(Bytes::from_static(wire::DONE)),
                event => event,
            },
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Kind::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Events { .. } => SizeHint::default(),
        }
    }
}
