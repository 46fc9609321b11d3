//! Bodies: of replies, with what must live as long as they do, and of uploads.

mod patience;
mod upload;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::generation::Observed;
use crate::http::Parts;
use crate::http::attempt::Reader;
use crate::http::running::Running;
use crate::http::served::Served;
use crate::http::stream::Enriched;
use crate::metrics::Metrics;
use crate::sglang::client::ReplyBody;

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
    Made(Chunks),
    Shared(Reader),
}

/// A body that is made as it is taken.
pub type Chunks = Box<dyn Iterator<Item = Bytes> + Send>;

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(bytes) => f.debug_tuple("Full").field(&bytes.len()).finish(),
            Self::Forwarded(body) => f.debug_tuple("Forwarded").field(body).finish(),
            Self::Enriched(body) => f.debug_tuple("Enriched").field(body).finish(),
            Self::Made(_) => f.write_str("Made"),
            Self::Shared(reader) => f.debug_tuple("Shared").field(reader).finish(),
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

    fn of(inner: Inner) -> Self {
        Self { inner, observed: None, served: None }
    }

    /// A body that is made as it is taken.
    #[must_use]
    pub fn made(chunks: Chunks) -> Self {
        Self::of(Inner::Made(chunks))
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
            Inner::Full(_) | Inner::Forwarded(_) | Inner::Made(_) => self.observed,
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
            Inner::Made(chunks) => Poll::Ready(chunks.next().map(|chunk| Ok(Frame::data(chunk)))),
            Inner::Shared(reader) => reader.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Full(bytes) => bytes.is_empty(),
            Inner::Forwarded(body) => body.is_end_stream(),
            Inner::Enriched(_) | Inner::Made(_) => false,
            Inner::Shared(reader) => reader.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.remaining() as u64),
            Inner::Forwarded(body) => body.size_hint(),
            Inner::Enriched(_) | Inner::Made(_) => SizeHint::default(),
            Inner::Shared(reader) => reader.size_hint(),
        }
    }
}

/// An upstream body with what was read of it already, and limits of time where its route has some.
#[derive(Debug)]
pub struct Forwarded {
    head: Bytes,
    body: ReplyBody,
    idle: Option<Idle>,
    deadline: Option<Pin<Box<Sleep>>>,
    /// The generation whose reply this is.
    running: Option<Box<Running>>,
    /// How the upstream failed; told to the connection once what came before has had its turn to be written.
    failed: Option<BoxError>,
    metrics: Arc<Metrics>,
}

impl Forwarded {
    /// A body without limits of time.
    #[must_use]
    pub fn patient(parts: &Parts, head: Bytes, body: ReplyBody) -> Self {
        let metrics = Arc::clone(&parts.metrics);
        Self { head, body, idle: None, deadline: None, running: None, failed: None, metrics }
    }

    /// The reply of a generation, nothing of which has to be read; its client may leave before its end.
    #[must_use]
    pub fn generated(body: ReplyBody, running: Running) -> Self {
        let whole = Self::patient(running.parts(), Bytes::new(), body);
        Self { running: Some(Box::new(running)), ..whole }
    }

    /// The engine is done once its reply has come to an end, good or bad.
    fn end(&mut self) {
        if let Some(running) = &mut self.running {
            running.end();
        }
    }

    /// A body that must not pause longer than `idle`, and must end by `deadline`.
    #[must_use]
    pub fn limited(parts: &Parts, body: ReplyBody, idle: Option<Duration>, deadline: Option<Instant>) -> Self {
        let deadline = deadline.map(|at| Box::pin(tokio::time::sleep_until(at)));
        Self { idle: idle.map(Idle::new), deadline, ..Self::patient(parts, Bytes::new(), body) }
    }

    fn count(&self, kind: &str) {
        self.metrics.upstream_errors.with_label_values(&[kind]).inc();
    }
}

impl http_body::Body for Forwarded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.head.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.head)))));
        }
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.count("timeout");
            return Poll::Ready(Some(Err("the reply took longer than --upstream-total-timeout".into())));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                if let Some(idle) = &mut self.idle {
                    idle.reset();
                }
                if !matches!(frame, Some(Ok(_))) || self.body.is_end_stream() {
                    self.end();
                }
                if let Some(Err(error)) = frame {
                    self.count("reset");
                    self.failed = Some(error.into());
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => match &mut self.idle {
                Some(idle) => {
                    ready!(idle.poll(cx));
                    self.count("timeout");
                    Poll::Ready(Some(Err("the reply paused for longer than --upstream-idle-timeout".into())))
                }
                None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.head.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}

/// Time since something last happened.
#[derive(Debug)]
struct Idle {
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl Idle {
    fn new(limit: Duration) -> Self {
        Self { limit, sleep: Box::pin(tokio::time::sleep(limit)) }
    }

    fn reset(&mut self) {
        self.sleep.as_mut().reset(Instant::now() + self.limit);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.sleep.as_mut().poll(cx)
    }
}
