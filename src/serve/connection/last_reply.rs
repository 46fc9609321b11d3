//! The last replies of a connection of HTTP/1 while the server drains.
//!
//! A reply whose head goes out says that the connection ends. One whose head went out before cannot say so, and its client may send its
//! next request over the connection, or has sent it already: that one is served, too, if it comes soon. Until then the connection lingers; one
//! that lingers when the drain ends has nothing that could be cut.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use tokio::time::Instant;

/// How long a connection stays open behind a reply that could not say that it ends.
const LINGER: Duration = Duration::from_secs(1);

/// The same of a connection that is between two requests: the next may be on its way.
const IDLE_LINGER: Duration = Duration::from_millis(100);

/// What the task of a connection knows of its replies. Only that task uses it.
#[derive(Debug, Clone, Default)]
pub(super) struct Replies(Arc<State>);

#[derive(Debug, Default)]
struct State {
    draining: AtomicBool,
    /// A head has gone out that does not say that the connection ends, and its body is being sent.
    promises_more: AtomicBool,
    /// A request has come, and the body of its reply has not been taken to its end.
    has_request: AtomicBool,
    /// Bytes of a reply wait until the client takes some.
    is_blocked: AtomicBool,
}

/// The body of a reply, until it is dropped.
#[derive(Debug)]
pub(super) struct Sending(Arc<State>);

impl Replies {
    /// A request has come.
    pub(super) fn request(&self) {
        self.0.has_request.store(true, Ordering::Relaxed);
    }

    /// Notes whether bytes wait until the client takes some.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        self.0.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Whether all requests have been answered, and all replies have been given to the system.
    pub(super) fn are_complete(&self) -> bool {
        !self.0.has_request.load(Ordering::Relaxed) && !self.0.is_blocked.load(Ordering::Relaxed)
    }

    /// The head of a reply goes out.
    pub(super) fn begin(&self, headers: &mut HeaderMap) -> Sending {
        let draining = self.0.draining.load(Ordering::Relaxed);
        if draining {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.0.promises_more.store(!draining, Ordering::Relaxed);
        Sending(Arc::clone(&self.0))
    }

    /// The server drains for as long as `drain`: ends when the connection may be told to end behind what runs. The task of the connection
    /// serves it before it polls this.
    pub(super) async fn may_be_last(&self, drain: Duration) {
        let end = Instant::now() + drain;
        self.0.draining.store(true, Ordering::Relaxed);
        if !self.0.promises_more.load(Ordering::Relaxed) {
            return linger(IDLE_LINGER, end).await;
        }
        poll_fn(|_| match self.0.promises_more.load(Ordering::Relaxed) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
        linger(LINGER, end).await;
    }
}

/// Waits for a request for so long, or for half of the time until `end` where that is less, so that the connection is closed by then.
async fn linger(most: Duration, end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    tokio::time::sleep(most.min(left / 2)).await;
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.promises_more.store(false, Ordering::Relaxed);
        self.0.has_request.store(false, Ordering::Relaxed);
    }
}
