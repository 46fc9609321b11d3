// SPDX-License-Identifier: Apache-2.0
//! Tracks whether the device is usable.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::driver::Unavailable;
use super::worker::NAME;
use crate::metrics::Metrics;

/// How long a driver call may take, and how long callers wait for a device that hangs. Longer than the timeout of a batch.
pub(crate) const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The state of the device, shared by the thread that owns it and the callers that submit rows.
#[derive(Debug)]
pub(super) struct Health {
    metrics: Arc<Metrics>,
    /// Why the device is lost. Set once: after an error its results are not reliable, and most errors are sticky.
    lost: OnceLock<Unavailable>,
    /// The device is being tested: failures are not counted, and the tester reports them.
    trial: AtomicBool,
    opened: Instant,
    /// When the running driver call began, in microseconds since `opened`; 0 if no call is running.
    calling: AtomicU64,
}

impl Health {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            lost: OnceLock::new(),
            trial: AtomicBool::new(false),
            opened: Instant::now(),
            calling: AtomicU64::new(0),
        }
    }

    /// Whether the device is lost. This call detects a driver call that hangs.
    pub(super) fn is_lost(&self) -> bool {
        if self.lost.get().is_none() && self.is_stuck() {
            self.lose(Unavailable::Hangs);
        }
        self.lost.get().is_some()
    }

    /// Why the device is lost, if it is.
    pub(super) fn loss(&self) -> Option<&Unavailable> {
        self.lost.get()
    }

    /// Whether a driver call has exceeded [`DRIVER_TIMEOUT`].
    pub(super) fn is_stuck(&self) -> bool {
        let since = self.calling.load(Ordering::Relaxed);
        since > 0 && self.opened.elapsed().saturating_sub(Duration::from_micros(since)) > DRIVER_TIMEOUT
    }

    /// Runs a driver call and records when it began.
    pub(super) fn calling<T>(&self, call: impl FnOnce() -> T) -> T {
        let now = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.calling.store(now.max(1), Ordering::Relaxed);
        // resets the time even if the bindings panic
        let _guard = CallGuard(&self.calling);
        call()
    }

    /// Marks the device as lost.
    pub(super) fn lose(&self, error: Unavailable) {
        let code = match &error {
            Unavailable::Failed { code, .. } => code.to_string(),
            _ => "none".to_owned(),
        };
        let text = error.to_string();
        if self.lost.set(error).is_err() {
            return;
        }
        self.metrics.slices.device_errors.with_label_values(&[&code]).inc();
        if !self.is_trial() {
            self.metrics.slices.backend.with_label_values(&[NAME]).set(0);
            tracing::error!(
                error = text,
                "the CUDA device is lost; rows are measured on the CPU until tokentap restarts"
            );
        }
    }

    /// Whether the device is being tested.
    pub(super) fn is_trial(&self) -> bool {
        self.trial.load(Ordering::Relaxed)
    }

    /// Runs a test of the device.
    pub(super) fn run_trial<T>(&self, test: impl FnOnce() -> T) -> T {
        self.trial.store(true, Ordering::Relaxed);
        let done = test();
        self.trial.store(false, Ordering::Relaxed);
        done
    }
}

/// Marks the end of the driver call when dropped.
struct CallGuard<'a>(&'a AtomicU64);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hung_driver_call_is_detected() {
        let metrics = Arc::new(Metrics::new("cuda"));
        let began = Instant::now()
            .checked_sub(DRIVER_TIMEOUT + Duration::from_secs(1))
            .expect("the machine has been up for longer");
        let health = Health { opened: began, ..Health::new(&metrics) };
        assert!(!health.is_lost(), "no call is running");
        health.calling(|| assert!(!health.is_stuck(), "it has only just begun"));
        // a call that began when the device was opened
        health.calling.store(1, Ordering::Relaxed);
        assert!(health.is_stuck() && health.is_lost());
        assert_eq!(health.loss(), Some(&Unavailable::Hangs));
        health.lose(Unavailable::NoDevice);
        assert_eq!(metrics.slices.device_errors.with_label_values(&["none"]).get(), 1, "it is lost once");
        health.calling(|| ());
        assert!(!health.is_stuck() && health.is_lost(), "lost although the call returned");
    }
}
