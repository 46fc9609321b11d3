//! Whether a connection of HTTP/2 has anything to do.
//!
//! Over HTTP/1 hyper has a time limit for each head, which ends a connection that is kept and not used. Over HTTP/2 it has none: a client
//! that does no more than answer pings would keep its place for good.

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
use tower::{Service, ServiceExt};

use super::last_reply::{Replies, Sending};

/// Stands for no time.
const NEVER: u64 = u64::MAX;

/// The streams of a connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Streams(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    /// When the connection came.
    began: Instant,
    /// Requests, and answers of which something waits to be sent.
    running: AtomicUsize,
    /// Since when there are none, in milliseconds from `began`: of no meaning while there are, and [`NEVER`] where it is not HTTP/2.
    quiet: AtomicU64,
}

impl Counted {
    fn rest(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NEVER - 1);
        self.quiet.store(now, Ordering::Release);
    }
}

impl Streams {
    /// None yet.
    pub(super) fn new() -> Self {
        let (running, quiet) = (AtomicUsize::new(0), AtomicU64::new(NEVER));
        Self(Arc::new(Counted { began: Instant::now(), running, quiet }))
    }

    /// The client has said that it speaks HTTP/2. Until then there is no connection to be quiet.
    pub(super) fn greeted(&self) {
        self.0.rest();
    }

    /// Whether there are none now.
    pub(super) fn are_none(&self) -> bool {
        self.0.running.load(Ordering::Relaxed) == 0
    }

    fn begin(&self) -> Arc<Running> {
        self.0.running.fetch_add(1, Ordering::Relaxed);
        Arc::new(Running(Arc::clone(&self.0)))
    }

    /// Ends when there has been none for so long, on a connection of HTTP/2.
    pub(super) async fn are_over(&self, patience: Duration) {
        loop {
            // before the time, which is written before it
            let running = self.0.running.load(Ordering::Acquire);
            let quiet = Duration::from_millis(self.0.quiet.load(Ordering::Acquire));
            let since = self.0.began.elapsed().saturating_sub(quiet);
            let rest = if running > 0 { patience } else { patience.saturating_sub(since) };
            if rest.is_zero() {
                return;
            }
            tokio::time::sleep(rest).await;
        }
    }

    /// A service whose requests over HTTP/2 are counted here, each until the last byte of its answer has gone out. Those over HTTP/1 are
    /// told to `replies`.
    pub(super) fn counted<S, B>(
        self,
        replies: Replies,
        service: S,
    ) -> impl hyper::service::Service<Request<Incoming>, Response = Response<Answer<B>>, Error = Infallible, Future: Send>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send,
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        service_fn(move |request: Request<Incoming>| {
            let running = (request.version() == Version::HTTP_2).then(|| self.begin());
            let replies = running.is_none().then(|| replies.clone());
            replies.iter().for_each(Replies::request);
            let answer = service.clone().oneshot(request);
            async move {
                let mut reply = answer.await?;
                let sending = replies.map(|replies| replies.begin(reply.headers_mut()));
                Ok(reply.map(|body| Answer { body, running, _sending: sending }))
            }
        })
    }
}

/// A request, until it is dropped.
#[derive(Debug)]
struct Running(Arc<Counted>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.rest();
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(super) struct Answer<B> {
    body: B,
    running: Option<Arc<Running>>,
    _sending: Option<Sending>,
}

/// Bytes of an answer: hyper lets go of a body once it has the last of them, and of them once they are sent.
struct Sent {
    bytes: Bytes,
    _running: Arc<Running>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let Some(running) = &self.running else { return frame };
        let sent = |bytes| Bytes::from_owner(Sent { bytes, _running: Arc::clone(running) });
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(sent))))
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

    /// How long it takes until they are over.
    async fn over(streams: &Streams) -> Duration {
        let began = Instant::now();
        streams.are_over(Duration::from_secs(10)).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_quiet_since_its_greeting_or_the_end_of_its_last_request() {
        let pause = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        let streams = Streams::new();
        let greets = async {
            pause(100).await;
            streams.greeted();
        };
        let (took, ()) = tokio::join!(over(&streams), greets);
        assert_eq!(took, Duration::from_secs(110), "it said so after a hundred seconds");
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
        let (took, ()) = tokio::join!(over(&streams), ends);
        assert_eq!(took, Duration::from_secs(42), "ten seconds behind the last byte of the last of them");
        assert_eq!(over(&streams).await, Duration::ZERO);
    }
}
