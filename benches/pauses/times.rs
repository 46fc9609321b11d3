// SPDX-License-Identifier: Apache-2.0
//! Measured times and their quantiles.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Measured times.
#[derive(Default, Clone)]
pub struct Times(Vec<Duration>);

impl Times {
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Adds the CPU time of this thread that `work` takes, and returns the result.
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begin = thread_cpu_time();
        let result = work();
        self.push(thread_cpu_time() - begin);
        result
    }

    /// The shorter time of each pair. The system may count the work of others, but rarely at the same operation twice.
    pub fn shortest(self, other: Self) -> Self {
        Self(self.0.into_iter().zip(other.0).map(|(a, b)| a.min(b)).collect())
    }

    /// The quantile in microseconds.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }

    /// The first of `parts` equal parts, and the rest.
    pub fn split(mut self, parts: usize) -> (Self, Self) {
        let rest = self.0.split_off(self.0.len() / parts);
        (self, Self(rest))
    }

    /// The median, in microseconds.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The longest time, in microseconds.
    pub fn longest(&self) -> f64 {
        self.quantile(1.0)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// The CPU time of this thread.
pub fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("CPU time is not negative")
}
