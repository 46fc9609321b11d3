// SPDX-License-Identifier: Apache-2.0
//! The finished paths of all processes, from the streams of the ledger.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::{InvalidCursor, Sharing};
use crate::session::Uid;
use crate::session::ledger::{FinishedEntry, LedgerError, PARTITIONS, StreamId, partition_of};
use crate::session::state::Session;

/// A position in the streams of all partitions. Its text is the id of the fleet, then `~partition.ms.seq` for each partition of which
/// something was read, in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) struct FleetCursor {
    /// The id of the fleet.
    pub fleet: Arc<str>,
    pub after: BTreeMap<u16, StreamId>,
}

impl StreamId {
    /// The greatest id below this one.
    fn before(self) -> Self {
        match self.seq.checked_sub(1) {
            Some(seq) => Self { seq, ..self },
            None => Self { ms: self.ms.saturating_sub(1), seq: u64::MAX },
        }
    }
}

/// The partitions that one of several consumers reads: those whose number has the remainder `index` modulo `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consumer {
    /// The index of the consumer, from 0.
    pub index: u16,
    /// The number of consumers, at least 1.
    pub count: u16,
}

/// A finished path of a session in memory.
#[derive(Debug, Clone)]
pub(in crate::session) struct LoadedPath {
    pub session: Arc<Session>,
    /// The number of the path in the session.
    pub number: u64,
}

/// A finished path.
#[derive(Debug)]
pub(in crate::session) struct StreamedPath {
    /// The name of its session.
    pub session: Arc<str>,
    /// The path, or why it cannot be read: `deleted`, also if it has expired, or `unreadable`.
    pub loaded: Result<LoadedPath, &'static str>,
    /// The position after it.
    pub cursor: FleetCursor,
}

/// Some finished paths.
#[derive(Debug)]
pub(in crate::session) struct StreamedPage {
    /// The paths. Those of one partition are in order.
    pub paths: Vec<StreamedPath>,
    /// The position before all of them, if paths after the requested one were removed from the streams, because they were too old.
    pub trimmed: Option<FleetCursor>,
    /// The position after all of them.
    pub cursor: FleetCursor,
}

/// Paths of each of several partitions that are read at once. A page with fewer than its limit is not the end.
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
    pub(in crate::session) fn start(fleet: Arc<str>) -> Self {
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

impl Consumer {
    fn partitions(self) -> impl Iterator<Item = u16> {
        (self.index..PARTITIONS).step_by(usize::from(self.count.max(1)))
    }
}

impl Sharing {
    /// The position before all paths.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(in crate::session) async fn stream_start(&self) -> Result<FleetCursor, LedgerError> {
        Ok(FleetCursor::start(self.fleet().await?))
    }

    /// At most `limit` finished paths after a position, whose fleet is that of the ledger.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(in crate::session) async fn finished_after(
        &self,
        after: &FleetCursor,
        consumer: Consumer,
        limit: usize,
    ) -> Result<StreamedPage, LedgerError> {
        let at_once = if consumer.count == PARTITIONS { limit } else { limit.min(PAGE) };
        let (mut found, mut trimmed): (Vec<FinishedEntry>, Option<FleetCursor>) = (Vec::new(), None);
        for partition in consumer.partitions() {
            let from = after.after.get(&partition).copied().unwrap_or_default();
            let page = self.within_timeout(Some(partition), self.ledger.finished(partition, from, at_once)).await?;
            if let Some(first) = page.entries.first().filter(|first| page.trimmed && first.id.before() > from) {
                // the position moves, so that they are reported once
                trimmed.get_or_insert_with(|| after.clone()).after.insert(partition, first.id.before());
            }
            found.extend(page.entries);
        }
        found.sort_by(|a, b| (a.id, &a.session).cmp(&(b.id, &b.session)));
        found.truncate(limit);
        let (mut paths, mut read) = (Vec::with_capacity(found.len()), HashSet::new());
        let mut cursor = trimmed.as_ref().unwrap_or(after).clone();
        for entry in found {
            cursor.after.insert(partition_of(&entry.session), entry.id);
            let loaded = self.load_path(&entry, &mut read).await?;
            paths.push(StreamedPath { session: entry.session, loaded, cursor: cursor.clone() });
        }
        Ok(StreamedPage { paths, trimmed, cursor })
    }

    /// Whether there is a finished path after a position.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(in crate::session) async fn has_finished(
        &self,
        after: &FleetCursor,
        consumer: Consumer,
    ) -> Result<bool, LedgerError> {
        for partition in consumer.partitions() {
            let from = after.after.get(&partition).copied().unwrap_or_default();
            let page = self.within_timeout(Some(partition), self.ledger.finished(partition, from, 1)).await?;
            if !page.entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The id of the fleet.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(in crate::session) async fn fleet(&self) -> Result<Arc<str>, LedgerError> {
        self.within_timeout(None, self.check_fleet()).await
    }

    /// The id of the fleet when it was last read.
    pub(in crate::session) fn last_fleet(&self) -> Option<Arc<str>> {
        self.fleet.lock().clone()
    }

    /// Whether `owner` archives a partition: no other process has claimed it, or the lease of that claim is over.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(in crate::session) async fn claim(
        &self,
        partition: u16,
        owner: Uid,
        lease: Duration,
    ) -> Result<bool, LedgerError> {
        self.within_timeout(Some(partition), self.ledger.claim(partition, owner, lease)).await
    }

    /// Loads the session of a finished path. The inner error is the reason why the path cannot be read. `read` has the sessions that were read for
    /// this page: entries that other processes have appended, such as rewards, are read once.
    async fn load_path(
        &self,
        entry: &FinishedEntry,
        read: &mut HashSet<Arc<str>>,
    ) -> Result<Result<LoadedPath, &'static str>, LedgerError> {
        // a session with many paths is searched for each of them
        tokio::task::consume_budget().await;
        if let Some(loaded) = self.published(entry).filter(|_| read.contains(&entry.session)) {
            return Ok(Ok(loaded));
        }
        let refreshed = match self.refresh_entries(&entry.session).await {
            // a path is returned without its pictures rather than never: those after it wait for it
            Ok(Some(line)) => match self.read_images(&line).await {
                Err(_) if self.are_images_given_up() => Ok(()),
                read => read,
            },
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match refreshed {
            Ok(()) => {
                read.insert(Arc::clone(&entry.session));
                Ok(self.published(entry).ok_or("deleted"))
            }
            // it must not hide the paths after it
            Err(LedgerError::Unreadable(_)) => Ok(Err("unreadable")),
            Err(error) => Err(error),
        }
    }

    /// The path, if its session is in memory and has it.
    fn published(&self, entry: &FinishedEntry) -> Option<LoadedPath> {
        let session = self.store.session(&entry.session)?;
        let number = session.number_of_path(entry.leaf)?;
        Some(LoadedPath { session, number })
    }
}

impl Session {
    /// The number of the finished path that ends in the turn with this uid. The latest ones are searched first.
    fn number_of_path(&self, leaf: Uid) -> Option<u64> {
        let state = self.state();
        let turn = |turn: u32| state.forest.turns().get(turn as usize).map(|turn| turn.about.uid);
        state.finished.iter().rev().find(|path| turn(path.leaf) == Some(leaf)).map(|path| path.number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::tests::{draft, shared};
    use crate::session::{Call, Classes};

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
        let shared = || shared(&ledger, Duration::MAX);
        let ([first, second, reader], name) = ([shared(), shared(), shared()], Arc::from("s"));
        Call::new(Arc::clone(&first), Arc::clone(&name)).commit(draft(&[1], &[2, 3])).1.await.unwrap();
        second.refresh(["s"]).await.unwrap();
        let before = ledger.state().clone();
        first.sharing().freeze(&name).await.unwrap();
        // the replica that lacks it becomes the primary
        *ledger.state() = before;
        ledger.disruptions.send_modify(|count| *count += 1);
        second.sharing().freeze(&name).await.unwrap();
        first.refresh(["s"]).await.unwrap();
        for store in [&first, &second, &reader] {
            let sharing = store.sharing();
            let start = sharing.stream_start().await.unwrap();
            let page = sharing.finished_after(&start, Consumer::default(), 9).await.unwrap();
            let trained = page.paths.into_iter().map(|path| {
                let LoadedPath { session, number } = path.loaded.unwrap();
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
