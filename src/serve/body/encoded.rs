// SPDX-License-Identifier: Apache-2.0
//! The body of a generation's reply. Events are encoded as the client reads them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::api::EventEncoder;
use crate::error::BoxError;
use crate::generation::ReplyStats;
use crate::generation::event::EventKind;
use crate::generation::events::Events;

/// Bytes of a frame, about as many as one read of the engine brings. Events that are ready are joined up to this size.
const FRAME: usize = 16 * 1024;

/// Bytes of a frame of a reply that retries may read. hyper polls for the next frame only after it has written nearly all of the last one.
/// So when it polls for the last frame of a large reply, the kernel has accepted all but about 100 KB.
const SHARED_FRAME: usize = 64 * 1024;

/// The body. Dropping it before its end drops the events, which aborts the generation.
#[derive(Debug)]
pub(crate) struct EncodedBody {
    events: Events,
    source: EncodedSource,
    /// The first event of the next frame, if it can be sent without a copy.
    first: Bytes,
    /// The events of the next frame, if it has more than one or the first had to be copied.
    out: Vec<u8>,
    /// The end of the stream, sent after `out`.
    end: Option<Result<HeaderMap, BoxError>>,
    keepalive: Keepalive,
}

#[derive(Debug)]
enum EncodedSource {
    /// A complete reply that does not stream.
    Whole(Bytes),
    Events(Box<dyn EventEncoder>),
    Ended,
}

impl EncodedBody {
    /// Creates the body of a reply that does not stream. `bytes` encode all of its events.
    pub(crate) fn whole(bytes: Bytes, mut events: Events) -> Self {
        if bytes.is_empty() {
            events.acknowledge();
        }
        Self::new(events, EncodedSource::Whole(bytes), None)
    }

    /// Creates the body of a stream. It keeps the connection alive whenever nothing was sent for `keepalive`.
    pub(crate) fn stream(events: Events, encoder: Box<dyn EventEncoder>, keepalive: Option<Duration>) -> Self {
        Self::new(events, EncodedSource::Events(encoder), keepalive)
    }

    fn new(events: Events, source: EncodedSource, keepalive: Option<Duration>) -> Self {
        Self { events, source, first: Bytes::new(), out: Vec::new(), end: None, keepalive: Keepalive::new(keepalive) }
    }

    /// Prepends `bytes`, which encode the events that the caller has read.
    pub(crate) fn with_prefix(mut self, bytes: Vec<u8>) -> Self {
        self.out = bytes;
        self
    }

    /// The token counts and the entropy of the reply so far.
    pub(crate) fn observed(&self) -> Option<ReplyStats> {
        self.events.observed()
    }

    /// Whether the body has ended.
    pub(crate) fn is_end_stream(&self) -> bool {
        let is_over = match &self.source {
            EncodedSource::Whole(bytes) => bytes.is_empty(),
            EncodedSource::Events(_) => self.events.is_end_stream(),
            EncodedSource::Ended => true,
        };
        is_over && self.buffered_bytes() == 0 && self.end.is_none()
    }

    /// The remaining length, if known.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match &self.source {
            EncodedSource::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            EncodedSource::Events(encoder) if encoder.keeps_length() => {
                let exact = self.events.size_hint().exact();
                exact.map_or_else(SizeHint::default, |left| SizeHint::with_exact(left + self.buffered_bytes() as u64))
            }
            EncodedSource::Events(_) => SizeHint::default(),
            EncodedSource::Ended => SizeHint::with_exact(self.buffered_bytes() as u64),
        }
    }

    /// Bytes that are encoded and not sent yet.
    fn buffered_bytes(&self) -> usize {
        self.first.len() + self.out.len()
    }

    /// Polls for the next frame.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let encoder = match &mut self.source {
                EncodedSource::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
                EncodedSource::Whole(bytes) => {
                    let max = if self.events.is_shared() { SHARED_FRAME } else { usize::MAX };
                    let frame = bytes.split_to(bytes.len().min(max));
                    if bytes.is_empty() {
                        self.events.acknowledge();
                    }
                    return Poll::Ready(Some(Ok(Frame::data(frame))));
                }
                EncodedSource::Ended => return Poll::Ready(self.last_frame()),
                EncodedSource::Events(encoder) => encoder,
            };
            if self.first.len() + self.out.len() >= FRAME {
                return Poll::Ready(self.flush());
            }
            let end = match self.events.poll_next(cx) {
                Poll::Pending if self.first.is_empty() && self.out.is_empty() => {
                    ready!(self.keepalive.poll(cx));
                    encoder.keepalive(&mut self.out);
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.out).into()))));
                }
                Poll::Pending => return Poll::Ready(self.flush()),
                Poll::Ready(Some(Ok(event))) => {
                    match &event.kind {
                        EventKind::Trailers(trailers) => Some(Ok((**trailers).clone())),
                        _ => {
                            if self.first.is_empty()
                                && self.out.is_empty()
                                && let Some(bytes) = encoder.encoded(&event)
                            {
                                self.first = bytes;
                                continue;
                            }
                            if !self.first.is_empty() {
                                // with room for an event more, because the last one may begin just below the limit
                                self.out.reserve(FRAME + self.first.len());
                                self.out.extend_from_slice(&std::mem::take(&mut self.first));
                            }
                            // an event may have no encoding, such as a part of a tool call
                            match encoder.encode(&event, &mut self.out) {
                                Ok(()) => continue,
                                Err(error) => Some(Err(error)),
                            }
                        }
                    }
                }
                Poll::Ready(Some(Err(error))) => Some(Err(error)),
                Poll::Ready(None) => None,
            };
            (self.source, self.end) = (EncodedSource::Ended, end);
        }
    }

    /// Returns the buffered bytes as a frame and acknowledges their events.
    fn flush(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        self.events.acknowledge();
        self.keepalive.reset();
        let frame = match std::mem::take(&mut self.first) {
            first if first.is_empty() => std::mem::take(&mut self.out).into(),
            first => first,
        };
        (!frame.is_empty()).then(|| Ok(Frame::data(frame)))
    }

    fn last_frame(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        if self.buffered_bytes() > 0 {
            return self.flush();
        }
        match self.end.take() {
            Some(Ok(trailers)) => {
                self.events.acknowledge();
                Some(Ok(Frame::trailers(trailers)))
            }
            Some(Err(error)) => Some(Err(error)),
            None => {
                self.events.acknowledge();
                None
            }
        }
    }
}

/// The timer of keep-alive comments.
#[derive(Debug)]
struct Keepalive {
    /// The interval and its timer; `None` if comments are off.
    sleep: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Keepalive {
    fn new(pause: Option<Duration>) -> Self {
        Self { sleep: pause.map(|pause| (pause, Box::pin(tokio::time::sleep(pause)))) }
    }

    fn reset(&mut self) {
        if let Some((pause, sleep)) = &mut self.sleep {
            sleep.as_mut().reset(Instant::now() + *pause);
        }
    }

    /// Ready once for each interval without an event.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((pause, sleep)) = &mut self.sleep else { return Poll::Pending };
        ready!(sleep.as_mut().poll(cx));
        sleep.as_mut().reset(Instant::now() + *pause);
        Poll::Ready(())
    }
}
