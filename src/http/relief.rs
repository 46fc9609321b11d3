//! How long replies wait for the log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a reply waits for the log, however many turns it has.
const LOG: Duration = Duration::from_secs(2);

/// Once the log was that slow, replies do not wait for it for so long.
const PAUSE: Duration = Duration::from_secs(10);

/// Whether replies are relieved of the wait. By a clock that cannot be set: were it the time of day, a clock that is put back by a year
/// would let replies go unwritten for a year.
#[derive(Debug, Default)]
pub struct Relief {
    /// The log was too slow, and is not waited for until then; held for a look only.
    relieved: Mutex<Option<Instant>>,
}

impl Relief {
    /// Until when a reply that begins to wait now does so.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let now = Instant::now();
        let relieved = self.relieved.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until);
        if relieved { now } else { now + LOG }
    }

    /// A reply has waited in vain.
    pub fn lose(&self) {
        *self.relieved.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_log_is_waited_for_again_when_ten_seconds_have_passed_whatever_the_time_of_day() {
        let relief = Relief::default();
        let left = || relief.deadline() - Instant::now();
        assert_eq!(left(), LOG);
        relief.lose();
        assert_eq!(left(), Duration::ZERO, "one reply that waited in vain is enough");
        // the time of day stands still meanwhile
        advance(PAUSE - Duration::from_millis(1)).await;
        assert_eq!(left(), Duration::ZERO);
        advance(Duration::from_millis(1)).await;
        assert_eq!(left(), LOG);
    }
}
