//! Metrics of the archive of finished paths.

use prometheus::{Gauge, IntCounter, IntCounterVec};

use super::declare::Declare;

/// Handles of the metrics.
#[derive(Debug)]
pub struct ArchiveMetrics {
    /// Rows in the archive that this process wrote.
    pub rows: IntCounter,
    /// Bytes of their data files and blobs.
    pub bytes: IntCounter,
    /// Failed operations, by `step`: open, read, encode, data, manifest. Each is repeated.
    pub failures: IntCounterVec,
    /// Paths that were gone before they could be archived, by `reason`: evicted, deleted, unlisted.
    pub missed: IntCounterVec,
    /// Age of the oldest finished path that is not archived, in seconds.
    pub oldest: Gauge,
}

impl ArchiveMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        let failures =
            d.counters("archive_failures_total", "Failed operations of the archive; each is repeated.", &["step"]);
        let missed = d.counters(
            "archive_missed_paths_total",
            "Finished paths that were gone before they could be archived; an unknown number of them counts as 1.",
            &["reason"],
        );
        // alerts see an increase only in a series that began at 0
        for step in ["open", "read", "encode", "data", "manifest"] {
            failures.with_label_values(&[step]);
        }
        for reason in ["evicted", "deleted", "unlisted", "unreadable"] {
            missed.with_label_values(&[reason]);
        }
        Self {
            rows: d.counter("archive_rows_total", "Rows that were archived."),
            bytes: d.counter("archive_bytes_total", "Bytes of data files and blobs that were archived."),
            failures,
            missed,
            oldest: d.seconds(
                "archive_oldest_seconds",
                "Age of the oldest finished path that is not archived; 0 if all are. Since the start, until the archive was read.",
            ),
        }
    }
}
