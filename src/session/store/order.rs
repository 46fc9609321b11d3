// SPDX-License-Identifier: Apache-2.0
//! Sessions in the order of creation and of use, and finished paths by number.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::session::state::{FinishedPaths, Session};
use crate::session::{EntropyTotals, Uid};

/// Evicted sessions whose names are remembered.
const REMEMBERED: usize = 1000;

/// Bytes that a session takes besides its turns: its own, the entropies of its thinking, its name, and its places in the order and in the
/// map of sessions.
pub(in crate::session) const SESSION_OVERHEAD: u64 = (size_of::<Session>() + size_of::<EntropyTotals>() + 216) as u64;

/// The tick of a session that has been evicted or deleted.
const GONE: u64 = u64::MAX;

/// The tick of a session that must not be evicted, because the shared ledger lacks changes of it.
const PINNED: u64 = u64::MAX - 1;

/// A session that was evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictedSession {
    /// Its name.
    pub session: Arc<str>,
    /// `bytes` or `ttl`.
    pub reason: &'static str,
    /// The time of the eviction: milliseconds since 1970.
    pub at_ms: u64,
}

/// The index. Every session is in `born`, and in `used` unless it is pinned, so a search for sessions to evict skips no pinned ones.
#[derive(Debug, Default)]
pub(in crate::session) struct Order {
    born: BTreeMap<u64, Arc<Session>>,
    used: BTreeMap<u64, (Instant, Arc<Session>)>,
    /// The ticks of the sessions of `used` with unpublished paths.
    open: BTreeSet<u64>,
    ticks: u64,
    /// The number of sessions that were created in this process.
    begun: u64,
    numbers: u64,
    /// Bytes of all sessions. Temporarily negative if a session is removed before its last turn is counted.
    pub(in crate::session) bytes: i64,
    /// The bytes of each pinned session, with its pictures, by its number.
    pinned: BTreeMap<u64, u64>,
    /// The sum of `pinned`.
    pinned_bytes: u64,
    pub(in crate::session) evicted: VecDeque<EvictedSession>,
    pub(in crate::session) finished: FinishedPaths,
}

impl Order {
    /// Creates a session that was not used yet.
    pub(in crate::session) fn begin(&mut self, id: Arc<str>, birth: Uid, now_ms: u64) -> Session {
        self.begun += 1;
        Session::new(id, self.begun, birth, now_ms)
    }

    /// Marks a session as used now.
    pub(in crate::session) fn touch(&mut self, session: &Arc<Session>, now: Instant) {
        if session.tick() >= PINNED {
            return;
        }
        self.ticks += 1;
        let before = session.tick.swap(self.ticks, Ordering::Relaxed);
        self.used.remove(&before);
        self.open.remove(&before);
        self.used.insert(self.ticks, (now, Arc::clone(session)));
        self.open.insert(self.ticks);
        if self.born.insert(session.number, Arc::clone(session)).is_none() {
            self.add(SESSION_OVERHEAD);
        }
    }

    /// Pins a session of this many bytes, with its pictures.
    pub(in crate::session) fn pin(&mut self, session: &Session, size: u64) {
        let before = session.tick.swap(PINNED, Ordering::Relaxed);
        self.used.remove(&before);
        self.open.remove(&before);
        self.set_pinned(session, Some(size));
    }

    /// Ends the effect of [`Order::pin`]. The session counts as used now.
    pub(in crate::session) fn unpin(&mut self, session: &Arc<Session>, now: Instant) {
        session.tick.store(0, Ordering::Relaxed);
        self.set_pinned(session, None);
        self.touch(session, now);
    }

    /// The bytes of pinned sessions.
    pub(in crate::session) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Changes the bytes of a session by a signed number. `size` is what it takes now, with its pictures.
    pub(in crate::session) fn change_session(&mut self, session: &Session, bytes: i64, size: impl FnOnce() -> u64) {
        self.bytes += bytes;
        if session.tick() == PINNED {
            self.set_pinned(session, Some(size()));
        }
    }

    /// Counts the bytes of a pinned session, or those of one that is no longer pinned no more.
    fn set_pinned(&mut self, session: &Session, size: Option<u64>) {
        let new = size.map(|size| size + SESSION_OVERHEAD);
        let before = match new {
            Some(bytes) => self.pinned.insert(session.number, bytes),
            None => self.pinned.remove(&session.number),
        };
        self.pinned_bytes = self.pinned_bytes + new.unwrap_or(0) - before.unwrap_or(0);
    }

    /// Marks all paths of a session as published.
    pub(in crate::session) fn mark_published(&mut self, session: &Session) {
        self.open.remove(&session.tick());
    }

    pub(in crate::session) fn remove(&mut self, session: &Session, bytes: u64) {
        self.used.remove(&session.tick());
        self.open.remove(&session.tick());
        let own = if self.born.remove(&session.number).is_some() { SESSION_OVERHEAD } else { 0 };
        session.tick.store(GONE, Ordering::Relaxed);
        self.set_pinned(session, None);
        self.bytes -= signed(bytes + own);
    }

    /// Adds to the bytes of all sessions.
    pub(in crate::session) fn add(&mut self, bytes: u64) {
        self.bytes += signed(bytes);
    }

    /// Changes the bytes of all sessions by a signed number.
    pub(in crate::session) fn change(&mut self, bytes: i64) {
        self.bytes += bytes;
    }

    pub(in crate::session) fn remember(&mut self, evicted: EvictedSession) {
        if self.evicted.len() == REMEMBERED {
            self.evicted.pop_front();
        }
        self.evicted.push_back(evicted);
    }

    pub(in crate::session) fn page(&self, after: u64, limit: usize) -> Vec<(u64, Arc<Session>)> {
        let from = after.saturating_add(1);
        self.born.range(from..).take(limit).map(|(number, session)| (*number, Arc::clone(session))).collect()
    }

    /// The latest sessions first, before the one with the number `before`.
    pub(in crate::session) fn page_back(&self, before: u64, limit: usize) -> Vec<(u64, Arc<Session>)> {
        let older = self.born.range(..before).rev();
        older.take(limit).map(|(number, session)| (*number, Arc::clone(session))).collect()
    }

    /// The least recently used session from tick `from` on.
    pub(in crate::session) fn oldest(&self, from: u64) -> Option<(u64, Instant, Arc<Session>)> {
        self.used.range(from..).next().map(|(tick, (used, session))| (*tick, *used, Arc::clone(session)))
    }

    /// Sessions that were not used for `idle` and have unpublished paths, after tick `after`.
    pub(in crate::session) fn idle(
        &self,
        now: Instant,
        idle: Duration,
        after: u64,
        limit: usize,
    ) -> Vec<(u64, Arc<Session>)> {
        let open = self.open.range(after + 1..).map_while(|tick| Some((*tick, self.used.get(tick)?)));
        let is_idle = |used: &Instant| now.duration_since(*used) >= idle;
        let idle = open.take_while(|(_, (used, _))| is_idle(used)).take(limit);
        idle.map(|(tick, (_, session))| (tick, Arc::clone(session))).collect()
    }

    pub(in crate::session) fn next_finished(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(in crate::session) fn last_finished(&self) -> u64 {
        self.numbers
    }

    pub(in crate::session) fn finished_after(&self, after: u64, limit: usize) -> Vec<(u64, Arc<str>)> {
        self.finished.after(after).take(limit).collect()
    }

    /// Restores a path that was published before a restart.
    pub(in crate::session) fn restore_finished(&mut self, number: u64, session: Arc<str>) {
        self.numbers = self.numbers.max(number);
        self.finished.push(number, session);
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
