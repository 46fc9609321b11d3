//! Whether the device can be relied on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::driver::Unavailable;
use crate::entropy::Cpu;
use crate::metrics::Metrics;

/// How long a call into the driver may take, and how long anybody waits for a device that neither answers nor fails: longer than a
/// batch is given.
pub(crate) const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The state of the device, shared by the thread that owns it and the callers that submit rows.
#[derive(Debug)]
pub(super) struct Health {
    metrics: Arc<Metrics>,
    cpu: Cpu,
    /// Why it can no longer be used. It is set once: after an error nothing that the device says can be relied on, and most errors stay.
    lost: OnceLock<Unavailable>,
    /// The device is being tested: failures are not counted, and the tester reports them.
    trial: AtomicBool,
    opened: Instant,
    /// Since when a call into the driver has not come back, in microseconds from `opened` on; 0 where none is under way.
    calling: AtomicU64,
}

impl Health {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            cpu: Cpu::new(),
            lost: OnceLock::new(),
            trial: AtomicBool::new(false),
            opened: Instant::now(),
            calling: AtomicU64::new(0),
        }
    }

    /// Whether it can no longer be used. A driver call that does not return is detected here.
    pub(super) fn is_lost(&self) -> bool {
        if self.lost.get().is_none() && self.is_stuck() {
            self.lose(Unavailable::Hangs);
        }
        self.lost.get().is_some()
    }

    /// Why it can no longer be used.
    pub(super) fn loss(&self) -> Option<&Unavailable> {
        self.lost.get()
    }

    /// Whether the driver does not come back.
    pub(super) fn is_stuck(&self) -> bool {
        let since = self.calling.load(Ordering::Relaxed);
        since > 0 && self.opened.elapsed().saturating_sub(Duration::from_micros(since)) > DRIVER_TIMEOUT
    }

    /// Runs what calls the driver.
    pub(super) fn calling<T>(&self, call: impl FnOnce() -> T) -> T {
        let now = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.calling.store(now.max(1), Ordering::Relaxed);
        // also where the bindings panic
        let _back = CallGuard(&self.calling);
        call()
    }

    /// It can no longer be used.
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
            super::record_backends(&self.metrics, &self.cpu, false, false);
            tracing::error!(error = text, "the CUDA device is lost; the CPU goes on, and a restart opens it again");
        }
    }

    pub(super) fn is_trial(&self) -> bool {
        self.trial.load(Ordering::Relaxed)
    }

    /// Runs what only tries the device out.
    pub(super) fn run_trial<T>(&self, try_out: impl FnOnce() -> T) -> T {
        self.trial.store(true, Ordering::Relaxed);
        let done = try_out();
        self.trial.store(false, Ordering::Relaxed);
        done
    }
}

/// The call is over when this is dropped.
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
        let began =
            Instant::now().checked_sub(DRIVER_TIMEOUT + Duration::from_secs(1)).expect("the machine is up for longer");
        let health = Health { opened: began, ..Health::new(&metrics) };
        assert!(!health.is_lost(), "no call is under way");
        health.calling(|| assert!(!health.is_stuck(), "it has only just begun"));
        // one that began when the device was opened
        health.calling.store(1, Ordering::Relaxed);
        assert!(health.is_stuck() && health.is_lost());
        assert_eq!(health.loss(), Some(&Unavailable::Hangs));
        health.lose(Unavailable::NoDevice);
        assert_eq!(metrics.slices.device_errors.with_label_values(&["none"]).get(), 1, "it is lost once");
        health.calling(|| ());
        assert!(!health.is_stuck() && health.is_lost(), "though it came back");
    }
}
