//! Metrics of whole rows, and of the device that measures them.

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use super::OVERHEAD_BUCKETS;
use super::declare::{Declare, options};

/// Rows measured together: one, a slot, a device's launch.
const ROWS_BUCKETS: [f64; 10] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0];

/// Handles. A `backend` is `cpu/…` or `cuda`; a `work` is `rows` or `top_k`.
#[derive(Debug)]
pub struct SliceMetrics {
    /// Rows measured away from the I/O threads, by `backend`, `work`.
    pub rows: IntCounterVec,
    /// Rows measured at once, by `backend`, `work`.
    pub batch: HistogramVec,
    /// Seconds from handing rows in to the start of their measuring, by `backend`, `work`.
    pub wait: HistogramVec,
    /// Seconds from that start to the numbers, copies to and from a device included, by `backend`, `work`.
    pub compute: HistogramVec,
    /// Rows that a device was to measure and the CPU did, by `reason`.
    pub fallbacks: IntCounterVec,
    /// Errors of the CUDA driver, by `code`, the driver's own number.
    pub device_errors: IntCounterVec,
    /// 1 for the backend in use, 0 for one that was, by `work`, `backend`.
    pub backend: IntGaugeVec,
    /// Rows from which the device was the faster one, as measured at start, by `work`; absent where it never was.
    pub crossover: IntGaugeVec,
}

impl SliceMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        let by = ["backend", "work"];
        Self {
            rows: d.counters("slice_rows_total", "Rows measured away from the I/O threads.", &by),
            batch: d.histograms("slice_batch_rows", "Rows measured at once.", &by, &ROWS_BUCKETS),
            wait: d.histograms(
                "slice_wait_seconds",
                "From handing rows in to their measuring.",
                &by,
                &OVERHEAD_BUCKETS,
            ),
            compute: d.histograms("slice_compute_seconds", "Measuring, with all copies.", &by, &OVERHEAD_BUCKETS),
            fallbacks: d.counters("slice_fallbacks_total", "Rows that the CPU measured for the device.", &["reason"]),
            device_errors: d.counters("cuda_errors_total", "Errors of the CUDA driver.", &["code"]),
            backend: d
                .keep(IntGaugeVec::new(options("entropy_backend", "1 for the backend in use."), &["work", "backend"])),
            crossover: d.keep(IntGaugeVec::new(
                options("cuda_crossover_rows", "Rows from which the device was faster, as measured at start."),
                &["work"],
            )),
        }
    }
}
