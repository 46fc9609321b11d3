//! Metrics of the ledger that several tokentaps share.

use prometheus::{HistogramVec, IntCounter, IntGauge};

use super::declare::Declare;

/// Handles of the metrics.
#[derive(Debug)]
pub struct LedgerMetrics {
    /// Appends by `outcome`, seconds.
    pub append_seconds: HistogramVec,
    /// 1 while the ledger cannot be used.
    pub down: IntGauge,
    /// Turns that were confirmed in time.
    pub confirmed: IntCounter,
    /// Turns that were not confirmed in time.
    pub detached: IntCounter,
    /// Detached turns that were appended later.
    pub joined: IntCounter,
    /// Detached turns that are in the local log only.
    pub spilled: IntCounter,
    /// Detached turns that were lost.
    pub left_out: IntCounter,
    /// Bytes of the sessions with detached changes.
    pub detached_bytes: IntGauge,
    /// Appends that were repeated after another process had appended.
    pub behind: IntCounter,
    /// Entries that the ledger had lost and that were appended again.
    pub healed: IntCounter,
    /// Entries that the ledger had lost and that could not be appended again.
    pub unhealed: IntCounter,
    /// Operations that failed.
    pub failures: IntCounter,
    /// Appends that were sent together.
    pub grouped: IntCounter,
    /// Bytes that were sent.
    pub bytes: IntCounter,
}

impl LedgerMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        let buckets = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1, 0.5, 2.0];
        Self {
            append_seconds: d.histograms(
                "ledger_append_seconds",
                "Time of an append to the shared ledger, replicas included.",
                &["outcome"],
                &buckets,
            ),
            down: d.gauge("ledger_down", "1 while the shared ledger cannot be used."),
            confirmed: d.counter("ledger_turns_confirmed_total", "Turns that the shared ledger confirmed in time."),
            detached: d.counter("ledger_turns_detached_total", "Turns that the shared ledger did not confirm in time."),
            joined: d.counter("ledger_turns_joined_total", "Turns that were appended after they had been detached."),
            spilled: d.counter(
                "ledger_turns_spilled_total",
                "Detached turns that are in the local log only, because the memory was full of detached turns.",
            ),
            left_out: d.counter(
                "ledger_turns_left_out_total",
                "Detached turns that were lost: the memory was full of them and there was no local log, or the log is damaged.",
            ),
            detached_bytes: d
                .gauge("ledger_detached_bytes", "Bytes of the sessions with changes that the shared ledger lacks."),
            behind: d.counter("ledger_behind_total", "Appends repeated because another process had appended."),
            healed: d.counter(
                "ledger_healed_total",
                "Entries that the shared ledger had lost and that were appended again.",
            ),
            unhealed: d.counter(
                "ledger_unhealed_total",
                "Frozen versions and rewards that the shared ledger had lost and that could not be appended again.",
            ),
            failures: d.counter("ledger_failures_total", "Operations of the shared ledger that failed."),
            grouped: d.counter("ledger_appends_sent_total", "Appends sent to the shared ledger."),
            bytes: d.counter("ledger_sent_bytes_total", "Bytes of appends sent to the shared ledger."),
        }
    }
}
