// SPDX-License-Identifier: Apache-2.0
//! The finished paths, in the order in which they were published.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Backend, Sessions};
use crate::long_work::offload;
use crate::session::ledger::{Ack, LedgerError, PARTITIONS, StreamId};
use crate::session::sharing::{Consumer, FleetCursor, LoadedPath};
use crate::session::store::Store;
use crate::session::{Classes, ExcludedLeaf, Path, ProcessId, Uid};

/// Paths that are copied per lock of the order.
const LISTED: usize = 512;

/// The default number of paths of a list. Those of a ledger are fewer, because their sessions are loaded first.
const PATHS: usize = 10_000;
const SHARED_PATHS: usize = 1000;

/// The most paths of a list from a ledger.
const MOST_SHARED_PATHS: usize = 10_000;

/// A position in the finished paths. Its text names the store or the fleet that it belongs to, because another one has other paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedCursor(FinishedPosition);

#[derive(Debug, Clone, PartialEq, Eq)]
enum FinishedPosition {
    /// The process that has the store, and the number of the last path.
    Store(ProcessId, u64),
    Fleet(FleetCursor),
}

/// Some finished paths.
#[derive(Debug)]
pub struct FinishedList {
    /// The paths after the requested position.
    pub items: Vec<FinishedItem>,
    /// The position after all of them.
    pub end: FinishedCursor,
    /// Resolves when the positions of the items keep their meaning after a crash.
    pub written: Ack,
}

/// An item of a list.
#[derive(Debug)]
pub enum FinishedItem {
    /// Paths that are no longer listed.
    Missed {
        /// Their number, if it is known.
        count: Option<u64>,
        /// The position after them.
        cursor: FinishedCursor,
    },
    /// A path.
    Path(ListedPath),
}

/// A path of a list.
#[derive(Debug)]
pub struct ListedPath {
    /// The name of its session.
    pub session: Arc<str>,
    /// The position after it.
    pub cursor: FinishedCursor,
    lookup: PathLookup,
}

/// Where a listed path is.
#[derive(Debug)]
enum PathLookup {
    /// The path with this number of this store.
    Store(Arc<Store>, u64),
    Fleet(Result<LoadedPath, &'static str>),
}

/// Why a listed path is not returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPath {
    /// It trains tokens of other classes only.
    Excluded(ExcludedLeaf),
    /// Its session is not there: `deleted`, `evicted` or `unreadable`.
    Gone(&'static str),
}

/// Why finished paths cannot be listed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FinishedError {
    /// The text is not a cursor.
    #[error("since: must be the cursor of a line, not {0:?}")]
    Malformed(String),
    /// The cursor belongs to another store.
    #[error(
        "this cursor belongs to another store or to data lost in a crash: tokentap was restarted. Begin again without since"
    )]
    OtherStore,
    /// The cursor belongs to another fleet.
    #[error("this cursor belongs to another fleet, or the shared ledger has lost its data. Begin again without since")]
    OtherFleet,
    /// Only the paths of a ledger are divided among consumers.
    #[error("partitions: sessions are not shared, see --ledger")]
    NoPartitions,
    /// The ledger fails.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Which finished paths are listed, and how many.
#[derive(Debug, Clone, Copy, Default)]
pub struct FinishedLimits {
    /// The part of one of several consumers.
    pub consumer: Option<Consumer>,
    /// The most paths.
    pub paths: Option<usize>,
}

/// The partitions of the finished paths. Each is read by its own positions.
#[derive(Debug, Clone)]
pub struct FinishedPartitions {
    /// The position before all paths.
    pub start: FinishedCursor,
    /// The number of partitions.
    pub count: u16,
    /// The last position now, if positions after it may have been lost; a crash of the machine loses the end of a log.
    pub recovered: Option<FinishedCursor>,
}

impl FinishedPartitions {
    /// Paths of one partition only; `None`: there is only one partition.
    #[must_use]
    pub fn consumer(&self, partition: u16) -> Option<Consumer> {
        (self.count > 1).then_some(Consumer { index: partition, count: self.count })
    }
}

impl fmt::Display for FinishedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            FinishedPosition::Store(store, number) => write!(f, "{store}-{number:x}"),
            FinishedPosition::Fleet(cursor) => cursor.fmt(f),
        }
    }
}

impl FinishedCursor {
    /// The id of its store, or of its fleet.
    #[must_use]
    pub fn store_id(&self) -> String {
        match &self.0 {
            FinishedPosition::Store(store, _) => store.to_string(),
            FinishedPosition::Fleet(cursor) => cursor.fleet.to_string(),
        }
    }

    /// The position in a partition, in a text that sorts as positions rise.
    #[must_use]
    pub fn position(&self, partition: u16) -> String {
        match &self.0 {
            FinishedPosition::Store(_, number) => format!("{number:020}"),
            FinishedPosition::Fleet(cursor) => {
                let id = cursor.after.get(&partition).copied().unwrap_or_default();
                format!("{:020}-{:020}", id.ms, id.seq)
            }
        }
    }

    /// The cursor of the same store with this [`FinishedCursor::position`] in a partition.
    #[must_use]
    pub fn at(&self, partition: u16, position: &str) -> Option<Self> {
        Some(Self(match &self.0 {
            FinishedPosition::Store(store, _) => FinishedPosition::Store(*store, position.parse().ok()?),
            FinishedPosition::Fleet(_) if partition >= PARTITIONS => return None,
            FinishedPosition::Fleet(cursor) => {
                let mut cursor = cursor.clone();
                cursor.after.insert(partition, position.parse::<StreamId>().ok()?);
                FinishedPosition::Fleet(cursor)
            }
        }))
    }
}

impl ListedPath {
    /// The path. Tokens of other classes than `classes` are not trained.
    ///
    /// # Errors
    /// [`NoPath`].
    pub fn path(&self, classes: Classes) -> Result<Path, NoPath> {
        let (found, gone) = match &self.lookup {
            PathLookup::Store(store, number) => {
                let found = store.session(&self.session).and_then(|session| session.finished(*number, classes));
                (found, store.eviction_of(&self.session).map_or("deleted", |_| "evicted"))
            }
            PathLookup::Fleet(Ok(LoadedPath { session, number })) => (session.finished(*number, classes), "deleted"),
            PathLookup::Fleet(Err(reason)) => (None, *reason),
        };
        found.ok_or(NoPath::Gone(gone))?.map_err(NoPath::Excluded)
    }

    /// Whether its session has entries that this version cannot read.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(self.lookup, PathLookup::Fleet(Err("unreadable")))
    }
}

impl Sessions {
    /// The position of a text; without one, the position before all paths.
    ///
    /// # Errors
    /// When the text is not a cursor of these sessions, or the ledger fails.
    pub async fn cursor(&self, since: Option<&str>) -> Result<FinishedCursor, FinishedError> {
        match self.backend() {
            Backend::Local(store) => {
                let Some(since) = since else { return Ok(store.cursor(0)) };
                let (name, number) = since.rsplit_once('-').unwrap_or_default();
                let number = u64::from_str_radix(number, 16).map_err(|_| FinishedError::Malformed(since.to_owned()))?;
                if name.parse() != Ok(store.process()) || number > store.order().last_finished() {
                    return Err(FinishedError::OtherStore);
                }
                Ok(store.cursor(number))
            }
            Backend::Shared(sharing) => {
                let start = sharing.stream_start().await?;
                let cursor = match since {
                    None => start,
                    Some(since) => {
                        let cursor: FleetCursor =
                            since.parse().map_err(|_| FinishedError::Malformed(since.to_owned()))?;
                        if cursor.fleet != start.fleet {
                            return Err(FinishedError::OtherFleet);
                        }
                        cursor
                    }
                };
                Ok(FinishedCursor(FinishedPosition::Fleet(cursor)))
            }
        }
    }

    /// The finished paths after a position. A list with fewer than the most paths need not be the end; an empty one is.
    ///
    /// # Errors
    /// [`FinishedError`].
    pub async fn finished(
        &self,
        after: &FinishedCursor,
        limits: FinishedLimits,
    ) -> Result<FinishedList, FinishedError> {
        match (self.backend(), &after.0) {
            (Backend::Local(_), _) if limits.consumer.is_some() => Err(FinishedError::NoPartitions),
            (Backend::Local(store), FinishedPosition::Store(_, after)) => {
                let (store, after, limit) = (Arc::clone(store), *after, limits.paths.unwrap_or(PATHS).max(1));
                Ok(offload(move || store.list_finished(after, limit)).await)
            }
            (Backend::Shared(sharing), FinishedPosition::Fleet(after)) => {
                let limit = limits.paths.unwrap_or(SHARED_PATHS).clamp(1, MOST_SHARED_PATHS);
                let page = sharing.finished_after(after, limits.consumer.unwrap_or_default(), limit).await?;
                // the answer may be that of a ledger that has lost all data
                if sharing.fleet().await? != after.fleet {
                    return Err(FinishedError::OtherFleet);
                }
                let cursor = |cursor| FinishedCursor(FinishedPosition::Fleet(cursor));
                let missed = page.trimmed.map(|end| FinishedItem::Missed { count: None, cursor: cursor(end) });
                let paths = page.paths.into_iter().map(|path| {
                    let (session, lookup) = (path.session, PathLookup::Fleet(path.loaded));
                    FinishedItem::Path(ListedPath { session, cursor: cursor(path.cursor), lookup })
                });
                let items = missed.into_iter().chain(paths).collect();
                Ok(FinishedList { items, end: cursor(page.cursor), written: Ack::done() })
            }
            (Backend::Local(_), FinishedPosition::Fleet(_)) => Err(FinishedError::OtherStore),
            (Backend::Shared(_), FinishedPosition::Store(..)) => Err(FinishedError::OtherFleet),
        }
    }

    /// Whether there is a finished path after a position.
    ///
    /// # Errors
    /// [`FinishedError`].
    pub async fn has_finished(
        &self,
        after: &FinishedCursor,
        consumer: Option<Consumer>,
    ) -> Result<bool, FinishedError> {
        match (self.backend(), &after.0) {
            (Backend::Local(store), FinishedPosition::Store(_, after)) => Ok(store.order().last_finished() > *after),
            (Backend::Shared(sharing), FinishedPosition::Fleet(after)) => {
                Ok(sharing.has_finished(after, consumer.unwrap_or_default()).await?)
            }
            (Backend::Local(_), FinishedPosition::Fleet(_)) => Err(FinishedError::OtherStore),
            (Backend::Shared(_), FinishedPosition::Store(..)) => Err(FinishedError::OtherFleet),
        }
    }

    /// Waits until there may be a finished path after a position: a process knows when it publishes one, and asks a ledger again after
    /// `poll`. May be cancelled.
    pub async fn wait_finished(&self, after: &FinishedCursor, poll: Duration) {
        match (self.backend(), &after.0) {
            (Backend::Local(store), FinishedPosition::Store(_, after)) => {
                let mut finished = store.feed.watch_finished();
                // the sender is a part of the store
                let _ = finished.wait_for(|last| last > after).await;
            }
            _ => tokio::time::sleep(poll).await,
        }
    }

    /// The partitions of the finished paths. Call it when the sessions have been restored.
    ///
    /// # Errors
    /// When the ledger fails.
    pub async fn finished_partitions(&self) -> Result<FinishedPartitions, LedgerError> {
        Ok(match self.backend() {
            Backend::Local(store) => FinishedPartitions {
                start: store.cursor(0),
                count: 1,
                recovered: Some(store.cursor(store.order().last_finished())),
            },
            Backend::Shared(sharing) => FinishedPartitions {
                start: FinishedCursor(FinishedPosition::Fleet(sharing.stream_start().await?)),
                count: PARTITIONS,
                // ids follow the clock of the ledger; see the decisions about one that is behind after a failover
                recovered: None,
            },
        })
    }

    /// Whether `owner` may read a partition for the archive: no other process has claimed it, or the lease of that claim is over. Processes
    /// divide the work by it.
    ///
    /// # Errors
    /// When the ledger fails.
    pub async fn claim(&self, partition: u16, owner: Uid, lease: Duration) -> Result<bool, LedgerError> {
        match self.backend() {
            Backend::Local(_) => Ok(true),
            Backend::Shared(sharing) => sharing.claim(partition, owner, lease).await,
        }
    }

    /// Waits until the ledger is known to have lost the data that a position belongs to. Checks it each `poll`; a local store loses none.
    pub async fn lost(&self, position: &FinishedCursor, poll: Duration) {
        let (Backend::Shared(sharing), FinishedPosition::Fleet(position)) = (self.backend(), &position.0) else {
            return std::future::pending().await;
        };
        while sharing.last_fleet().is_none_or(|fleet| fleet == position.fleet) {
            tokio::time::sleep(poll).await;
        }
    }
}

impl Store {
    fn cursor(&self, number: u64) -> FinishedCursor {
        FinishedCursor(FinishedPosition::Store(self.process(), number))
    }

    fn list_finished(self: &Arc<Self>, mut after: u64, limit: usize) -> FinishedList {
        // the log may be opened meanwhile
        let process = self.process();
        let cursor = |number| FinishedCursor(FinishedPosition::Store(process, number));
        let mut items = Vec::new();
        for (number, session) in self.finished_after(after, limit) {
            if number > after + 1 {
                let count = Some(number - after - 1);
                items.push(FinishedItem::Missed { count, cursor: cursor(number - 1) });
            }
            after = number;
            let lookup = PathLookup::Store(Arc::clone(self), number);
            items.push(FinishedItem::Path(ListedPath { session, cursor: cursor(number), lookup }));
        }
        FinishedList { items, end: cursor(after), written: self.log.written() }
    }

    /// Finished paths after the number `after`: their numbers and sessions, in order. The order is locked briefly for each part.
    pub(in crate::session) fn finished_after(&self, mut after: u64, limit: usize) -> Vec<(u64, Arc<str>)> {
        let mut found = Vec::new();
        while found.len() < limit {
            let some = self.order().finished_after(after, LISTED.min(limit - found.len()));
            let Some((last, _)) = some.last() else { break };
            after = *last;
            found.extend(some);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::{BOUNDLESS, store};

    #[tokio::test]
    async fn gap_between_path_numbers_is_reported_once() {
        let sessions = store(BOUNDLESS);
        [3, 7, 8].into_iter().for_each(|number| sessions.memory().order().restore_finished(number, "s".into()));
        let after = sessions.memory().cursor(2);
        let list = sessions.finished(&after, FinishedLimits::default()).await.unwrap();
        let item = |item: &FinishedItem| match item {
            FinishedItem::Missed { count, cursor } => (*count, cursor.clone()),
            FinishedItem::Path(path) => (None, path.cursor.clone()),
        };
        let cursor = |number| sessions.memory().cursor(number);
        let items: Vec<_> = list.items.iter().map(item).collect();
        assert_eq!(items, [(None, cursor(3)), (Some(3), cursor(6)), (None, cursor(7)), (None, cursor(8))]);
        assert_eq!(list.end, cursor(8));
        let rest = sessions.finished(&cursor(6), FinishedLimits::default()).await.unwrap();
        assert_eq!(rest.items.iter().map(item).collect::<Vec<_>>(), items[2..]);
    }

    #[test]
    fn positions_sort_as_texts_and_are_read_back() {
        let process = "000000000000f00d".parse().unwrap();
        let store = FinishedCursor(FinishedPosition::Store(process, 0));
        let fleet = FinishedCursor(FinishedPosition::Fleet(FleetCursor::start("f00d".into())));
        let numbers = [0, 9, 10, u64::MAX].map(|number| FinishedCursor(FinishedPosition::Store(process, number)));
        let id = |ms, seq| {
            let after = [(7, StreamId { ms, seq })].into();
            FinishedCursor(FinishedPosition::Fleet(FleetCursor { fleet: "f00d".into(), after }))
        };
        let ids = [id(0, 0), id(9, u64::MAX), id(10, 0), id(10, 9), id(10, 10), id(u64::MAX, u64::MAX)];
        for (start, cursors) in [(&store, &numbers[..]), (&fleet, &ids)] {
            let texts: Vec<String> = cursors.iter().map(|cursor| cursor.position(7)).collect();
            assert!(texts.is_sorted_by(|a, b| a < b), "{texts:?}");
            let read: Vec<FinishedCursor> = texts.iter().filter_map(|text| start.at(7, text)).collect();
            assert_eq!(read, cursors);
            assert_eq!(start.at(7, "x"), None);
        }
    }
}
