//! What processes and cores have used, read from /proc.

use std::fs;
use std::time::{Duration, Instant};

use crate::process::HARNESS_CORE;

/// A clock tick of /proc/stat.
const TICK: Duration = Duration::from_millis(10);

/// Readings of one moment.
pub struct Usage {
    at: Instant,
    proxy: Duration,
    harness: Duration,
    core_busy: Duration,
    core_all: Duration,
    all_busy: Duration,
}

/// What was used between two moments.
#[derive(Debug, Clone, Copy)]
pub struct Used {
    /// CPU time of the proxy.
    pub proxy: Duration,
    /// The part of the harness's core that was busy, whoever used it.
    pub core_busy: f64,
    /// Cores' worth of work that was not this benchmark's.
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

/// Nanosecond counters of all threads, because the ticks of `stat` are too coarse for a second's work.
fn cpu_time(process: u32) -> Duration {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return Duration::ZERO };
    let spent = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    };
    tasks.flatten().filter_map(spent).sum()
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

    /// Makes the peak of `process` what it holds now.
    pub fn reset_peak(process: u32) {
        // where that is not allowed the peak since its start stays, which is a little more
        let _ = fs::write(format!("/proc/{process}/clear_refs"), "5");
    }
}
