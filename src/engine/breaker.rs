//! Spares callers a wait for an upstream that cannot be connected to.
//!
//! A connection to a host that is gone takes as long as `--connect-timeout` to fail, and every request that waits for one holds memory.
//! So after some failures in a row requests are answered at once, but for one twice a second that tries again. tokentap's own questions,
//! which go on all the while, close it as soon as one of them is answered.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// From one call that tries to the next.
const PAUSE: Duration = Duration::from_millis(500);

/// What all callers of one upstream share. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Breaker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Failures in a row that open it; 0 never does.
    patience: u32,
    /// Failures in a row.
    failures: AtomicU32,
    /// When the next call may try. Held for a comparison, by those alone that find it open.
    next: Mutex<Option<Instant>>,
}

impl Breaker {
    /// A closed breaker that opens after `patience` failures in a row; 0 is never.
    pub(super) fn new(patience: u32) -> Self {
        Self(Arc::new(Shared { patience, failures: AtomicU32::new(0), next: Mutex::default() }))
    }

    fn next(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls are answered without being sent.
    pub(super) fn is_open(&self) -> bool {
        self.0.patience > 0 && self.0.failures.load(Ordering::Relaxed) >= self.0.patience
    }

    /// Lets a call through.
    ///
    /// # Errors
    /// How many failures there have been, where it is not to be sent.
    pub(super) fn admit(&self) -> Result<(), u32> {
        if !self.is_open() {
            return Ok(());
        }
        let mut next = self.next();
        let now = Instant::now();
        if next.is_some_and(|next| now < next) {
            return Err(self.0.failures.load(Ordering::Relaxed));
        }
        // whatever becomes of this one, another may try after it: it may hang, or generate for minutes
        *next = Some(now + PAUSE);
        Ok(())
    }

    /// The upstream has answered something.
    pub(super) fn connected(&self) {
        // nearly always there is nothing to be forgotten, and a line of the cache that all cores can keep
        if self.0.failures.load(Ordering::Relaxed) != 0 {
            self.0.failures.store(0, Ordering::Relaxed);
        }
    }

    /// No connection could be made.
    pub(super) fn refused(&self) {
        *self.next() = Some(Instant::now() + PAUSE);
        self.0.failures.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row_and_lets_one_try_a_pause() {
        let breaker = Breaker::new(3);
        for _ in 0..2 {
            breaker.refused();
            assert_eq!(breaker.admit(), Ok(()));
        }
        breaker.connected();
        for _ in 0..2 {
            breaker.refused();
        }
        assert_eq!((breaker.admit(), breaker.is_open()), (Ok(()), false), "an answer lies between them");
        breaker.refused();
        assert_eq!((breaker.admit(), breaker.is_open()), (Err(3), true));
        for failures in [4, 5] {
            tokio::time::advance(PAUSE).await;
            assert_eq!(breaker.admit(), Ok(()), "one tries");
            assert_eq!(breaker.admit(), Err(failures - 1), "the others do not wait for it");
            breaker.refused();
            assert_eq!(breaker.admit(), Err(failures));
        }
        tokio::time::advance(PAUSE).await;
        assert_eq!(breaker.admit(), Ok(()));
        tokio::time::advance(PAUSE).await;
        assert_eq!(breaker.admit(), Ok(()), "the one before hangs");
        breaker.connected();
        assert_eq!((breaker.admit(), breaker.admit(), breaker.is_open()), (Ok(()), Ok(()), false));
    }

    #[tokio::test(start_paused = true)]
    async fn without_patience_it_never_opens() {
        let breaker = Breaker::new(0);
        for _ in 0..100 {
            breaker.refused();
        }
        assert_eq!((breaker.admit(), breaker.is_open()), (Ok(()), false));
    }
}
