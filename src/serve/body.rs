//! Bodies of replies and of uploads.

mod encoded;
mod read_timeout;
mod upload;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};

use crate::engine::forwarded::Forwarded;
use crate::error::BoxError;
use crate::generation::Observed;
use crate::generation::in_flight::Unnamed;
use crate::serve::access_log::AccessRecord;
use crate::serve::control::offload::{Items, OffloadedIter};
use crate::serve::data::passthrough::PassthroughStream;

pub use encoded::{EncodedBody, Encoder};
pub use upload::{Upload, broken};

/// The body of a reply over HTTP.
#[derive(Debug)]
pub struct Body {
    inner: Inner,
    /// Gets what was observed of the reply.
    record: Option<AccessRecord>,
    /// The reply is of a generation whose id is not known.
    _unnamed: Option<Unnamed>,
}

enum Inner {
    Full(Bytes),
    Forwarded(Box<Forwarded>),
    Encoded(Box<EncodedBody>),
    Made(OffloadedIter<Bytes>),
    PassthroughStream(Box<PassthroughStream>),
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(bytes) => f.debug_tuple("Full").field(&bytes.len()).finish(),
            Self::Forwarded(body) => f.debug_tuple("Forwarded").field(body).finish(),
            Self::Encoded(body) => f.debug_tuple("Encoded").field(body).finish(),
            Self::Made(_) => f.write_str("Made"),
            Self::PassthroughStream(body) => f.debug_tuple("PassthroughStream").field(body).finish(),
        }
    }
}

impl Body {
    /// A whole body.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::of(Inner::Full(bytes.into()))
    }

    /// The upstream's body as it comes.
    #[must_use]
    pub fn forwarded(body: Forwarded) -> Self {
        Self::of(Inner::Forwarded(Box::new(body)))
    }

    /// The events of a generation, encoded for the client.
    #[must_use]
    pub fn encoded(body: EncodedBody) -> Self {
        Self::of(Inner::Encoded(Box::new(body)))
    }

    /// A stream whose ids are taken on its way.
    #[must_use]
    pub fn passthrough(body: PassthroughStream) -> Self {
        Self::of(Inner::PassthroughStream(Box::new(body)))
    }

    fn of(inner: Inner) -> Self {
        Self { inner, record: None, _unnamed: None }
    }

    /// A body that blocking threads make as it is taken.
    #[must_use]
    pub fn made(chunks: Items<Bytes>) -> Self {
        Self::of(Inner::Made(OffloadedIter::new(chunks, Bytes::len)))
    }

    /// The body, which adds what it observes to the access record of its request.
    #[must_use]
    pub fn observed_by(mut self, record: AccessRecord) -> Self {
        self.record = Some(record);
        self
    }

    /// The body of a generation whose id is not known, while it runs.
    #[must_use]
    pub fn holding(mut self, unnamed: Option<Unnamed>) -> Self {
        self._unnamed = unnamed;
        self
    }

    /// What has been seen of the reply.
    fn observed(&self) -> Option<Observed> {
        match &self.inner {
            Inner::Encoded(body) => body.observed(),
            Inner::Full(_) | Inner::Forwarded(_) | Inner::Made(_) | Inner::PassthroughStream(_) => None,
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(record) = &self.record {
            record.observe(self.observed());
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.inner {
            Inner::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Inner::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Inner::Forwarded(body) => Pin::new(body.as_mut()).poll_frame(cx),
            Inner::Encoded(body) => body.poll_frame(cx),
            Inner::Made(steps) => steps.poll_next(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk)))),
            Inner::PassthroughStream(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Full(bytes) => bytes.is_empty(),
            Inner::Forwarded(body) => body.is_end_stream(),
            Inner::Encoded(body) => body.is_end_stream(),
            Inner::Made(_) | Inner::PassthroughStream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.remaining() as u64),
            Inner::Forwarded(body) => body.size_hint(),
            Inner::Encoded(body) => body.size_hint(),
            Inner::Made(_) | Inner::PassthroughStream(_) => SizeHint::default(),
        }
    }
}
