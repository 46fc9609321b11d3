// SPDX-License-Identifier: Apache-2.0
//! Bodies of replies and of requests.

mod encoded;
mod read_timeout;
mod upload;

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};

use crate::engine::transport::forwarded::ForwardedBody;
use crate::error::BoxError;
use crate::generation::ReplyStats;
use crate::generation::in_flight::UnknownRidGuard;
use crate::serve::access_log::AccessRecord;
use crate::serve::offload::{Items, OffloadedIter};

pub(crate) use encoded::EncodedBody;
pub(crate) use upload::{Upload, read_body, upload_error};

/// The body of a reply over HTTP.
#[derive(Debug)]
pub(crate) struct Body {
    inner: Inner,
    /// Statistics of a complete reply.
    observed: Option<ReplyStats>,
    /// Why it ends early. The first poll after a failure yields, so that the connection writes earlier bytes before the failure ends it.
    failed: Option<BoxError>,
    /// Receives the token counts and the entropy of the reply.
    record: Option<AccessRecord>,
    /// Set while a generation runs whose request id is not known.
    _unnamed: Option<UnknownRidGuard>,
}

enum Inner {
    Full(Bytes),
    Forwarded(Box<ForwardedBody>),
    Encoded(Box<EncodedBody>),
    Offloaded(OffloadedIter<Bytes>),
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(bytes) => f.debug_tuple("Full").field(&bytes.len()).finish(),
            Self::Forwarded(body) => f.debug_tuple("Forwarded").field(body).finish(),
            Self::Encoded(body) => f.debug_tuple("Encoded").field(body).finish(),
            Self::Offloaded(_) => f.write_str("Offloaded"),
        }
    }
}

impl Body {
    /// Creates a body from its complete bytes.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self::new(Inner::Full(bytes.into()))
    }

    /// Creates the body of a reply that was measured completely.
    pub(crate) fn whole(bytes: Bytes, observed: Option<ReplyStats>) -> Self {
        let mut body = Self::full(bytes);
        body.observed = observed;
        body
    }

    /// Forwards the upstream's body unchanged.
    pub(crate) fn forwarded(body: ForwardedBody) -> Self {
        Self::new(Inner::Forwarded(Box::new(body)))
    }

    /// Encodes the events of a generation for the client.
    pub(crate) fn encoded(body: EncodedBody) -> Self {
        Self::new(Inner::Encoded(Box::new(body)))
    }

    fn new(inner: Inner) -> Self {
        Self { inner, observed: None, failed: None, record: None, _unnamed: None }
    }

    /// Creates a body that blocking threads produce as the client reads it.
    pub(crate) fn offloaded(chunks: Items<Bytes>) -> Self {
        Self::new(Inner::Offloaded(OffloadedIter::new(chunks, Bytes::len)))
    }

    /// Reports what the body observes to the access record of its request.
    pub(crate) fn with_record(mut self, record: AccessRecord) -> Self {
        self.record = Some(record);
        self
    }

    /// Holds `unnamed`, which marks a running generation without a known id, until the body is dropped.
    pub(crate) fn with_unnamed(mut self, unnamed: Option<UnknownRidGuard>) -> Self {
        self._unnamed = unnamed;
        self
    }

    /// The token counts and the entropy of the reply so far.
    fn observed(&self) -> Option<ReplyStats> {
        match &self.inner {
            Inner::Encoded(body) => body.observed(),
            Inner::Full(_) | Inner::Forwarded(_) | Inner::Offloaded(_) => self.observed,
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
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let frame = ready!(match &mut self.inner {
            Inner::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Inner::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Inner::Forwarded(body) => Pin::new(body.as_mut()).poll_frame(cx),
            Inner::Encoded(body) => body.poll_frame(cx),
            Inner::Offloaded(steps) => steps.poll_next(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk)))),
        });
        if let Some(Err(error)) = frame {
            self.failed = Some(error);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Full(bytes) => bytes.is_empty(),
            Inner::Forwarded(body) => body.is_end_stream(),
            Inner::Encoded(body) => body.is_end_stream(),
            Inner::Offloaded(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.remaining() as u64),
            Inner::Forwarded(body) => body.size_hint(),
            Inner::Encoded(body) => body.size_hint(),
            Inner::Offloaded(_) => SizeHint::default(),
        }
    }
}
