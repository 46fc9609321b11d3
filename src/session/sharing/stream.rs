//! The finished paths of all processes, from the streams of the ledger.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Sharing;
use crate::session::Uid;
use crate::session::ledger::{FinishedEntry, LedgerError, PARTITIONS, StreamId};
use crate::session::state::Session;
use crate::session::store::Store;

/// A position in the streams of all partitions. Its text is the id of the fleet, then `~partition.ms.seq` for each partition of which
/// something was read, in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetCursor {
    /// The id of the fleet.
    pub fleet: Arc<str>,
    after: BTreeMap<u16, StreamId>,
}

/// A text that is not a cursor of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of a fleet")]
pub struct InvalidCursor;

/// The partitions that one of several consumers reads: those whose number has the remainder `index` modulo `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consumer {
    /// The index of the consumer, from 0.
    pub index: u16,
    /// The number of consumers, at least 1.
    pub count: u16,
}

/// The session of a finished path, and the number of the path in it, or why it is not there: `deleted`, also if it has expired, or
/// `unreadable`.
type Found = Result<(Arc<Session>, u64), &'static str>;

/// A finished path.
#[derive(Debug)]
pub struct StreamedPath {
    /// The name of its session.
    pub session: Arc<str>,
    /// Where it is.
    pub found: Found,
    /// The position after it.
    pub cursor: FleetCursor,
}

/// Some finished paths.
#[derive(Debug)]
pub struct StreamedPage {
    /// The paths. Those of one partition are in order.
    pub paths: Vec<StreamedPath>,
    /// Whether paths after the requested position were removed from the streams, because they were too old.
    pub trimmed: bool,
    /// The position after all of them.
    pub cursor: FleetCursor,
}

/// A finished path in the stream of its partition.
#[derive(Debug)]
pub(crate) struct PartitionPath {
    /// Its id in the stream.
    pub(crate) id: StreamId,
    /// The name of its session.
    pub(crate) session: Arc<str>,
    /// Where it is.
    pub(crate) found: Found,
}

/// Some finished paths of a partition.
#[derive(Debug)]
pub(crate) struct PartitionPage {
    /// The paths, in order.
    pub(crate) paths: Vec<PartitionPath>,
    /// Whether paths after the requested position were removed from the stream, because they were too old.
    pub(crate) trimmed: bool,
}

/// Paths of one partition that are read at once. A page with fewer than its limit is not the end.
const PAGE: usize = 256;

impl Default for Consumer {
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}

impl FromStr for Consumer {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match parsed {
            Some((index, count)) if index < count && count <= PARTITIONS => Ok(Self { index, count }),
            _ => Err("INDEX/COUNT with an index from 0 and at most 64 consumers, such as 0/4"),
        }
    }
}

impl FleetCursor {
    /// The position before all paths.
    #[must_use]
    pub fn start(fleet: Arc<str>) -> Self {
        Self { fleet, after: BTreeMap::new() }
    }
}

impl fmt::Display for FleetCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fleet)?;
        self.after.iter().try_for_each(|(partition, id)| write!(f, "~{partition:x}.{:x}.{:x}", id.ms, id.seq))
    }
}

impl FromStr for FleetCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let mut parts = text.split('~');
        let fleet =
            parts.next().filter(|fleet| fleet.len() == 16 && fleet.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let mut cursor = Self::start(fleet.ok_or(InvalidCursor)?.into());
        for part in parts {
            let mut numbers = part.split('.').map(|digits| u64::from_str_radix(digits, 16).map_err(|_| InvalidCursor));
            let mut next = || numbers.next().unwrap_or(Err(InvalidCursor));
            let (partition, ms, seq) = (next()?, next()?, next()?);
            let partition = u16::try_from(partition).ok().filter(|partition| *partition < PARTITIONS);
            cursor.after.insert(partition.ok_or(InvalidCursor)?, StreamId { ms, seq });
        }
        Ok(cursor)
    }
}

impl Sharing {
    /// The position before all paths.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(crate) async fn stream_start(&self) -> Result<FleetCursor, LedgerError> {
        Ok(FleetCursor::start(self.fleet().await?))
    }

    /// At most `limit` finished paths after a position, whose fleet is that of the ledger.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(crate) async fn finished_after(
        &self,
        store: &Arc<Store>,
        after: &FleetCursor,
        consumer: Consumer,
        limit: usize,
    ) -> Result<StreamedPage, LedgerError> {
        let (mut found, mut trimmed): (Vec<FinishedEntry>, bool) = (Vec::new(), false);
        for partition in (consumer.index..PARTITIONS).step_by(usize::from(consumer.count)) {
            let from = after.after.get(&partition).copied().unwrap_or_default();
            let page =
                self.within_timeout(Some(partition), self.ledger.finished(partition, from, limit.min(PAGE))).await?;
            trimmed |= page.trimmed;
            found.extend(page.entries);
        }
        found.sort_by(|a, b| (a.id, &a.session).cmp(&(b.id, &b.session)));
        found.truncate(limit);
        let (mut cursor, mut paths, mut read) = (after.clone(), Vec::with_capacity(found.len()), HashSet::new());
        for entry in found {
            cursor.after.insert(crate::session::ledger::partition_of(&entry.session), entry.id);
            let found = self.find(store, &entry, &mut read).await?;
            paths.push(StreamedPath { session: entry.session, found, cursor: cursor.clone() });
        }
        Ok(StreamedPage { paths, trimmed, cursor })
    }

    /// The id of the fleet.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(crate) async fn fleet(&self) -> Result<Arc<str>, LedgerError> {
        self.within_timeout(None, self.check_fleet()).await
    }

    /// The id of the fleet when it was last read.
    pub(crate) fn last_fleet(&self) -> Option<Arc<str>> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether `owner` archives a partition: no other process has claimed it, or the lease of that claim is over.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(crate) async fn claim(&self, partition: u16, owner: Uid, lease: Duration) -> Result<bool, LedgerError> {
        self.within_timeout(Some(partition), self.ledger.claim(partition, owner, lease)).await
    }

    /// Whether a partition has a finished path after an id.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(crate) async fn has_finished(&self, partition: u16, after: StreamId) -> Result<bool, LedgerError> {
        let page = self.within_timeout(Some(partition), self.ledger.finished(partition, after, 1)).await?;
        Ok(!page.entries.is_empty())
    }

    /// At most `limit` finished paths of a partition after an id.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(crate) async fn finished_in(
        &self,
        store: &Arc<Store>,
        partition: u16,
        after: StreamId,
        limit: usize,
    ) -> Result<PartitionPage, LedgerError> {
        let page = self.within_timeout(Some(partition), self.ledger.finished(partition, after, limit)).await?;
        let (mut paths, mut read) = (Vec::with_capacity(page.entries.len()), HashSet::new());
        for entry in page.entries {
            let found = self.find(store, &entry, &mut read).await?;
            paths.push(PartitionPath { id: entry.id, session: entry.session, found });
        }
        Ok(PartitionPage { paths, trimmed: page.trimmed })
    }

    /// The session of a finished path and the number of the path in it, or why it is not there. `read` has the sessions that were read for
    /// this page: what other processes have appended, such as rewards, is read once.
    async fn find(
        &self,
        store: &Arc<Store>,
        entry: &FinishedEntry,
        read: &mut HashSet<Arc<str>>,
    ) -> Result<Found, LedgerError> {
        // a session with many paths is searched for each of them
        tokio::task::consume_budget().await;
        let found = self.published(store, entry).filter(|_| read.contains(&entry.session));
        if let Some(found) = found {
            return Ok(Ok(found));
        }
        match self.refresh(store, &entry.session).await {
            Ok(()) => {
                read.insert(Arc::clone(&entry.session));
                Ok(self.published(store, entry).ok_or("deleted"))
            }
            // it must not hide the paths after it
            Err(LedgerError::Unreadable(_)) => Ok(Err("unreadable")),
            Err(error) => Err(error),
        }
    }

    /// The session in memory and the number of a path, if it is known here.
    fn published(&self, store: &Store, entry: &FinishedEntry) -> Option<(Arc<Session>, u64)> {
        let session = store.session(&entry.session)?;
        let number = session.number_of_path(entry.leaf)?;
        Some((session, number))
    }
}

impl Session {
    /// The number of the finished path that ends in the turn with this uid. The latest ones are searched first.
    fn number_of_path(&self, leaf: Uid) -> Option<u64> {
        let state = self.state();
        let turn = |turn: u32| state.forest.turns().get(turn as usize).and_then(|turn| turn.about.uid);
        state.finished.iter().rev().find(|path| turn(path.leaf) == Some(leaf)).map(|path| path.number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::tests::{BOUNDLESS, draft, store};
    use crate::session::{Call, Classes, SharingLimits};

    proptest! {
        #[test]
        fn cursor_survives_its_text(after in prop::collection::btree_map(0..PARTITIONS, any::<(u64, u64)>(), 0..9)) {
            let after = after.into_iter().map(|(partition, (ms, seq))| (partition, StreamId { ms, seq })).collect();
            let cursor = FleetCursor { fleet: "0123456789abcdef".into(), after };
            prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }

        #[test]
        fn parsing_arbitrary_text_does_not_panic(text in "\\PC{0,60}") {
            let _ = text.parse::<FleetCursor>();
            let _ = text.parse::<Consumer>();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn path_that_two_processes_finish_around_a_failover_keeps_its_loss_mask() {
        let ledger = Arc::new(MemoryLedger::new());
        let shared = || {
            let shared = store(BOUNDLESS);
            let limits = SharingLimits { timeout: Duration::from_secs(2), idle: Duration::MAX };
            shared.share(Arc::clone(&ledger) as _, limits);
            shared
        };
        let ([first, second, reader], name) = ([shared(), shared(), shared()], Arc::from("s"));
        Call::new(Arc::clone(&first), Arc::clone(&name)).commit(draft(&[1], &[2, 3])).1.await.unwrap();
        second.refresh(["s"]).await.unwrap();
        let before = ledger.state().clone();
        first.sharing().unwrap().freeze(&first, &name).await.unwrap();
        // the replica that lacks it becomes the primary
        *ledger.state() = before;
        ledger.disruptions.send_modify(|count| *count += 1);
        second.sharing().unwrap().freeze(&second, &name).await.unwrap();
        first.refresh(["s"]).await.unwrap();
        for store in [&first, &second, &reader] {
            let sharing = store.sharing().unwrap();
            let start = sharing.stream_start().await.unwrap();
            let page = sharing.finished_after(store, &start, Consumer::default(), 9).await.unwrap();
            let trained = page.paths.into_iter().map(|path| {
                let (session, number) = path.found.unwrap();
                session.finished(number, Classes::default()).unwrap().unwrap().trained_tokens()
            });
            assert_eq!(trained.collect::<Vec<_>>(), [2]);
        }
    }

    #[test]
    fn partitions_are_divided_among_consumers() {
        assert_eq!("1/4".parse(), Ok(Consumer { index: 1, count: 4 }));
        for text in ["", "1", "4/4", "0/0", "0/65", "-1/4", "a/b"] {
            assert!(text.parse::<Consumer>().is_err(), "{text:?}");
        }
    }
}
