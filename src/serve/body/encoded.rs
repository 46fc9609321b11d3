//! The body of an answered generation: events encoded as the client reads them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::error::BoxError;
use crate::generation::Observed;
use crate::generation::event::{EventKind, GenerationEvent};
use crate::generation::events::Events;

/// Encodes events for the clients of one API.
pub trait Encoder: Send + std::fmt::Debug {
    /// Appends the bytes of an event to `out`.
    ///
    /// # Errors
    /// When the event cannot be encoded; the stream then breaks off.
    fn encode(&mut self, event: &GenerationEvent, out: &mut Vec<u8>) -> Result<(), BoxError>;

    /// The same bytes where an event has them already: an event that is sent alone is then not copied.
    fn encoded(&self, _event: &GenerationEvent) -> Option<Bytes> {
        None
    }

    /// Whether events that are not parsed are as long as they were.
    fn keeps_length(&self) -> bool {
        false
    }
}

/// Bytes after which events that are ready are no longer gathered into one frame.
const FRAME: usize = 64 * 1024;

/// Bytes of a frame of a reply that retries may read. The server asks for more only when it has written nearly all of what it was given, so to
/// have taken the last frame of a large reply means that the system has taken all but the last hundred kilobytes.
const SHARED_FRAME: usize = 64 * 1024;

/// The body. Dropped before its end, it drops the events, which aborts the generation.
#[derive(Debug)]
pub struct EncodedBody {
    events: Events,
    source: Source,
    /// The first event that was encoded, and not given to the client yet, where its bytes need no copy.
    first: Bytes,
    /// All events that were, where more than that one has come or it had to be copied.
    out: Vec<u8>,
    /// Comes after `out`.
    end: Option<Result<HeaderMap, BoxError>>,
    keepalive: Keepalive,
}

#[derive(Debug)]
enum Source {
    /// All of a reply that does not stream.
    Whole(Bytes),
    Events(Box<dyn Encoder>),
    Ended,
}

impl EncodedBody {
    /// A reply that does not stream: `bytes` encode all of its events, which were taken.
    #[must_use]
    pub fn whole(bytes: Bytes, mut events: Events) -> Self {
        if bytes.is_empty() {
            events.acknowledge();
        }
        Self::new(events, Source::Whole(bytes), None)
    }

    /// A stream. A comment keeps the connection alive when nothing was sent for as long as `keepalive`.
    #[must_use]
    pub fn stream(events: Events, encoder: Box<dyn Encoder>, keepalive: Option<Duration>) -> Self {
        Self::new(events, Source::Events(encoder), keepalive)
    }

    fn new(events: Events, source: Source, keepalive: Option<Duration>) -> Self {
        Self { events, source, first: Bytes::new(), out: Vec::new(), end: None, keepalive: Keepalive::new(keepalive) }
    }

    /// The stream with bytes in front that encode the events which were taken so far.
    #[must_use]
    pub fn begun(mut self, bytes: Vec<u8>) -> Self {
        self.out = bytes;
        self
    }

    /// What has been seen of the reply.
    #[must_use]
    pub fn observed(&self) -> Option<Observed> {
        self.events.observed()
    }

    /// Whether nothing follows.
    #[must_use]
    pub fn is_end_stream(&self) -> bool {
        let is_over = match &self.source {
            Source::Whole(bytes) => bytes.is_empty(),
            Source::Events(_) => self.events.is_end_stream(),
            Source::Ended => true,
        };
        is_over && self.encoded() == 0 && self.end.is_none()
    }

    /// How much follows.
    #[must_use]
    pub fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Events(encoder) if encoder.keeps_length() => {
                let exact = self.events.size_hint().exact();
                exact.map_or_else(SizeHint::default, |left| SizeHint::with_exact(left + self.encoded() as u64))
            }
            Source::Events(_) => SizeHint::default(),
            Source::Ended => SizeHint::with_exact(self.encoded() as u64),
        }
    }

    /// Bytes that were encoded, and not given to the client yet.
    fn encoded(&self) -> usize {
        self.first.len() + self.out.len()
    }

    /// The next bytes for the client.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let encoder = match &mut self.source {
                Source::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
                Source::Whole(bytes) => {
                    let most = if self.events.is_shared() { SHARED_FRAME } else { usize::MAX };
                    let frame = bytes.split_to(bytes.len().min(most));
                    if bytes.is_empty() {
                        self.events.acknowledge();
                    }
                    return Poll::Ready(Some(Ok(Frame::data(frame))));
                }
                Source::Ended => return Poll::Ready(self.last_frame()),
                Source::Events(encoder) => encoder,
            };
            if self.first.len() + self.out.len() >= FRAME {
                return Poll::Ready(self.flush());
            }
            let end = match self.events.poll_next(cx) {
                Poll::Pending if self.first.is_empty() && self.out.is_empty() => {
                    ready!(self.keepalive.poll(cx));
                    return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b": keep-alive\n\n")))));
                }
                Poll::Pending => return Poll::Ready(self.flush()),
                Poll::Ready(Some(Ok(event))) => {
                    self.keepalive.reset();
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
                            self.out.extend_from_slice(&std::mem::take(&mut self.first));
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
            (self.source, self.end) = (Source::Ended, end);
        }
    }

    /// What was encoded, which the client has from here on.
    fn flush(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        self.events.acknowledge();
        let frame = match std::mem::take(&mut self.first) {
            first if first.is_empty() => std::mem::take(&mut self.out).into(),
            first => first,
        };
        (!frame.is_empty()).then(|| Ok(Frame::data(frame)))
    }

    fn last_frame(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        if self.encoded() > 0 {
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

/// When a stream has been silent for too long.
#[derive(Debug)]
struct Keepalive {
    /// The pause, and when it ends; `None`: never.
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

    /// Ready once for each pause.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((pause, sleep)) = &mut self.sleep else { return Poll::Pending };
        ready!(sleep.as_mut().poll(cx));
        sleep.as_mut().reset(Instant::now() + *pause);
        Poll::Ready(())
    }
}
