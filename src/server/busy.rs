//! Whether a connection has anything to do.
//!
//! HTTP/1 has a time limit for heads in hyper, which ends a connection that is kept and not used. Over HTTP/2 a client that does no more than
//! answer pings would keep its place for good.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::time::Instant;
use tower::{Service, ServiceExt};

/// The requests of a connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Requests(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    /// When the connection came.
    began: Instant,
    /// Requests whose answers have not gone out whole.
    running: AtomicUsize,
    /// Since when there are none, in milliseconds from `began`; of no meaning while there are.
    quiet: AtomicU64,
}

impl Requests {
    /// None yet.
    pub(super) fn new() -> Self {
        let counted = Counted { began: Instant::now(), running: AtomicUsize::new(0), quiet: AtomicU64::new(0) };
        Self(Arc::new(counted))
    }

    fn begin(&self) -> Running {
        self.0.running.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(&self.0))
    }

    /// Ends when there has been none for so long.
    pub(super) async fn are_over(&self, patience: Duration) {
        loop {
            let quiet = Duration::from_millis(self.0.quiet.load(Ordering::Acquire));
            let since = self.0.began.elapsed().saturating_sub(quiet);
            let rest =
                if self.0.running.load(Ordering::Acquire) > 0 { patience } else { patience.saturating_sub(since) };
            if rest.is_zero() {
                return;
            }
            tokio::time::sleep(rest).await;
        }
    }

    /// A service whose requests are counted here, each until its answer is dropped.
    pub(super) fn counted<S, B>(
        self,
        service: S,
    ) -> impl hyper::service::Service<Request<Incoming>, Response = Response<Answer<B>>, Error = Infallible, Future: Send>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send,
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        service_fn(move |request| {
            let running = self.begin();
            let answer = service.clone().oneshot(request);
            async move { answer.await.map(|reply| reply.map(|body| Answer { body, _running: running })) }
        })
    }
}

/// A request, until it is dropped.
#[derive(Debug)]
struct Running(Arc<Counted>);

impl Drop for Running {
    fn drop(&mut self) {
        let now = u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.quiet.store(now, Ordering::Release);
        // behind the time: who sees that there are none sees since when
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}

/// The body of an answer, whose request is over when it is dropped.
#[derive(Debug)]
pub(super) struct Answer<B> {
    body: B,
    _running: Running,
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
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
    async fn over(requests: &Requests) -> Duration {
        let began = Instant::now();
        requests.are_over(Duration::from_secs(10)).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_quiet_since_its_last_request_ended() {
        let requests = Requests::new();
        assert_eq!(over(&requests).await, Duration::from_secs(10), "none ever came");
        let (first, second) = (requests.begin(), requests.begin());
        let ends = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(first);
            tokio::time::sleep(Duration::from_secs(24)).await;
            drop(second);
        };
        let (took, ()) = tokio::join!(over(&requests), ends);
        assert_eq!(took, Duration::from_secs(37), "ten seconds behind the last of them");
        assert_eq!(over(&requests).await, Duration::ZERO);
    }
}
