// SPDX-License-Identifier: Apache-2.0
//! The ledger that several processes share.
//!
//! A session is one list of entries. The first entry begins the session: its uid is the session's birth. A process appends to the list
//! only if it has read all of it, so all processes see the entries of a session in one order. The state of a session is the fold of its
//! entries. Sessions are divided into [`PARTITIONS`]; each has a stream of finished paths and an index of the last use of its sessions.

use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::record::SCHEMA;
use crate::images::ImageDigest;
use crate::session::Uid;

/// The number of partitions. It is part of the data layout.
pub const PARTITIONS: u16 = 64;

/// The partition of a session, from 0.
#[must_use]
pub fn partition_of(session: &str) -> u16 {
    u16::try_from(crc32c::crc32c(session.as_bytes()) % u32::from(PARTITIONS)).expect("it is below PARTITIONS")
}

/// An operation of a ledger. It ends within the ledger's own time limit.
pub type LedgerFuture<T> = Pin<Box<dyn Future<Output = Result<T, LedgerError>> + Send>>;

/// Why an operation failed. After a failed append, the entries may be in the ledger or not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// It took longer than the time limit.
    #[error("the ledger did not answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The connection cannot be made or was lost.
    #[error("the ledger cannot be reached: {0}")]
    Unavailable(Arc<str>),
    /// Replicas did not confirm appends in time. The primary has them.
    #[error("the replicas of the ledger did not confirm in time")]
    Unconfirmed,
    /// The id of the fleet cannot be read, so a loss of all data would not be noticed.
    #[error("the id of the fleet cannot be read: {0}")]
    FleetUnknown(Arc<str>),
    /// The ledger has lost its data. Processes write deletions to it before they append sessions again.
    #[error("the ledger has lost its data a moment ago")]
    Recovering,
    /// The pictures of finished paths are stored in the ledger before the paths.
    #[error("the pictures of finished paths are not in the ledger yet")]
    AwaitsImages,
    /// The ledger refused it, such as for a lack of memory.
    #[error("the ledger refused the command: {0}")]
    Refused(Arc<str>),
    /// The ledger has another schema than this build, which changes nothing in it.
    #[error(
        "the key tt:meta has the schema {0}, and this build reads and writes the schema {SCHEMA}: export the sessions with the build that \
         wrote them, and give this one another ledger"
    )]
    OtherSchema(Arc<str>),
    /// The ledger holds data that this build cannot read.
    #[error("the ledger holds data that this build cannot read: {0}")]
    Unreadable(Arc<str>),
}

/// One element of a session's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its globally unique id.
    pub uid: Uid,
    /// Its content.
    pub body: Bytes,
}

/// How far a process has read a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The uid of the first entry.
    pub birth: Uid,
    /// The number of entries, at least 1.
    pub length: u64,
    /// The uid of the last entry.
    pub last: Uid,
}

/// The entries of a list after a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// The index of the first entry. It is 0 if the list does not begin with the entries up to the position of the request: another
    /// session has this name, or a failover lost entries.
    pub start: u64,
    /// The number of entries of the whole list.
    pub length: u64,
    /// Entries from `start` on: at least one, unless the list ends there. Later fetches return the others.
    pub entries: Vec<Entry>,
}

/// Entries to append to a list.
#[derive(Debug, Clone)]
pub struct Append {
    /// The session.
    pub session: Arc<str>,
    /// The list must be exactly this long and end with this entry; `None`: it must not exist.
    pub after: Option<Position>,
    /// The entries, at least one.
    pub entries: Vec<Entry>,
    /// The uids of the last turns of paths that the entries finish. They are added to the stream of the partition in the same step.
    pub finished: Vec<Uid>,
    /// Whether the session counts as used now. Otherwise it is removed from the index of use.
    pub in_use: bool,
    /// How long ago the session began. A list is begun only if no session of its name was deleted since.
    pub begun_ago: Duration,
}

/// A session was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// The birth of the session.
    pub birth: Uid,
    /// How long ago it was deleted.
    pub ago: Duration,
}

/// The result of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// The entries were appended.
    Stored {
        /// Whether the configured number of replicas has confirmed them.
        replicated: bool,
    },
    /// The list has other entries. Nothing was appended.
    Behind,
    /// The list does not exist, or another session has this name. Nothing was appended.
    Gone,
}

/// The id of an element of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// The ledger's time in milliseconds since 1970.
    pub ms: u64,
    /// The number within the millisecond.
    pub seq: u64,
}

/// A finished path in the stream of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedEntry {
    /// Its id in the stream.
    pub id: StreamId,
    /// Its session.
    pub session: Arc<str>,
    /// The birth of the session.
    pub birth: Uid,
    /// The uid of its last turn.
    pub leaf: Uid,
}

/// A part of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FinishedPage {
    /// The elements, in order.
    pub entries: Vec<FinishedEntry>,
    /// Whether elements after the requested position were trimmed from the stream.
    pub trimmed: bool,
}

/// The last use of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastUse {
    /// Its name.
    pub session: Arc<str>,
    /// Its last use: milliseconds of the ledger's clock.
    pub used_ms: u64,
}

/// The order of a list of sessions. Sessions of the same millisecond are in the order of the bytes of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListOrder {
    /// The least recently used first, names ascending.
    Oldest,
    /// The most recently used first, names descending.
    Newest,
}

/// A picture as a command of a ledger names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageKey {
    /// Identifies it.
    pub digest: ImageDigest,
    /// Its length in bytes.
    pub size: u64,
}

/// The pictures of a session that a ledger has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldImages {
    /// For each picture of the request, whether the ledger has it.
    pub present: Vec<bool>,
    /// Bytes that further pictures may take, with [`IMAGE_OVERHEAD`] for each.
    pub free: u64,
}

/// Bytes that a picture counts in a ledger beside its own: its keys and its place in the index.
pub const IMAGE_OVERHEAD: u64 = 256;

/// The bytes that the network and the ledger take in a second, at least: 64 Mbit/s.
pub const BYTES_PER_SECOND: f64 = (8 << 20) as f64;

/// The time in which bytes reach the ledger at the latest.
#[must_use]
pub fn sending_time(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND)
}

/// A shared ledger.
pub trait Ledger: fmt::Debug + Send + Sync {
    /// The id of the fleet, 16 hexadecimal digits. A ledger that has lost all data gets another one.
    fn fleet(&self) -> LedgerFuture<Arc<str>>;

    /// The entries after `after`, or all without a position. `None` if the list does not exist.
    fn fetch(&self, session: &Arc<str>, after: Option<Position>) -> LedgerFuture<Option<Tail>>;

    /// Appends entries in one step, if the list is as expected.
    fn append(&self, append: Append) -> LedgerFuture<Appended>;

    /// Whether the configured number of replicas confirms all appends of this process to the partition of the session.
    fn is_replicated(&self, session: &Arc<str>) -> LedgerFuture<bool>;

    /// Deletes a list if the session has this birth, and remembers the deletion of the name in any case. Returns whether it was deleted.
    fn delete(&self, session: &Arc<str>, birth: Uid) -> LedgerFuture<bool>;

    /// The last deletion of a session of this name. It is remembered as long as the ledger keeps unused sessions. An append that would
    /// begin a session that was deleted, or one that began before the deletion, finds it [`Appended::Gone`].
    fn deletion(&self, session: &Arc<str>) -> LedgerFuture<Option<Deletion>>;

    /// Remembers a deletion again, unless a later one of the name is known: the birth, and the milliseconds of the ledger's clock. A
    /// relative time would be later by the duration of the request. No list is deleted.
    fn restore_deletion(&self, session: &Arc<str>, birth: Uid, deleted_ms: u64) -> LedgerFuture<()>;

    /// The milliseconds of the clock of a partition.
    fn now_ms(&self, partition: u16) -> LedgerFuture<u64>;

    /// Finished paths of a partition after `after`, at most `limit`.
    fn finished(&self, partition: u16, after: StreamId, limit: usize) -> LedgerFuture<FinishedPage>;

    /// Marks existing sessions as used now.
    fn renew(&self, sessions: Vec<Arc<str>>) -> LedgerFuture<()>;

    /// Sessions of a partition that were not used for `idle`, the least recently used first, at most `limit`. Returns none if another
    /// process has asked for the partition within the last tenth of `idle`.
    fn idle(&self, partition: u16, idle: Duration, limit: usize) -> LedgerFuture<Vec<LastUse>>;

    /// Removes a session from the index of use, unless it was used in the meantime.
    fn end_use(&self, idle: LastUse) -> LedgerFuture<()>;

    /// Sessions of a partition that have a list, by their last append or renewal, at most `limit`. With `from`, those of this millisecond and
    /// after it in the order.
    fn list(&self, partition: u16, order: ListOrder, from: Option<u64>, limit: usize) -> LedgerFuture<Vec<LastUse>>;

    /// Whether `owner` archives a partition: no other process has claimed it, or the lease of that claim is over. The answer saves work of
    /// other processes. It excludes none of them.
    fn claim(&self, partition: u16, owner: Uid, lease: Duration) -> LedgerFuture<bool>;

    /// Notes that a session uses pictures, and lets those that the ledger has outlive the session's list.
    fn hold_images(&self, session: Uid, images: Vec<ImageKey>) -> LedgerFuture<HeldImages>;

    /// Stores a picture that a session uses, unless the ledger has it. False if the pictures of all sessions would take more than the limit.
    fn put_image(&self, session: Uid, image: ImageKey, bytes: Bytes) -> LedgerFuture<bool>;

    /// The bytes of pictures, `None` for one that the ledger lacks: at least those of the first one. Further calls return the others. The pictures
    /// are in memory together, so callers ask for a few megabytes.
    fn images(&self, images: Vec<ImageKey>) -> LedgerFuture<Vec<Option<Bytes>>>;

    /// Ends the use of pictures by a session, or by all sessions, and removes those that no session uses.
    fn release_images(&self, session: Option<Uid>, images: Vec<ImageKey>) -> LedgerFuture<()>;

    /// Writes without a lasting effect to the primary of a partition, to find out whether it takes writes.
    fn probe(&self, partition: u16) -> LedgerFuture<()>;

    /// The partitions of each primary, as far as it is known now. Each partition is in one of them.
    fn partitions_by_primary(&self) -> Vec<Vec<u16>>;

    /// A number that rises when entries that this process wrote or read may have been lost: at each loss of a connection, and again when
    /// the connection is made again, so that entries can be checked and repaired then.
    fn disruptions(&self) -> watch::Receiver<u64>;
}

impl Position {
    /// The position after these entries, which follow `before`; `None` without entries and position.
    #[must_use]
    pub fn after(before: Option<Self>, entries: &[Entry]) -> Option<Self> {
        let Some(last) = entries.last() else { return before };
        let (birth, length) = before.map_or((entries[0].uid, 0), |before| (before.birth, before.length));
        Some(Self { birth, length: length + entries.len() as u64, last: last.uid })
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// A text that is not two numbers with a hyphen between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id of a stream is two numbers with a hyphen between them")]
pub struct InvalidStreamId;

impl FromStr for StreamId {
    type Err = InvalidStreamId;

    fn from_str(text: &str) -> Result<Self, InvalidStreamId> {
        let (ms, seq) = text.split_once('-').ok_or(InvalidStreamId)?;
        let number = |text: &str| text.parse().map_err(|_| InvalidStreamId);
        Ok(Self { ms: number(ms)?, seq: number(seq)? })
    }
}
