//! Limits how long replies wait until their turns are in the log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::session::ledger::Ack;

/// How long a reply waits for the log at most, regardless of its number of turns.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// How long replies do not wait for the log after a wait timed out.
const PAUSE: Duration = Duration::from_secs(10);

/// The wait of replies until their turns are on disk, with a back-off. It uses the monotonic clock: if the wall clock were set back by a
/// year, replies would not wait for a year.
#[derive(Debug)]
pub struct LogWait {
    /// The end of the back-off after a timeout. The lock is held for one read or write.
    skipped_until: Mutex<Option<Instant>>,
    metrics: Arc<Metrics>,
}

impl LogWait {
    /// Creates a wait that counts its failures in `metrics`.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { skipped_until: Mutex::default(), metrics }
    }

    /// The deadline of a wait that begins now.
    fn deadline(&self) -> Instant {
        let now = Instant::now();
        let is_skipped =
            self.skipped_until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until);
        if is_skipped { now } else { now + MAX_WAIT }
    }

    /// Starts the back-off after a wait timed out.
    fn trip(&self) {
        *self.skipped_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + PAUSE);
    }

    /// Waits until records are on disk. A log failure loses the record, never the reply.
    pub async fn wait(&self, acks: Vec<Ack>) {
        let deadline = self.deadline();
        for ack in acks.into_iter().filter(|ack| !ack.is_done()) {
            match tokio::time::timeout_at(deadline, ack).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => self.metrics.log_failures.with_label_values(&["write"]).inc(),
                Err(_) => {
                    self.metrics.log_failures.with_label_values(&["slow"]).inc();
                    self.trip();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn back_off_from_a_slow_log_ends_after_ten_seconds_of_the_monotonic_clock() {
        let wait = LogWait::new(Arc::new(Metrics::new("cpu")));
        let remaining = || wait.deadline() - Instant::now();
        assert_eq!(remaining(), MAX_WAIT);
        wait.trip();
        assert_eq!(remaining(), Duration::ZERO, "one timeout starts the back-off");
        // the wall clock does not advance meanwhile
        advance(PAUSE - Duration::from_millis(1)).await;
        assert_eq!(remaining(), Duration::ZERO);
        advance(Duration::from_millis(1)).await;
        assert_eq!(remaining(), MAX_WAIT);
    }
}
