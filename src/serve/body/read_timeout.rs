//! How long a client's body is waited for.
//!
//! A limit for each pause alone would let a client hold its place forever with a byte now and then.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Bytes that give back a second of waiting.
const A_SECOND: f64 = 1024.0;

/// Waiting uses it up, and bytes give it back, up to where it began.
#[derive(Debug)]
pub(super) struct ReadTimeout {
    limit: Duration,
    left: Duration,
    /// Since when nothing has come, if it has been asked for.
    since: Option<Instant>,
    sleep: Pin<Box<Sleep>>,
}

impl ReadTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, left: limit, since: None, sleep: Box::pin(tokio::time::sleep(limit)) }
    }

    /// So many bytes have come.
    pub(super) fn came(&mut self, bytes: usize) {
        let waited = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        let back = Duration::from_secs_f64(bytes as f64 / A_SECOND);
        self.left = (self.left.saturating_sub(waited) + back).min(self.limit);
    }

    /// It is as at the beginning.
    pub(super) fn renew(&mut self) {
        (self.since, self.left) = (None, self.limit);
    }

    /// Nothing is there; ready when it has been waited for too long.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            self.sleep.as_mut().reset(now + self.left);
        }
        self.sleep.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// How often bytes that come at this pace are waited for, up to a hundred times.
    async fn endured(bytes: usize, pace: Duration) -> usize {
        let mut patience = ReadTimeout::new(LIMIT);
        for times in 0..100 {
            let slow = std::future::poll_fn(|cx| patience.poll(cx));
            if tokio::time::timeout(pace, slow).await.is_ok() {
                return times;
            }
            patience.came(bytes);
        }
        100
    }

    #[tokio::test(start_paused = true)]
    async fn drops_are_not_waited_for_for_good() {
        let second = Duration::from_secs(1);
        assert_eq!(endured(10, 5 * second).await, 6, "a few bytes every five seconds");
        assert_eq!(endured(0, LIMIT + second).await, 0, "a pause longer than the limit");
        assert_eq!(endured(1 << 20, LIMIT + second).await, 0, "however much comes behind it");
        assert_eq!(endured(5 * 1024, 5 * second).await, 100, "a kilobyte a second");
        assert_eq!(endured(30 * 1024, 29 * second).await, 100, "pauses that are made up for");
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_a_reader_does_not_count() {
        let mut patience = ReadTimeout::new(LIMIT);
        for _ in 0..10 {
            // the reader of the bytes was busy
            tokio::time::advance(LIMIT).await;
            patience.came(1);
        }
        assert_eq!(patience.left, LIMIT);
        assert!(std::future::poll_fn(|cx| Poll::Ready(patience.poll(cx))).await.is_pending());
        tokio::time::advance(LIMIT / 2).await;
        patience.renew();
        assert_eq!(patience.left, LIMIT);
    }
}
