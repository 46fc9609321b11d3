// SPDX-License-Identifier: Apache-2.0
//! Durable storage for the records of sessions.
//!
//! A store appends one [`Record`] for each change of a session, in the order of the changes. The [`log`] of one process, which also has policy
//! epochs, is read once, at the start of the process. A [`Ledger`] is shared by several processes, and each of them reads it whenever it
//! needs a session.

mod ack;
pub mod log;
mod log_record;
#[cfg(test)]
pub(crate) mod memory;
mod record;
mod shared;
pub mod valkey;

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::ProcessId;
pub(in crate::session) use ack::AckOutcome;
pub use ack::{Ack, AppendError};
pub use log_record::{LogRecord, ProcessRecord};
pub use record::{Change, Record, SCHEMA};
pub use shared::{
    Append, Appended, BYTES_PER_SECOND, Deletion, Entry, FinishedEntry, FinishedPage, HeldImages, IMAGE_OVERHEAD,
    ImageKey, LastUse, Ledger, LedgerError, LedgerFuture, ListOrder, PARTITIONS, Position, StreamId, Tail,
    partition_of, sending_time,
};

/// The log of one process. Stores records in the order in which they are appended.
pub trait RecordLog: Debug + Send + Sync {
    /// Appends a record. Never blocks. The [`Ack`] resolves when the record is stored, or with the reason why it is not.
    fn append(&self, record: LogRecord) -> Ack;

    /// Resolves when all records that were appended before are stored or have failed.
    fn written(&self) -> Ack;

    /// The id of the log, which a restart does not change. Cursors are valid for one log only.
    fn id(&self) -> ProcessId;

    /// Calls `each` with all records that are stored, in their order. Blocks.
    ///
    /// # Errors
    /// When the log cannot be read.
    fn read(&self, each: &mut dyn FnMut(LogRecord)) -> std::io::Result<()>;

    /// Whether records are stored.
    fn health(&self) -> Health;

    /// Counts since it was opened.
    fn stats(&self) -> RecordLogStats;

    /// Whether the queue is so long that only calls should append, and background work should wait.
    fn is_behind(&self) -> bool;
}

/// Whether records are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Health {
    /// Records are stored.
    #[default]
    Ok,
    /// Records are not stored. The log tries again about once a second.
    Degraded {
        /// The time of the first failure.
        since: SystemTime,
        /// The error message of the system.
        message: String,
    },
}

/// Counts of a log since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordLogStats {
    /// Records that were stored.
    pub records: u64,
    /// Records that were not stored: the medium failed or was full, or the queue was full.
    pub lost: u64,
    /// Bytes on the medium now.
    pub bytes: u64,
}

/// The log of this process. The ports open before the log, so a store is used without one at first. Until the log is open, and in a
/// process without one, records are dropped.
#[derive(Debug, Clone, Default)]
pub struct SharedLog(Arc<OnceLock<Box<dyn RecordLog>>>);

impl SharedLog {
    /// Appends to `log` from now on.
    ///
    /// # Panics
    /// If it was called before.
    pub(super) fn set(&self, log: impl RecordLog + 'static) {
        self.0.set(Box::new(log)).expect("sessions are restored once");
    }

    /// The log, once it is open.
    #[must_use]
    pub fn get(&self) -> Option<&dyn RecordLog> {
        self.0.get().map(|log| &**log)
    }

    /// Appends a record. Without a log, the ack resolves at once.
    pub(super) fn append(&self, record: impl Into<LogRecord>) -> Ack {
        self.get().map_or_else(Ack::done, |log| log.append(record.into()))
    }

    /// Appends a record without waiting for it.
    pub(super) fn append_unacknowledged(&self, record: impl Into<LogRecord>) {
        drop(self.append(record));
    }

    /// See [`RecordLog::is_behind`].
    pub(super) fn is_behind(&self) -> bool {
        self.get().is_some_and(RecordLog::is_behind)
    }

    /// Resolves when all records that were appended before are stored.
    pub(super) fn written(&self) -> Ack {
        self.get().map_or_else(Ack::done, RecordLog::written)
    }
}
