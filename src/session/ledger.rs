//! Durable storage for the records of sessions.
//!
//! A store and the policy epochs append one [`Record`] for each change, in the order of the changes. A [`Ledger`] stores them: currently
//! the local [`log`], which is read once, at the start of the process.

mod ack;
pub mod log;
mod record;

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

pub use ack::{Ack, AppendError};
pub use record::{Record, SessionKey};

/// Stores records in the order in which they are appended.
pub trait Ledger: Debug + Send + Sync {
    /// Appends a record. Never blocks. The [`Ack`] resolves when the record is stored, or with the reason why it is not.
    fn append(&self, record: Record) -> Ack;

    /// Resolves when all records that were appended before are stored or have failed.
    fn written(&self) -> Ack;

    /// The id of the ledger: 16 hexadecimal digits that stay the same after a restart. Cursors are valid for one ledger only.
    fn id(&self) -> &str;

    /// Whether records are stored.
    fn health(&self) -> Health;

    /// Counts since it was opened.
    fn stats(&self) -> LedgerStats;

    /// Whether so many records wait to be stored that only calls should append more.
    fn is_behind(&self) -> bool;
}

/// Whether records are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Health {
    /// Records are stored.
    #[default]
    Ok,
    /// Records are not stored. The ledger tries again about once a second.
    Degraded {
        /// The time of the first failure.
        since: SystemTime,
        /// The error message of the system.
        message: String,
    },
}

/// Counts of a ledger since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerStats {
    /// Records that were stored.
    pub records: u64,
    /// Records that were not stored: the medium failed or was full, or the queue was full.
    pub lost: u64,
    /// Bytes on the medium now.
    pub bytes: u64,
}

/// The ledger of this process. The ports open before the ledger, so a store is used without one at first. Until the ledger is open, and
/// in a process without one, records are dropped.
#[derive(Debug, Clone, Default)]
pub struct SharedLedger(Arc<OnceLock<Box<dyn Ledger>>>);

impl SharedLedger {
    /// Appends to `ledger` from now on.
    ///
    /// # Panics
    /// If it was called before.
    pub(super) fn set(&self, ledger: impl Ledger + 'static) {
        self.0.set(Box::new(ledger)).expect("sessions are restored once");
    }

    /// The ledger, once it is open.
    #[must_use]
    pub fn get(&self) -> Option<&dyn Ledger> {
        self.0.get().map(|ledger| &**ledger)
    }

    /// Appends a record. Without a ledger, the ack resolves at once.
    pub(super) fn append(&self, record: Record) -> Ack {
        self.get().map_or_else(Ack::done, |ledger| ledger.append(record))
    }

    /// Appends a record without waiting for it.
    pub(super) fn append_unacknowledged(&self, record: Record) {
        drop(self.append(record));
    }

    /// Whether so many records wait to be stored that only calls should append more.
    pub(super) fn is_behind(&self) -> bool {
        self.get().is_some_and(Ledger::is_behind)
    }

    /// Resolves when all records that were appended before are stored.
    pub(super) fn written(&self) -> Ack {
        self.get().map_or_else(Ack::done, Ledger::written)
    }
}
