// SPDX-License-Identifier: Apache-2.0
//! The answer to a generation: its head and its events, whatever their source.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, response};
use http_body::{Body as _, Frame, SizeHint};

use crate::budget::Share;
use crate::engine::transport::client::ReplyBody;
use crate::engine::transport::forwarded::ForwardedBody;
use crate::error::{BoxError, Error};
use crate::generation::ReplyStats;
use crate::generation::active::ActiveGeneration;
use crate::generation::event::{GenerationEvent, UnparsedReason};
use crate::generation::in_flight::UnknownRidGuard;
use crate::generation::retries::Reader;
use crate::generation::stream::EventStream;
use crate::metrics::Metrics;
use crate::traces::Failure;

/// A generation whose head has arrived.
#[derive(Debug)]
pub struct Generation {
    /// Status and headers, without hop-by-hop headers.
    pub head: response::Parts,
    pub events: Events,
}

/// The events of a generation. Dropping them before the last event aborts the generation.
#[derive(Debug)]
pub enum Events {
    Stream(Box<EventStream>),
    /// The one event of a reply that does not stream.
    Whole {
        /// The event; `None` after it was taken.
        event: Option<Arc<GenerationEvent>>,
        /// Statistics of the reply; `None` if tokentap refused the request.
        observed: Option<ReplyStats>,
    },
    /// A reply that is not parsed, such as an engine error.
    Unparsed {
        /// The bytes.
        body: Box<ForwardedBody>,
        /// The generation, if the engine may still run it.
        active: Option<Box<ActiveGeneration>>,
        /// Counts a generation whose id is unknown.
        unnamed: Option<UnknownRidGuard>,
    },
    /// The events of an attempt that retries of the same call may read too.
    Shared(Reader),
    /// The events of a generation whose head was not waited for.
    Deferred(DeferredEvents),
    /// Events that a test provides.
    #[cfg(test)]
    Scripted(VecDeque<Arc<GenerationEvent>>),
}

/// The events of a whole reply, as a stream, and the statistics of the reply.
type WholeReply = (Vec<Arc<GenerationEvent>>, Option<ReplyStats>);

/// The events of a generation that has not ended yet. Dropping them aborts it.
pub struct DeferredEvents {
    /// `None` once it has ended.
    pending: Option<Pin<Box<dyn Future<Output = WholeReply> + Send>>>,
    events: VecDeque<Arc<GenerationEvent>>,
    observed: Option<ReplyStats>,
}

impl DeferredEvents {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<GenerationEvent>>> {
        if let Some(pending) = &mut self.pending {
            let (events, observed) = ready!(pending.as_mut().poll(cx));
            (self.pending, self.observed) = (None, observed);
            self.events.extend(events);
        }
        Poll::Ready(self.events.pop_front())
    }
}

impl std::fmt::Debug for DeferredEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredEvents").field("events", &self.events).finish_non_exhaustive()
    }
}

/// How a stream ends.
const END_MARK: &[u8] = b"data: [DONE]\n\n";

/// The bytes of an engine's error that are read.
pub(crate) const LARGEST_ERROR: u64 = 1 << 20;

/// Why a reply could not be buffered.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// It broke off.
    #[error(transparent)]
    Broken(BoxError),
    /// It is larger than a limit.
    #[error("the reply is larger than {limit} bytes; see --max-bytes-in-flight")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The byte budget is used up.
    #[error("the byte budget --max-bytes-in-flight is used up; try again")]
    NoRoom,
}

impl Generation {
    /// A reply that is not parsed. `read` holds the bytes that were read already.
    #[must_use]
    pub fn unparsed(head: response::Parts, metrics: &Arc<Metrics>, read: Bytes, body: ReplyBody) -> Self {
        let body = Box::new(ForwardedBody::unlimited(metrics, read, body));
        Self { head, events: Events::Unparsed { body, active: None, unnamed: None } }
    }

    /// A reply that is not parsed, of a generation that the engine may still run.
    #[must_use]
    pub fn unparsed_active(head: response::Parts, active: ActiveGeneration, body: ReplyBody) -> Self {
        let body = Box::new(ForwardedBody::unlimited(&active.context().metrics, Bytes::new(), body));
        Self { head, events: Events::Unparsed { body, active: Some(Box::new(active)), unnamed: None } }
    }

    /// Attaches the guard of a generation whose id is unknown.
    #[must_use]
    pub fn with_unknown_rid(mut self, unnamed: UnknownRidGuard) -> Self {
        if let Events::Unparsed { unnamed: noted, .. } = &mut self.events {
            *noted = Some(unnamed);
        }
        self
    }

    /// A stream for a client of a reply that does not stream: its head does not wait for `pending`, and its events all come at the end.
    /// `share` counts the body of a refusal.
    #[must_use]
    pub fn deferred(pending: impl Future<Output = Result<Self, Error>> + Send + 'static, share: Share) -> Self {
        let (mut head, ()) = Response::new(()).into_parts();
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        let pending = async move {
            let Self { head, mut events } = pending.await.unwrap_or_else(|error| Self::failed(error, None));
            let refused = |body| vec![Arc::new(GenerationEvent::refused(head.status, body))];
            let observed = events.observed();
            let events = match events.take_whole() {
                Some(event) if head.status == StatusCode::OK => {
                    vec![event, Arc::new(GenerationEvent::done(Bytes::new()))]
                }
                Some(event) => refused(event.raw().clone()),
                None => refused(events.gather(LARGEST_ERROR, share).await.unwrap_or_default()),
            };
            (events, observed)
        };
        let deferred = DeferredEvents { pending: Some(Box::pin(pending)), events: VecDeque::new(), observed: None };
        Self { head, events: Events::Deferred(deferred) }
    }

    /// A tokentap error instead of a reply.
    #[must_use]
    pub fn failed(error: Error, observed: Option<ReplyStats>) -> Self {
        let head = error.head();
        let event = Some(Arc::new(GenerationEvent::failed_whole(error)));
        Self { head, events: Events::Whole { event, observed } }
    }
}

impl Events {
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arc<GenerationEvent>, BoxError>>> {
        match self {
            Self::Stream(stream) => stream.poll_next(cx),
            Self::Whole { event, .. } => Poll::Ready(event.take().map(Ok)),
            Self::Unparsed { body, active, .. } => loop {
                let frame = ready!(Pin::new(body.as_mut()).poll_frame(cx));
                // the engine stops running it when its reply ends or breaks off; clients disconnect at the end mark of a stream
                let has_end_mark = |frame: &Frame<Bytes>| frame.data_ref().is_some_and(|data| data.ends_with(END_MARK));
                let goes_on = matches!(&frame, Some(Ok(frame)) if !has_end_mark(frame)) && !body.is_end_stream();
                if let Some(active) = active.as_mut().filter(|_| !goes_on) {
                    if matches!(&frame, Some(Err(_))) {
                        active.capture().fail_span(Failure::Broken);
                    }
                    active.mark_ended();
                }
                let Some(frame) = frame else { return Poll::Ready(None) };
                if let Some(event) = frame.map(unparsed).transpose() {
                    return Poll::Ready(Some(event.map(Arc::new)));
                }
            },
            Self::Shared(reader) => reader.poll_next(cx),
            Self::Deferred(deferred) => deferred.poll_next(cx).map(|event| event.map(Ok)),
            #[cfg(test)]
            Self::Scripted(events) => Poll::Ready(events.pop_front().map(Ok)),
        }
    }

    pub async fn next(&mut self) -> Option<Result<Arc<GenerationEvent>, BoxError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Buffers the bytes of a reply that is not parsed; `share` counts them.
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

    /// Records that all events taken so far were delivered to the client. A retry of a call with undelivered events gets the same events.
    pub fn acknowledge(&mut self) {
        if let Self::Shared(reader) = self {
            reader.acknowledge();
        }
    }

    /// Takes the event of a reply that does not stream; `None` after the first call.
    #[must_use]
    pub fn take_whole(&mut self) -> Option<Arc<GenerationEvent>> {
        match self {
            Self::Whole { event, .. } => event.take(),
            Self::Shared(reader) => reader.take_whole(),
            Self::Stream(_) | Self::Unparsed { .. } | Self::Deferred(_) => None,
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// Whether retries of the same call may read these events.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Whether all events come at the end of a generation that runs.
    #[must_use]
    pub fn are_deferred(&self) -> bool {
        match self {
            Self::Deferred(deferred) => deferred.pending.is_some(),
            Self::Shared(reader) => reader.is_deferred(),
            _ => false,
        }
    }

    /// Statistics of the reply so far.
    #[must_use]
    pub fn observed(&self) -> Option<ReplyStats> {
        match self {
            Self::Stream(stream) => Some(stream.observed()),
            Self::Whole { observed, .. } => *observed,
            Self::Deferred(deferred) => deferred.observed,
            Self::Unparsed { .. } => None,
            Self::Shared(reader) => reader.observed(),
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// Whether no event follows, as far as is known without polling.
    #[must_use]
    pub fn is_end_stream(&self) -> bool {
        match self {
            Self::Stream(_) => false,
            Self::Deferred(deferred) => deferred.pending.is_none() && deferred.events.is_empty(),
            Self::Whole { event, .. } => event.is_none(),
            Self::Unparsed { body, .. } => body.is_end_stream(),
            Self::Shared(reader) => reader.is_end_stream(),
            #[cfg(test)]
            Self::Scripted(events) => events.is_empty(),
        }
    }

    /// The number of bytes that follow, for a reply that is not parsed.
    #[must_use]
    pub fn size_hint(&self) -> SizeHint {
        match self {
            Self::Unparsed { body, .. } => body.size_hint(),
            Self::Shared(reader) => reader.size_hint(),
            Self::Stream(_) | Self::Whole { .. } | Self::Deferred(_) => SizeHint::default(),
            #[cfg(test)]
            Self::Scripted(_) => SizeHint::default(),
        }
    }
}

/// The event of a frame that is not parsed.
fn unparsed(frame: Frame<Bytes>) -> Option<GenerationEvent> {
    match frame.into_data().map_err(Frame::into_trailers) {
        Ok(data) => Some(GenerationEvent::unparsed(data, UnparsedReason::Piece)),
        Err(Ok(trailers)) => Some(GenerationEvent::trailers(trailers)),
        Err(Err(_)) => None,
    }
}
