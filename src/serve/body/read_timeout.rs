// SPDX-License-Identifier: Apache-2.0
//! The read timeout of a request body, which also enforces a minimum rate.
//!
//! A limit on each pause alone would let a client that sends a byte now and then hold its connection forever.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Bytes that restore one second of the budget.
const BYTES_PER_SECOND: f64 = 1024.0;

/// A budget of waiting time. Waiting spends it, and received bytes restore it, up to the limit.
#[derive(Debug)]
pub(super) struct ReadTimeout {
    limit: Duration,
    budget: Duration,
    /// When the current wait began; `None` while nothing polls for bytes.
    since: Option<Instant>,
    /// Created by the first wait: most bodies have arrived when they are read.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl ReadTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, budget: limit, since: None, sleep: None }
    }

    /// Records received bytes, which ends the current wait.
    pub(super) fn record(&mut self, bytes: usize) {
        let waited = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        let restored = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND);
        self.budget = (self.budget.saturating_sub(waited) + restored).min(self.limit);
    }

    /// Restores the whole budget.
    pub(super) fn reset(&mut self) {
        (self.since, self.budget) = (None, self.limit);
    }

    /// Starts a wait, or continues it; ready when the budget is spent.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            sleep.as_mut().reset(now + self.budget);
        }
        sleep.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Sends `bytes` every `pace`, at most 100 times; returns how many arrive before the timeout.
    async fn received(bytes: usize, pace: Duration) -> usize {
        let mut timeout = ReadTimeout::new(LIMIT);
        for times in 0..100 {
            let slow = std::future::poll_fn(|cx| timeout.poll(cx));
            if tokio::time::timeout(pace, slow).await.is_ok() {
                return times;
            }
            timeout.record(bytes);
        }
        100
    }

    #[tokio::test(start_paused = true)]
    async fn body_below_the_minimum_rate_times_out() {
        let second = Duration::from_secs(1);
        assert_eq!(received(10, 5 * second).await, 6, "a few bytes every five seconds");
        assert_eq!(received(0, LIMIT + second).await, 0, "a pause longer than the limit");
        assert_eq!(received(1 << 20, LIMIT + second).await, 0, "however many bytes follow");
        assert_eq!(received(5 * 1024, 5 * second).await, 100, "a kilobyte a second");
        assert_eq!(received(30 * 1024, 29 * second).await, 100, "pauses whose bytes restore the budget");
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_a_reader_does_not_count() {
        let mut timeout = ReadTimeout::new(LIMIT);
        for _ in 0..10 {
            // the reader was busy and did not poll
            tokio::time::advance(LIMIT).await;
            timeout.record(1);
        }
        assert_eq!(timeout.budget, LIMIT);
        assert!(std::future::poll_fn(|cx| Poll::Ready(timeout.poll(cx))).await.is_pending());
        tokio::time::advance(LIMIT / 2).await;
        timeout.reset();
        assert_eq!(timeout.budget, LIMIT);
    }
}
