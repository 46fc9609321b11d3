// SPDX-License-Identifier: Apache-2.0
//! CPU and memory used by processes and cores.
#![expect(unsafe_code, reason = "the clock of another process is read with a call of libc")]

use std::fs;
use std::time::{Duration, Instant};

use crate::process::HARNESS_CORE;

/// A clock tick of /proc/stat.
const TICK: Duration = Duration::from_millis(10);

/// Readings at one time.
pub struct Usage {
    at: Instant,
    proxy: Duration,
    harness: Duration,
    core_busy: Duration,
    core_all: Duration,
    all_busy: Duration,
}

/// The usage between two readings.
#[derive(Debug, Clone, Copy)]
pub struct Used {
    /// CPU time of the proxy.
    pub proxy: Duration,
    /// The busy share of the harness's core, for all processes.
    pub core_busy: f64,
    /// Work of other processes, in cores.
    pub others: f64,
}

impl Usage {
    pub fn now(proxy: Option<u32>, harness: [u32; 2]) -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap();
        let (core_busy, core_idle) = core(&stat, &format!("cpu{HARNESS_CORE} "));
        Self {
            at: Instant::now(),
            proxy: proxy.map_or(Duration::ZERO, cpu_time),
            harness: harness.into_iter().map(cpu_time).sum(),
            core_busy,
            core_all: core_busy + core_idle,
            all_busy: core(&stat, "cpu ").0,
        }
    }

    pub fn since(&self, before: &Self) -> Used {
        let wall = (self.at - before.at).as_secs_f64();
        let ours = (self.proxy + self.harness).saturating_sub(before.proxy + before.harness);
        let all = self.all_busy.saturating_sub(before.all_busy);
        Used {
            proxy: self.proxy.saturating_sub(before.proxy),
            core_busy: self.core_busy.saturating_sub(before.core_busy).as_secs_f64()
                / self.core_all.saturating_sub(before.core_all).max(TICK).as_secs_f64(),
            others: (all.as_secs_f64() - ours.as_secs_f64()).max(0.0) / wall,
        }
    }
}

/// Busy and idle time of a line of /proc/stat.
fn core(stat: &str, name: &str) -> (Duration, Duration) {
    let line = stat.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let ticks: Vec<u32> = line.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    // user nice system idle iowait irq softirq steal, of which guest time is a part of the first two
    let idle = ticks[3] + ticks[4];
    (TICK * (ticks[..8].iter().sum::<u32>() - idle), TICK * idle)
}

/// CPU time of a process by its own clock, which counts threads that have ended and is finer than the ticks of `stat`.
fn cpu_time(process: u32) -> Duration {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both pointers are to values of this frame, which the calls write and do not keep
    let read = unsafe {
        libc::clock_getcpuclockid(process as libc::pid_t, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    if read { Duration::new(time.tv_sec as u64, time.tv_nsec as u32) } else { Duration::ZERO }
}

/// Resident memory, bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pub now: u64,
    pub peak: u64,
}

impl Memory {
    pub fn of(process: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        Self { now: kib("VmRSS:") * 1024, peak: kib("VmHWM:") * 1024 }
    }

    /// Resets the peak of `process` to its current memory.
    pub fn reset_peak(process: u32) {
        // if that is not allowed, the peak since the start remains, which is slightly higher
        let _ = fs::write(format!("/proc/{process}/clear_refs"), "5");
    }
}
