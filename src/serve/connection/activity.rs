// SPDX-License-Identifier: Apache-2.0
//! The activity of an HTTP/2 connection, for its idle timeout.
//!
//! Over HTTP/1 hyper has a timeout for each head, which closes an idle connection. Over HTTP/2 it has none: a client that only answers
//! pings would hold its connection forever.

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::time::Instant;
use tower::Service;

use super::last_reply::{Replies, ReplyGuard};

/// The value of `idle_since` on a connection that is not HTTP/2.
const NEVER: u64 = u64::MAX;

/// The streams of a connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Streams(Arc<StreamCounter>);

#[derive(Debug)]
struct StreamCounter {
    /// When the connection was accepted.
    began: Instant,
    /// Requests, and replies that are not completely sent.
    running: AtomicUsize,
    /// When the last stream ended, in milliseconds after `began`. Only valid while `running` is 0; [`NEVER`] if it is not HTTP/2.
    idle_since: AtomicU64,
}

impl StreamCounter {
    fn mark_idle(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NEVER - 1);
        self.idle_since.store(now, Ordering::Release);
    }
}

impl Streams {
    /// A connection without streams.
    pub(super) fn new() -> Self {
        let (running, idle_since) = (AtomicUsize::new(0), AtomicU64::new(NEVER));
        Self(Arc::new(StreamCounter { began: Instant::now(), running, idle_since }))
    }

    /// The client has sent the HTTP/2 preface. The idle time begins here.
    pub(super) fn preface_received(&self) {
        self.0.mark_idle();
    }

    /// Whether no stream is active now.
    pub(super) fn is_idle(&self) -> bool {
        self.0.running.load(Ordering::Relaxed) == 0
    }

    fn begin(&self) -> Arc<ActiveStream> {
        self.0.running.fetch_add(1, Ordering::Relaxed);
        Arc::new(ActiveStream(Arc::clone(&self.0)))
    }

    /// Completes when an HTTP/2 connection has had no stream for `timeout`.
    pub(super) async fn wait_idle(&self, timeout: Duration) {
        loop {
            // read before `idle_since`, which is written first
            let running = self.0.running.load(Ordering::Acquire);
            let idle_since = Duration::from_millis(self.0.idle_since.load(Ordering::Acquire));
            let idle = self.0.began.elapsed().saturating_sub(idle_since);
            let remaining = if running > 0 { timeout } else { timeout.saturating_sub(idle) };
            if remaining.is_zero() {
                return;
            }
            tokio::time::sleep(remaining).await;
        }
    }

    /// Wraps a service that is always ready. Counts each HTTP/2 request until the last byte of its reply is sent, and reports HTTP/1 requests to `replies`.
    pub(super) fn track<S, B>(
        self,
        replies: Replies,
        service: S,
    ) -> impl hyper::service::Service<Request<Incoming>, Response = Response<TrackedBody<B>>, Error = Infallible, Future: Send>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Send,
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        // borrowed while a request is dispatched. Cloning the layers for each request would touch the counters of all that they share
        let service = RefCell::new(service);
        service_fn(move |request: Request<Incoming>| {
            let running = (request.version() == Version::HTTP_2).then(|| self.begin());
            let replies = running.is_none().then(|| replies.clone());
            replies.iter().for_each(Replies::request);
            // the layers of a port are always ready
            let reply = service.borrow_mut().call(request);
            async move {
                let mut reply = reply.await?;
                let guard = replies.map(|replies| replies.begin(reply.headers_mut()));
                Ok(reply.map(|body| TrackedBody { body, running, _guard: guard }))
            }
        })
    }
}

/// An active stream. It ends when the last reference is dropped.
#[derive(Debug)]
struct ActiveStream(Arc<StreamCounter>);

impl Drop for ActiveStream {
    fn drop(&mut self) {
        self.0.mark_idle();
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}

/// The body of a reply.
#[derive(Debug)]
pub(super) struct TrackedBody<B> {
    body: B,
    running: Option<Arc<ActiveStream>>,
    _guard: Option<ReplyGuard>,
}

/// Bytes of a reply. hyper drops a body once it has polled the last frame, and drops the bytes once they are sent.
struct TrackedBytes {
    bytes: Bytes,
    _running: Arc<ActiveStream>,
}

impl AsRef<[u8]> for TrackedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let Some(running) = &self.running else { return frame };
        let track = |bytes| Bytes::from_owner(TrackedBytes { bytes, _running: Arc::clone(running) });
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(track))))
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

    /// Returns the time until `wait_idle` completes.
    async fn time_until_idle(streams: &Streams) -> Duration {
        let began = Instant::now();
        streams.wait_idle(Duration::from_secs(10)).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_starts_at_the_preface_or_at_the_last_byte_of_the_last_reply() {
        let pause = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        let streams = Streams::new();
        let preface = async {
            pause(100).await;
            streams.preface_received();
        };
        let (took, ()) = tokio::join!(time_until_idle(&streams), preface);
        assert_eq!(took, Duration::from_secs(110), "the preface came after a hundred seconds");
        let (first, second) = (streams.begin(), streams.begin());
        let sent = Arc::clone(&second);
        let ends = async {
            pause(3).await;
            drop(first);
            pause(24).await;
            drop(second);
            pause(5).await;
            drop(sent);
        };
        let (took, ()) = tokio::join!(time_until_idle(&streams), ends);
        assert_eq!(took, Duration::from_secs(42), "ten seconds after the last byte of the last reply");
        assert_eq!(time_until_idle(&streams).await, Duration::ZERO);
    }
}
