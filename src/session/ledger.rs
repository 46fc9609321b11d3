//! Where the records of sessions are kept beyond the memory of this process.
//!
//! A store and the policy epochs write one [`Record`] for each change, in the order of the changes. A [`Ledger`] keeps them: today the
//! local [`log`], which is read once, at the start of the process.

mod ack;
pub mod log;
mod record;

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

pub use ack::{Ack, AppendError};
pub use record::{Record, SessionKey};

/// Keeps records in the order in which they are appended.
pub trait Ledger: Debug + Send + Sync {
    /// Appends a record after all others. Never blocks; the [`Ack`] resolves when the record is kept, or with the reason why it is not.
    fn append(&self, record: Record) -> Ack;

    /// Resolves when all records that were appended before have been kept, or have failed.
    fn written(&self) -> Ack;

    /// The id of the records: cursors into one ledger mean nothing in another. 16 hexadecimal digits that stay the same after a restart.
    fn id(&self) -> &str;

    /// Whether records are kept.
    fn health(&self) -> Health;

    /// What it has done since it was opened.
    fn stats(&self) -> LedgerStats;
}

/// Whether records are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Health {
    /// They are.
    #[default]
    Ok,
    /// They are not; the ledger tries again about once a second.
    Degraded {
        /// Since when.
        since: SystemTime,
        /// The error of the system.
        message: String,
    },
}

/// Counts of a ledger since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerStats {
    /// Records that were kept.
    pub records: u64,
    /// Records that were not kept: the medium failed, its bound was reached, or the queue was full.
    pub lost: u64,
    /// Bytes on the medium now.
    pub bytes: u64,
}

/// The ledger of this process. A store is used before its ledger is open, because the ports open first; until then, and in a process
/// without a ledger, records are dropped.
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

    /// Appends a record; without a ledger there is nothing to wait for.
    pub(super) fn append(&self, record: Record) -> Ack {
        self.get().map_or_else(Ack::done, |ledger| ledger.append(record))
    }

    /// Appends a record without waiting for it.
    pub(super) fn append_unacknowledged(&self, record: Record) {
        drop(self.append(record));
    }

    /// Resolves when all records that were appended before have been kept.
    pub(super) fn written(&self) -> Ack {
        self.get().map_or_else(Ack::done, Ledger::written)
    }
}
