// SPDX-License-Identifier: Apache-2.0
//! The list of the sessions of all processes, from the index of the ledger.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{InvalidCursor, Sharing};
use crate::session::ids::has_part;
use crate::session::ledger::{LastUse, LedgerError, ListOrder, PARTITIONS};

/// Sessions of a partition that are read at once, at least.
const LEAST_READ: usize = 16;
/// The same at most, and with a search.
const MOST_READ: usize = 512;
/// Names that one search compares at most. The page then ends early.
const MOST_SEARCHED: usize = 1 << 16;
/// Names after which other tasks run.
const LISTED_AT_ONCE: usize = 512;

/// A place in the list: after the session with this name and this last use. Its text is the milliseconds, a full stop and the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) struct LastUseCursor {
    used_ms: u64,
    session: Arc<str>,
}

/// Some sessions of the list.
#[derive(Debug)]
pub(in crate::session) struct FleetPage {
    /// The sessions, in order.
    pub sessions: Vec<LastUse>,
    /// Sessions that may have changes of this process that are not in the ledger yet. Some are among the others. On the page with the most
    /// recently used sessions.
    pub detached: Vec<Arc<str>>,
    /// Where the next page begins; `None` on the last one. A page may be short and have a next one.
    pub next: Option<LastUseCursor>,
}

/// A query of the list.
#[derive(Debug, Clone)]
pub(in crate::session) struct FleetQuery {
    /// The order.
    pub order: ListOrder,
    /// Where the page begins.
    pub after: Option<LastUseCursor>,
    /// The most sessions, at least 1.
    pub limit: usize,
    /// A part of the name, in any case; empty for all sessions.
    pub part: String,
}

impl fmt::Display for LastUseCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.used_ms, self.session)
    }
}

impl FromStr for LastUseCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (used_ms, session) = text.split_once('.').ok_or(InvalidCursor)?;
        let used_ms = used_ms.parse().map_err(|_| InvalidCursor)?;
        Ok(Self { used_ms, session: session.into() })
    }
}

impl From<&LastUse> for LastUseCursor {
    fn from(last: &LastUse) -> Self {
        Self { used_ms: last.used_ms, session: Arc::clone(&last.session) }
    }
}

impl LastUseCursor {
    /// Whether `last` comes after it.
    fn is_before(&self, last: &LastUse, order: ListOrder) -> bool {
        let (place, other) = ((self.used_ms, &*self.session), (last.used_ms, &*last.session));
        match order {
            ListOrder::Oldest => place < other,
            ListOrder::Newest => place > other,
        }
    }
}

/// Reads the sessions of one partition.
struct PartitionReader {
    partition: u16,
    order: ListOrder,
    /// Read and not yet listed.
    waiting: VecDeque<LastUse>,
    /// The last one that was read.
    read: Option<LastUseCursor>,
    has_more: bool,
}

/// The place of a waiting session in the order, and its partition. The greatest one is the next of the list.
#[derive(PartialEq, Eq)]
struct HeapEntry(LastUseCursor, ListOrder, usize);

impl PartialOrd for HeapEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeapEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        let later = (self.0.used_ms, &*self.0.session).cmp(&(other.0.used_ms, &*other.0.session));
        if self.1 == ListOrder::Newest { later } else { later.reverse() }
    }
}

impl PartitionReader {
    /// Reads more, if nothing waits.
    async fn fill(&mut self, sharing: &Sharing, count: usize) -> Result<(), LedgerError> {
        let mut count = count;
        while self.waiting.is_empty() && self.has_more {
            let from = self.read.as_ref().map(|read| read.used_ms);
            let page = sharing.ledger.list(self.partition, self.order, from, count).await?;
            self.has_more = page.len() == count;
            // those of the first millisecond were read before
            let read = self.read.take();
            let is_new = |last: &LastUse| read.as_ref().is_none_or(|read| read.is_before(last, self.order));
            self.waiting.extend(page.into_iter().filter(is_new));
            self.read = self.waiting.back().map(LastUseCursor::from).or(read);
            // all have the time of the last one that was read
            count *= 2;
        }
        Ok(())
    }

    fn first(&self) -> Option<HeapEntry> {
        let first = self.waiting.front()?;
        Some(HeapEntry(LastUseCursor::from(first), self.order, usize::from(self.partition)))
    }
}

impl Sharing {
    /// Lists the sessions of all processes by their last append or renewal. A session that is used while the pages are read moves: with
    /// [`ListOrder::Oldest`] it is listed again, with [`ListOrder::Newest`] it may be missing.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(in crate::session) async fn list(&self, query: FleetQuery) -> Result<FleetPage, LedgerError> {
        if self.is_any_partition_down() {
            return Err(LedgerError::Unavailable("it failed a moment ago".into()));
        }
        let (part, is_first) = (query.part.clone(), query.after.is_none());
        let order = query.order;
        let mut page = self.within_timeout(None, self.merge_lists(query)).await?;
        let has_most_recent = match order {
            ListOrder::Oldest => page.next.is_none(),
            ListOrder::Newest => is_first,
        };
        if has_most_recent {
            page.detached = self.unsettled.lock().iter().filter(|session| has_part(session, &part)).cloned().collect();
        }
        Ok(page)
    }

    async fn merge_lists(
        &self,
        FleetQuery { order, after, limit, part }: FleetQuery,
    ) -> Result<FleetPage, LedgerError> {
        let count = if part.is_empty() { (limit / 8).clamp(LEAST_READ, MOST_READ) } else { MOST_READ };
        let reader = |partition| PartitionReader {
            partition,
            order,
            waiting: VecDeque::new(),
            read: after.clone(),
            has_more: true,
        };
        let mut readers: Vec<PartitionReader> = (0..PARTITIONS).map(reader).collect();
        futures_util::future::try_join_all(readers.iter_mut().map(|reader| reader.fill(self, count))).await?;
        let mut first: BinaryHeap<HeapEntry> = readers.iter().filter_map(PartitionReader::first).collect();
        let (mut sessions, mut compared) = (Vec::new(), 0);
        while let Some(HeapEntry(place, _, partition)) = first.pop() {
            let reader = &mut readers[partition];
            let Some(last) = reader.waiting.pop_front() else { continue };
            reader.fill(self, count).await?;
            first.extend(reader.first());
            if has_part(&last.session, &part) {
                sessions.push(last);
            }
            compared += 1;
            if sessions.len() == limit || (compared == MOST_SEARCHED && !part.is_empty()) {
                return Ok(FleetPage { sessions, detached: Vec::new(), next: Some(place) });
            }
            if compared % LISTED_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(FleetPage { sessions, detached: Vec::new(), next: None })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::ledger::{Append, Entry, Ledger, SharedLog};
    use crate::session::store::NoObserver;
    use crate::session::store::Store;
    use crate::session::{SharedLedger, SharingLimits, StoreLimits, Uid};

    /// A ledger with 300 sessions in seven milliseconds, and the list from the least recent one on.
    async fn ledger() -> (Sharing, Vec<(u64, Arc<str>)>) {
        let ledger = Arc::new(MemoryLedger::new());
        for at in 0..300 {
            let session: Arc<str> = format!("{}-{at}", ["a", "b", "\u{e9}"][at % 3]).into();
            let entries = vec![Entry { uid: Uid::unique(), body: "x".into() }];
            let begun_ago = Duration::ZERO;
            let append = Append { session, after: None, entries, finished: Vec::new(), in_use: true, begun_ago };
            ledger.append(append).await.unwrap();
            if at % 50 == 0 {
                tokio::time::advance(Duration::from_millis(1)).await;
            }
        }
        let state = ledger.state();
        let mut all: Vec<_> = state.listed.values().flatten().map(|(session, ms)| (*ms, Arc::clone(session))).collect();
        all.sort();
        drop(state);
        let sharing = SharingLimits { timeout: Duration::from_secs(2), idle: Duration::MAX };
        let limits = StoreLimits::UNLIMITED;
        let store = Store::cache(limits, SharedLog::default(), Arc::new(NoObserver));
        (Sharing::new(Arc::new(store), SharedLedger { ledger, limits: sharing }), all)
    }

    async fn pages(sharing: &Sharing, order: ListOrder, limit: usize, part: &str) -> Vec<(u64, Arc<str>)> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = sharing.list(FleetQuery { order, after, limit, part: part.into() }).await.unwrap();
            assert!(page.sessions.len() <= limit && page.detached.is_empty());
            all.extend(page.sessions.into_iter().map(|last| (last.used_ms, last.session)));
            let Some(next) = page.next else { return all };
            assert_eq!(next.to_string().parse(), Ok(next.clone()));
            after = Some(next);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pages_of_any_length_list_each_session_once_in_order() {
        let (sharing, mut all) = ledger().await;
        for order in [ListOrder::Oldest, ListOrder::Newest] {
            for limit in [1, 7, 299, 300, 5000] {
                assert_eq!(pages(&sharing, order, limit, "").await, all, "{order:?} {limit}");
            }
            let found: Vec<_> = all.iter().filter(|(_, session)| session.contains("b-1")).cloned().collect();
            assert!(found.len() > 30);
            assert_eq!(pages(&sharing, order, 4, "b-1").await, found);
            assert_eq!(pages(&sharing, order, 4, "B-1").await, found, "in any case");
            all.reverse();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_is_used_meanwhile_is_listed_again() {
        let (sharing, all) = ledger().await;
        let ask = |after| FleetQuery { order: ListOrder::Oldest, after, limit: 100, part: String::new() };
        let first = sharing.list(ask(None)).await.unwrap();
        tokio::time::advance(Duration::from_millis(1)).await;
        sharing.ledger.renew(vec![Arc::clone(&all[3].1), Arc::clone(&all[150].1)]).await.unwrap();
        let mut rest = Vec::new();
        let mut after = first.next;
        while after.is_some() {
            let page = sharing.list(ask(after)).await.unwrap();
            rest.extend(page.sessions.into_iter().map(|last| last.session));
            after = page.next;
        }
        let expected = all[100..].iter().filter(|(_, session)| *session != all[150].1).map(|(_, session)| session);
        let expected: Vec<_> = expected.chain([&all[150].1, &all[3].1]).cloned().collect();
        let sorted = |mut names: Vec<Arc<str>>| {
            names[199..].sort();
            names
        };
        assert_eq!(sorted(rest), sorted(expected));
    }

    #[test]
    fn parsing_arbitrary_text_does_not_panic() {
        for text in ["", ".", "1", "1.", "x.a", "-1.a", "18446744073709551616.a", "7.a.b"] {
            let parsed = text.parse::<LastUseCursor>();
            assert_eq!(parsed.is_ok(), ["1.", "7.a.b"].contains(&text), "{text:?}");
        }
    }
}
