// SPDX-License-Identifier: Apache-2.0
//! Limits how long replies wait until their turns are in the log.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::session::ledger::{Ack, AppendError};

/// How long a reply waits for the log at most, regardless of its number of turns.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(2);

/// How long replies do not wait for the log after a wait timed out.
const PAUSE: Duration = Duration::from_secs(10);

/// The wait of replies until the log acknowledges their turns, with a back-off. It uses the monotonic clock: if the wall clock were set back by a
/// year, replies would not wait for a year.
#[derive(Debug)]
pub struct LogWait {
    /// The end of the back-off after a timeout. The lock is held for one read or write.
    skipped_until: Mutex<Option<Instant>>,
    longest: Duration,
    /// `--strict ledger`: a reply whose turn is not confirmed is refused.
    strict: bool,
    metrics: Arc<Metrics>,
}

impl LogWait {
    /// Creates a wait of at most `longest` that counts its failures in `metrics`. If `strict`, replies whose turns are not confirmed are
    /// refused.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, longest: Duration, strict: bool) -> Self {
        Self { skipped_until: Mutex::default(), longest, strict, metrics }
    }

    /// Whether replies do not wait now.
    fn is_skipped(&self) -> bool {
        let until = *self.skipped_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Starts the back-off after a wait timed out.
    fn back_off(&self) {
        *self.skipped_until.lock() = Some(Instant::now() + PAUSE);
    }

    /// Waits until the log or the shared ledger has acknowledged records, and counts failures. Resolves to true if the reply may be sent:
    /// a failure loses the record, and the reply only with `--strict ledger`.
    pub async fn wait(&self, acks: impl IntoIterator<Item = Ack>) -> bool {
        let is_skipped = !self.strict && self.is_skipped();
        let deadline = Instant::now() + if is_skipped { Duration::ZERO } else { self.longest };
        let (mut timed_out, mut confirmed) = (false, true);
        for ack in acks.into_iter().filter(|ack| !ack.is_done()) {
            let reason = match tokio::time::timeout_at(deadline, ack).await {
                Ok(Ok(())) => continue,
                Ok(Err(AppendError::QueueFull)) => "queue_full",
                Ok(Err(AppendError::Detached)) => "ledger",
                Ok(Err(AppendError::NoRoom)) => "memory",
                Ok(Err(_)) => "write",
                Err(_) => {
                    timed_out = true;
                    "slow"
                }
            };
            confirmed = false;
            self.metrics.log_failures.with_label_values(&[reason]).inc();
        }
        // a reply that did not wait does not extend the back-off, which would never end while there is traffic
        if timed_out && !is_skipped {
            self.back_off();
        }
        confirmed || !self.strict
    }
}

/// The error of a reply that `--strict ledger` refuses.
#[must_use]
pub(crate) fn unconfirmed() -> Error {
    Error::Unavailable {
        message: "the shared ledger did not confirm the turn in time, and --strict asks for it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::advance;

    use super::*;

    /// The time that a reply waits for a record that is never written.
    async fn time_of_a_wait(wait: &LogWait) -> Duration {
        let (_writer, answer) = oneshot::channel();
        let started = Instant::now();
        wait.wait(vec![Ack::awaited(answer)]).await;
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn back_off_from_a_slow_log_ends_after_ten_seconds_of_the_monotonic_clock_despite_traffic() {
        let wait = LogWait::new(Arc::new(Metrics::new("cpu")), MAX_WAIT, false);
        // the clock stops at whole milliseconds
        let rounding = Duration::from_millis(2);
        assert!(time_of_a_wait(&wait).await >= MAX_WAIT);
        let backed_off = Instant::now();
        while backed_off.elapsed() < PAUSE - Duration::from_secs(1) - rounding {
            assert!(time_of_a_wait(&wait).await <= rounding, "one timeout starts the back-off");
            advance(Duration::from_secs(1)).await;
        }
        advance(Duration::from_secs(1)).await;
        assert!(time_of_a_wait(&wait).await >= MAX_WAIT, "the back-off has ended");
    }

    #[tokio::test]
    async fn failures_of_the_log_are_counted_by_reason() {
        let metrics = Arc::new(Metrics::new("cpu"));
        let wait = LogWait::new(Arc::clone(&metrics), MAX_WAIT, false);
        wait.wait(vec![Ack::failed(AppendError::QueueFull), Ack::failed(AppendError::Closed), Ack::done()]).await;
        let count = |reason| metrics.log_failures.with_label_values(&[reason]).get();
        assert_eq!((count("queue_full"), count("write"), count("slow")), (1, 1, 0));
    }
}
