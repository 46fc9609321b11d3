//! How long replies wait for the log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::session::ledger::Ack;

/// How long a reply waits for the log, however many turns it has.
const LONGEST: Duration = Duration::from_secs(2);

/// Once the log was that slow, replies do not wait for it for so long.
const PAUSE: Duration = Duration::from_secs(10);

/// The wait of replies until their turns are on disk. Measured by a clock that cannot be set: were it the time of day, a clock that is put back
/// by a year would let replies go unwritten for a year.
#[derive(Debug)]
pub struct LogWait {
    /// The log was too slow, and is not waited for until then; held for a look only.
    skipped_until: Mutex<Option<Instant>>,
    metrics: Arc<Metrics>,
}

impl LogWait {
    /// One whose failures are counted in `metrics`.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { skipped_until: Mutex::default(), metrics }
    }

    /// Until when a reply that begins to wait now does so.
    fn deadline(&self) -> Instant {
        let now = Instant::now();
        let is_skipped =
            self.skipped_until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until);
        if is_skipped { now } else { now + LONGEST }
    }

    /// A reply has waited in vain.
    fn trip(&self) {
        *self.skipped_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + PAUSE);
    }

    /// Waits until records are on disk. A failing log costs the record, never the reply.
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
    async fn a_slow_log_is_waited_for_again_when_ten_seconds_have_passed_whatever_the_time_of_day() {
        let wait = LogWait::new(Arc::new(Metrics::new("cpu")));
        let left = || wait.deadline() - Instant::now();
        assert_eq!(left(), LONGEST);
        wait.trip();
        assert_eq!(left(), Duration::ZERO, "one reply that waited in vain is enough");
        // the time of day stands still meanwhile
        advance(PAUSE - Duration::from_millis(1)).await;
        assert_eq!(left(), Duration::ZERO);
        advance(Duration::from_millis(1)).await;
        assert_eq!(left(), LONGEST);
    }
}
