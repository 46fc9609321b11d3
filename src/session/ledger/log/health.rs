// SPDX-License-Identifier: Apache-2.0
//! The counters and the health of the log.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::session::ledger::Health;

/// Counts of the log since it was opened.
#[derive(Debug, Default)]
pub(super) struct LogStats {
    /// Records written.
    pub(super) records: AtomicU64,
    /// Records that are not in the log because writing failed, or because their file was removed while it was written.
    pub(super) failed: AtomicU64,
    /// Records that are not in the log because its queue was full.
    pub(super) dropped_queue_full: AtomicU64,
    /// Files removed to keep the log within its size limit.
    pub(super) segments_removed: AtomicU64,
    /// Their bytes.
    pub(super) bytes_removed: AtomicU64,
    /// Bytes of the log on disk now.
    pub(super) bytes_on_disk: AtomicU64,
}

/// The state that the writer and the appending threads share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) stats: LogStats,
    /// Bytes of the records that wait to be encoded.
    pub(super) waiting: AtomicU64,
    /// The number of these records.
    pub(super) waiting_records: AtomicUsize,
    /// Whether the queue was full and has not been empty since. Logged once.
    pub(super) overrun: AtomicBool,
    // locked for one copy, never across an await
    health: Mutex<Health>,
}

impl Shared {
    /// Removes a record of this many bytes from those that wait.
    pub(super) fn remove_waiting(&self, bytes: u64) {
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        self.waiting_records.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    pub(super) fn set_health(&self, health: Health) {
        *self.health.lock() = health;
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
