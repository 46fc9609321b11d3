//! Samples a share of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

/// Counts events; returns true when a sample is due.
#[derive(Debug)]
pub(super) struct Sampling {
    count: AtomicU64,
    /// Lets one through at a time.
    pub(super) turnstile: Arc<Semaphore>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), turnstile: Arc::new(Semaphore::new(1)) }
    }
}

impl Sampling {
    /// Whether this one is among the `share` that is looked at, spread evenly.
    #[must_use]
    pub(super) fn is_due(&self, share: f64) -> bool {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let due = |count: u64| (count as f64 * share).floor();
        due(before + 1) > due(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_looked_at_and_spread_evenly() {
        let due = |share: f64| {
            let sampling = Sampling::default();
            (0..1000).filter(|_| sampling.is_due(share)).count()
        };
        assert_eq!([due(0.0), due(0.01), due(0.5), due(1.0)], [0, 10, 500, 1000]);
    }
}
