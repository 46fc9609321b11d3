// SPDX-License-Identifier: Apache-2.0
//! The progress of restoring a store from its log.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;

/// The bytes of the log that were read, and all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreProgress {
    /// Bytes read.
    pub read: u64,
    /// Bytes of all files.
    pub total: u64,
}

/// The state of a restoration. It counts as ended until it begins.
#[derive(Debug, Default)]
pub struct Restoration {
    running: watch::Sender<bool>,
    cancelled: AtomicBool,
    read: AtomicU64,
    total: AtomicU64,
}

impl Restoration {
    /// Announces a restoration from a log of this many bytes. Nothing may be recorded until it has ended.
    pub fn begin(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.running.send_replace(true);
    }

    pub(in crate::session) fn advance(&self, read: u64) {
        self.read.store(read, Ordering::Relaxed);
    }

    /// Ends it. A reader that observes the end sees all restored sessions.
    pub(in crate::session) fn end(&self) {
        self.running.send_replace(false);
    }

    /// Watches whether it runs.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.running.subscribe()
    }

    /// Cancels it. The log stays unchanged.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(in crate::session) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The progress; `None` if it does not run.
    #[must_use]
    pub fn progress(&self) -> Option<RestoreProgress> {
        let progress =
            || RestoreProgress { read: self.read.load(Ordering::Relaxed), total: self.total.load(Ordering::Relaxed) };
        self.running.borrow().then(progress)
    }
}
