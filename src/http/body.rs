//! Bodies: of replies, with what must live as long as they do, and of uploads.

mod failed;
mod forwarded;
mod patience;
mod upload;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};

use crate::generation::Observed;
use crate::http::attempt::Reader;
use crate::http::offload::{Items, OffloadedIter};
use crate::http::openai::{Overheard, Spoken};
use crate::http::served::Served;
use crate::http::stream::Enriched;

pub use failed::Failed;
pub use forwarded::Forwarded;
pub use upload::{Upload, broken};

/// An error of a body: it ends the connection, which is how the other side learns of it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a reply. What must live until its last byte lives in it: the permit, the clock, the log line.
#[derive(Debug)]
pub struct Body {
    inner: Inner,
    /// What was seen of a reply that is whole.
    observed: Option<Observed>,
    served: Option<Box<Served>>,
}

enum Inner {
    Full(Bytes),
    Forwarded(Box<Forwarded>),
    Enriched(Box<Enriched>),
    Made(OffloadedIter<Bytes>),
    Shared(Reader),
    Spoken(Box<Spoken>),
    Overheard(Box<Overheard>),
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(bytes) => f.debug_tuple("Full").field(&bytes.len()).finish(),
            Self::Forwarded(body) => f.debug_tuple("Forwarded").field(body).finish(),
            Self::Enriched(body) => f.debug_tuple("Enriched").field(body).finish(),
            Self::Made(_) => f.write_str("Made"),
            Self::Shared(reader) => f.debug_tuple("Shared").field(reader).finish(),
            Self::Spoken(spoken) => f.debug_tuple("Spoken").field(spoken).finish(),
            Self::Overheard(body) => f.debug_tuple("Overheard").field(body).finish(),
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

    /// A stream that is enriched on its way.
    #[must_use]
    pub fn enriched(body: Enriched) -> Self {
        Self::of(Inner::Enriched(Box::new(body)))
    }

    /// A reply that others may read too.
    #[must_use]
    pub fn shared(reader: Reader) -> Self {
        Self::of(Inner::Shared(reader))
    }

    /// A native reply that is said in another dialect.
    #[must_use]
    pub fn spoken(spoken: Spoken) -> Self {
        Self::of(Inner::Spoken(Box::new(spoken)))
    }

    /// A stream whose ids are taken on its way.
    #[must_use]
    pub fn overheard(body: Overheard) -> Self {
        Self::of(Inner::Overheard(Box::new(body)))
    }

    fn of(inner: Inner) -> Self {
        Self { inner, observed: None, served: None }
    }

    /// A body that blocking threads make as it is taken.
    #[must_use]
    pub fn made(chunks: Items<Bytes>) -> Self {
        Self::of(Inner::Made(OffloadedIter::new(chunks, Bytes::len)))
    }

    /// The body, which `served` now lives as long as.
    #[must_use]
    pub fn with(mut self, served: Box<Served>) -> Self {
        self.served = Some(served);
        self
    }

    /// The body of a reply that was read whole, with what was seen of it.
    #[must_use]
    pub fn read(mut self, observed: Observed) -> Self {
        self.observed = Some(observed);
        self
    }

    /// What has been seen of the reply.
    #[must_use]
    pub fn observed(&self) -> Option<Observed> {
        match &self.inner {
            Inner::Enriched(stream) => Some(*stream.observed()),
            Inner::Shared(reader) => reader.observed(),
            Inner::Spoken(spoken) => spoken.observed(),
            Inner::Full(_) | Inner::Forwarded(_) | Inner::Made(_) | Inner::Overheard(_) => self.observed,
        }
    }

    /// Says whether what is taken here is only gathered: of a reply that others may read too, the client has nothing until that is taken back.
    pub fn hold(&self, held: bool) {
        if let Inner::Shared(reader) = &self.inner {
            reader.hold(held);
        }
    }

    /// Whether what has been handed out so far says all, although the body may not have ended.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(&self.inner, Inner::Enriched(stream) if stream.is_complete())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let observed = self.observed();
        if let Some(served) = &mut self.served {
            served.observed = observed;
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
            Inner::Enriched(body) => body.poll_frame(cx),
            Inner::Made(steps) => steps.poll_next(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk)))),
            Inner::Shared(reader) => reader.poll_frame(cx),
            Inner::Spoken(spoken) => spoken.poll_frame(cx),
            Inner::Overheard(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Full(bytes) => bytes.is_empty(),
            Inner::Forwarded(body) => body.is_end_stream(),
            Inner::Enriched(_) | Inner::Made(_) | Inner::Spoken(_) | Inner::Overheard(_) => false,
            Inner::Shared(reader) => reader.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.remaining() as u64),
            Inner::Forwarded(body) => body.size_hint(),
            Inner::Enriched(_) | Inner::Made(_) | Inner::Overheard(_) => SizeHint::default(),
            Inner::Spoken(spoken) => spoken.size_hint(),
            Inner::Shared(reader) => reader.size_hint(),
        }
    }
}
