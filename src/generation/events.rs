//! The answer to a generation: its head, and its events from wherever they come.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::response;
use http_body::{Body as _, Frame, SizeHint};

use crate::budget::Share;
use crate::engine::client::ReplyBody;
use crate::engine::forwarded::Forwarded;
use crate::error::{BoxError, Error};
use crate::generation::Observed;
use crate::generation::active::ActiveGeneration;
use crate::generation::event::{GenerationEvent, Unparsed};
use crate::generation::in_flight::Unnamed;
use crate::generation::retries::Reader;
use crate::generation::stream::EventStream;
use crate::metrics::Metrics;

/// An answered generation.
#[derive(Debug)]
pub struct Generation {
    /// Status and headers, without those of the engine's connection.
    pub head: response::Parts,
    /// Its events.
    pub events: Events,
}

/// The events of a generation. Dropped before the last one, they abort it.
#[derive(Debug)]
pub enum Events {
    /// Of a stream.
    Stream(Box<EventStream>),
    /// The one event of a reply that does not stream.
    Whole {
        /// The event; `None` once it was taken.
        event: Option<Arc<GenerationEvent>>,
        /// What was seen of the reply; `None` where tokentap refused the request.
        observed: Option<Observed>,
    },
    /// A reply that is not parsed, such as an error of the engine's.
    Unparsed {
        /// The bytes.
        body: Box<Forwarded>,
        /// The generation, where the engine may still run it.
        active: Option<Box<ActiveGeneration>>,
        /// Notes a generation whose id is not known.
        unnamed: Option<Unnamed>,
    },
    /// Of an attempt that retries of the same call read as well.
    Shared(Reader),
    /// Given by a test.
    #[cfg(test)]
    Scripted(std::collections::VecDeque<Arc<GenerationEvent>>),
}

/// Why a reply could not be gathered.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// It broke off.
    #[error(transparent)]
    Broken(BoxError),
    /// It is larger than a limit.
    #[error("the reply is larger than {limit} bytes; see --max-reply-bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// There is no room for it.
    #[error("tokentap holds as many bytes as --max-bytes-in-flight lets it; try again")]
    NoRoom,
}

impl Generation {
    /// A reply that is not parsed; its first bytes may have been read.
    #[must_use]
    pub fn unparsed(head: response::Parts, metrics: &Arc<Metrics>, read: Bytes, body: ReplyBody) -> Self {
        let body = Box::new(Forwarded::patient(metrics, read, body));
        Self { head, events: Events::Unparsed { body, active: None, unnamed: None } }
    }

    /// The same, of a generation whose id is not known.
    #[must_use]
    pub fn of_unnamed(mut self, unnamed: Unnamed) -> Self {
        if let Events::Unparsed { unnamed: noted, .. } = &mut self.events {
            *noted = Some(unnamed);
        }
        self
    }

    /// An error of tokentap's in place of a reply.
    #[must_use]
    pub fn failed(error: Error, observed: Option<Observed>) -> Self {
        let head = error.head();
        let event = Some(Arc::new(GenerationEvent::failed_whole(error)));
        Self { head, events: Events::Whole { event, observed } }
    }
}

impl Events {
    /// The next event.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arc<GenerationEvent>, BoxError>>> {
        match self {
            Self::Stream(stream) => stream.poll_next(cx),
            Self::Whole { event, .. } => Poll::Ready(event.take().map(Ok)),
            Self::Unparsed { body, active, .. } => loop {
                let frame = ready!(Pin::new(body.as_mut()).poll_frame(cx));
                // the engine no longer runs it when its reply has ended or broken off
                if let Some(active) = active.as_mut().filter(|_| !matches!(frame, Some(Ok(_))) || body.is_end_stream())
                {
                    active.end();
                }
                let Some(frame) = frame else { return Poll::Ready(None) };
                if let Some(event) = frame.map(unparsed).transpose() {
                    return Poll::Ready(Some(event.map(Arc::new)));
                }
            },
            Self::Shared(reader) => reader.poll_next(cx),
            #[cfg(test)]
            Self::Scripted(events) => Poll::Ready(events.pop_front().map(Ok)),
        }
    }

    /// The next event.
    pub async fn next(&mut self) -> Option<Result<Arc<GenerationEvent>, BoxError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The bytes of a reply that is not parsed, which `share` counts while they are gathered.
    ///
    /// # Errors
    /// [`GatherError`].
    pub async fn gather(&mut self, limit: u64, mut share: Share) -> Result<Bytes, GatherError> {
        let mut body = Vec::new();
        while let Some(event) = self.next().await {
            let event = event.map_err(GatherError::Broken)?;
            let length = event.native().len();
            if (body.len() + length) as u64 > limit {
                return Err(GatherError::TooLarge { limit });
            }
            if share.grow(length).is_err() {
                share.shed();
                return Err(GatherError::NoRoom);
            }
            body.extend_from_slice(event.native());
        }
        Ok(share.hold(body))
    }

    /// The client was given all of the events that were taken so far. A retry of a call whose events were not all given is answered with the
    /// same events.
    pub fn acknowledge(&mut self) {
        if let Self::Shared(reader) = self {
            reader.acknowledge();
        }
    }

    /// The event of a reply that does not stream, until it was taken.
    #[must_use]
    pub fn take_whole(&mut self) -> Option<Arc<GenerationEvent>> {
        match self {
            Self::Whole { event, .. } => event.take(),
            Self::Shared(reader) => reader.take_whole(),
            Self::Stream(_) | Self::Unparsed { .. } => None,
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// Whether retries of the same call may read these events.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// What has been seen of the reply.
    #[must_use]
    pub fn observed(&self) -> Option<Observed> {
        match self {
            Self::Stream(stream) => Some(*stream.observed()),
            Self::Whole { observed, .. } => *observed,
            Self::Unparsed { .. } => None,
            Self::Shared(reader) => reader.observed(),
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// Whether nothing follows, as far as that is known without asking.
    #[must_use]
    pub fn is_end_stream(&self) -> bool {
        match self {
            Self::Stream(_) => false,
            Self::Whole { event, .. } => event.is_none(),
            Self::Unparsed { body, .. } => body.is_end_stream(),
            Self::Shared(reader) => reader.is_end_stream(),
            #[cfg(test)]
            Self::Scripted(events) => events.is_empty(),
        }
    }

    /// Bytes that follow where none of them are parsed.
    #[must_use]
    pub fn size_hint(&self) -> SizeHint {
        match self {
            Self::Unparsed { body, .. } => body.size_hint(),
            Self::Shared(reader) => reader.size_hint(),
            Self::Stream(_) | Self::Whole { .. } => SizeHint::default(),
            #[cfg(test)]
            Self::Scripted(_) => SizeHint::default(),
        }
    }
}

/// The event of a frame that is not parsed.
fn unparsed(frame: Frame<Bytes>) -> Option<GenerationEvent> {
    match frame.into_data().map_err(Frame::into_trailers) {
        Ok(data) => Some(GenerationEvent::unparsed(data, Unparsed::Piece)),
        Err(Ok(trailers)) => Some(GenerationEvent::trailers(trailers)),
        Err(Err(_)) => None,
    }
}
