// SPDX-License-Identifier: Apache-2.0
//! A circuit breaker: fails calls at once while the upstream cannot be connected to.
//!
//! Connecting to an unreachable host takes up to a second to fail, and every waiting request holds memory. After some consecutive
//! failures, requests fail at once, except one every half second that tries again. tokentap's own probes continue meanwhile, and the first
//! answer closes the breaker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The pause between two attempts while the breaker is open.
const PAUSE: Duration = Duration::from_millis(500);

/// A breaker that all callers of one upstream share. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Breaker(Arc<BreakerState>);

#[derive(Debug)]
struct BreakerState {
    /// Consecutive failures that open it; 0 disables it.
    threshold: u32,
    /// Consecutive failures so far.
    failures: AtomicU32,
    /// When the next call may try. Locked only while the breaker is open, for one comparison.
    next: Mutex<Option<Instant>>,
}

impl Breaker {
    /// A closed breaker that opens after `threshold` consecutive failures; 0 disables it.
    pub(super) fn new(threshold: u32) -> Self {
        Self(Arc::new(BreakerState { threshold, failures: AtomicU32::new(0), next: Mutex::default() }))
    }

    /// Whether calls fail without being sent.
    pub(super) fn is_open(&self) -> bool {
        self.0.threshold > 0 && self.0.failures.load(Ordering::Relaxed) >= self.0.threshold
    }

    /// Admits a call.
    ///
    /// # Errors
    /// The number of consecutive failures, if the call must not be sent.
    pub(super) fn admit(&self) -> Result<(), u32> {
        if !self.is_open() {
            return Ok(());
        }
        let mut next = self.0.next.lock();
        let now = Instant::now();
        if next.is_some_and(|next| now < next) {
            return Err(self.0.failures.load(Ordering::Relaxed));
        }
        // another call may try after the pause even if this one is unanswered: it may hang, or generate for minutes
        *next = Some(now + PAUSE);
        Ok(())
    }

    /// Records an answer of the upstream, which closes the breaker.
    pub(super) fn connected(&self) {
        // usually the count is 0 already, and without a write all cores can keep the cache line
        if self.0.failures.load(Ordering::Relaxed) != 0 {
            self.0.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records that no connection could be made.
    pub(super) fn connect_failed(&self) {
        *self.0.next.lock() = Some(Instant::now() + PAUSE);
        self.0.failures.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn open_breaker_admits_one_call_per_pause() {
        let breaker = Breaker::new(3);
        for _ in 0..2 {
            breaker.connect_failed();
            assert_eq!(breaker.admit(), Ok(()));
        }
        breaker.connected();
        for _ in 0..2 {
            breaker.connect_failed();
        }
        assert_eq!((breaker.admit(), breaker.is_open()), (Ok(()), false), "an answer resets the count");
        breaker.connect_failed();
        assert_eq!((breaker.admit(), breaker.is_open()), (Err(3), true));
        for failures in [4, 5] {
            tokio::time::advance(PAUSE).await;
            assert_eq!(breaker.admit(), Ok(()), "one tries");
            assert_eq!(breaker.admit(), Err(failures - 1), "the others do not wait for it");
            breaker.connect_failed();
            assert_eq!(breaker.admit(), Err(failures));
        }
        tokio::time::advance(PAUSE).await;
        assert_eq!(breaker.admit(), Ok(()));
        tokio::time::advance(PAUSE).await;
        assert_eq!(breaker.admit(), Ok(()), "the earlier attempt hangs");
        breaker.connected();
        assert_eq!((breaker.admit(), breaker.admit(), breaker.is_open()), (Ok(()), Ok(()), false));
    }

    #[tokio::test(start_paused = true)]
    async fn zero_threshold_never_opens() {
        let breaker = Breaker::new(0);
        for _ in 0..100 {
            breaker.connect_failed();
        }
        assert_eq!((breaker.admit(), breaker.is_open()), (Ok(()), false));
    }
}
