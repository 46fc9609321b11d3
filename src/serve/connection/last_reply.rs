// SPDX-License-Identifier: Apache-2.0
//! The last replies of an HTTP/1 connection while the server drains.
//!
//! A head that is sent during the drain has `connection: close`. A head that was sent before has not, so its client may send the next
//! request over the connection, or has already sent it. That request is served too if it comes soon. Until then the connection lingers. A
//! connection that lingers at the end of the drain does not count as cut.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use tokio::time::Instant;

/// How long a connection stays open after a reply that was sent without `connection: close`.
const LINGER: Duration = Duration::from_secs(1);

/// How long an idle connection stays open: its next request may be on its way.
const IDLE_LINGER: Duration = Duration::from_millis(100);

/// The state of a connection's replies. Only the task of the connection uses it.
#[derive(Debug, Clone, Default)]
pub(super) struct Replies(Arc<ReplyState>);

#[derive(Debug, Default)]
struct ReplyState {
    draining: AtomicBool,
    /// A head without `connection: close` was sent, and its body is being sent.
    keeps_open: AtomicBool,
    /// A request was received, and the body of its reply has not ended.
    has_request: AtomicBool,
    /// Bytes of a reply wait until the client reads.
    is_blocked: AtomicBool,
}

/// Marks a reply as being sent until it is dropped with the body.
#[derive(Debug)]
pub(super) struct ReplyGuard(Arc<ReplyState>);

impl Replies {
    /// Records that a request was received.
    pub(super) fn request(&self) {
        self.0.has_request.store(true, Ordering::Relaxed);
    }

    /// Records whether bytes wait until the client reads.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        self.0.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Whether all requests have replies and the kernel has accepted all of them.
    pub(super) fn are_complete(&self) -> bool {
        !self.0.has_request.load(Ordering::Relaxed) && !self.0.is_blocked.load(Ordering::Relaxed)
    }

    /// Called before the head of a reply is sent. Adds `connection: close` while the server drains.
    pub(super) fn begin(&self, headers: &mut HeaderMap) -> ReplyGuard {
        let draining = self.0.draining.load(Ordering::Relaxed);
        if draining {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.0.keeps_open.store(!draining, Ordering::Relaxed);
        ReplyGuard(Arc::clone(&self.0))
    }

    /// Starts the drain, which lasts `drain`. Completes when the connection may close after its running requests. The task of the
    /// connection polls the connection before it polls this.
    pub(super) async fn wait_for_last(&self, drain: Duration) {
        let end = Instant::now() + drain;
        self.0.draining.store(true, Ordering::Relaxed);
        if !self.0.keeps_open.load(Ordering::Relaxed) {
            return linger(IDLE_LINGER, end).await;
        }
        poll_fn(|_| match self.0.keeps_open.load(Ordering::Relaxed) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
        linger(LINGER, end).await;
    }
}

/// Waits `max`, or half of the time until `end` if that is shorter, so that the connection closes before `end`.
async fn linger(max: Duration, end: Instant) {
    let remaining = end.saturating_duration_since(Instant::now());
    tokio::time::sleep(max.min(remaining / 2)).await;
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        self.0.keeps_open.store(false, Ordering::Relaxed);
        self.0.has_request.store(false, Ordering::Relaxed);
    }
}
