//! Metrics of rows of logits, and of the device that measures them.

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use super::OVERHEAD_BUCKETS;
use super::declare::{Declare, options};

/// Rows that are measured together: one, those of a slot, or those of a kernel launch.
const ROWS_BUCKETS: [f64; 10] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0];

/// Handles of the metrics. A `backend` is `cpu/…` or `cuda`; a `work` is `rows` or `top_k`.
#[derive(Debug)]
pub struct SliceMetrics {
    /// Rows measured on other threads than those for I/O, by `backend`, `work`.
    pub rows: IntCounterVec,
    /// Rows measured together, by `backend`, `work`.
    pub batch: HistogramVec,
    /// Seconds that rows waited in the queue, by `backend`, `work`.
    pub wait: HistogramVec,
    /// Seconds of the computation, with copies to and from a device, by `backend`, `work`.
    pub compute: HistogramVec,
    /// Rows that the CPU measured instead of the device, by `reason`.
    pub fallbacks: IntCounterVec,
    /// Errors of the CUDA driver, by `code`, the driver's error number.
    pub device_errors: IntCounterVec,
    /// 1 for the backend in use, 0 for one that was in use before, by `work`, `backend`.
    pub backend: IntGaugeVec,
    /// The number of rows from which the device is faster, measured at start, by `work`. Absent if it never is.
    pub crossover: IntGaugeVec,
}

impl SliceMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        let by = ["backend", "work"];
        Self {
            rows: d.counters("slice_rows_total", "Rows measured on other threads than those for I/O.", &by),
            batch: d.histograms("slice_batch_rows", "Rows measured together.", &by, &ROWS_BUCKETS),
            wait: d.histograms("slice_wait_seconds", "Time that rows waited in the queue.", &by, &OVERHEAD_BUCKETS),
            compute: d.histograms(
                "slice_compute_seconds",
                "Time of the computation, with copies to and from a device.",
                &by,
                &OVERHEAD_BUCKETS,
            ),
            fallbacks: d.counters(
                "slice_fallbacks_total",
                "Rows that the CPU measured instead of the device.",
                &["reason"],
            ),
            device_errors: d.counters("cuda_errors_total", "Errors of the CUDA driver.", &["code"]),
            backend: d
                .keep(IntGaugeVec::new(options("entropy_backend", "1 for the backend in use."), &["work", "backend"])),
            crossover: d.keep(IntGaugeVec::new(
                options("cuda_crossover_rows", "Number of rows from which the device is faster, measured at start."),
                &["work"],
            )),
        }
    }
}
