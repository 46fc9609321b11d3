// SPDX-License-Identifier: Apache-2.0
//! Finishes idle sessions, and evicts sessions by age and by bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::order::{EvictedSession, Order};
use super::{Store, now_ms};
use crate::session::ledger::{Ack, Change, Record};
use crate::session::state::{FinishedPath, Session, State};
use crate::session::view::published_leaves;

/// Paths that are numbered, or sessions that are listed, per lock of the order.
const PER_LOCK: usize = 64;

/// The most turns of a session that is finished on the caller's thread. The caller may be a task, so longer sessions use a blocking thread.
const SHORT: u32 = 256;

/// The most eviction work on the thread of a caller, in units of [`eviction_work`]: about half a millisecond.
const OWN_WORK: u64 = 512;

/// The cost of evicting a session, in units of about a microsecond. Checking a session costs 1.
fn eviction_work(turns: u32, bytes: u64) -> u64 {
    8 + u64::from(turns) + bytes / (64 << 10)
}

/// One wait for the log.
const WAIT: Duration = Duration::from_millis(1);

/// The remaining time that a sweep may wait for the log. A disk that hangs must not stop evictions.
struct LogWait(Duration);

impl Default for LogWait {
    fn default() -> Self {
        Self(Duration::from_secs(2))
    }
}

/// Resets [`Store::evicting`] when it is dropped.
struct Evicting(Arc<Store>);

impl Drop for Evicting {
    fn drop(&mut self) {
        self.0.evicting.store(false, Ordering::Relaxed);
    }
}

/// Runs work that may take long on a blocking thread, or inline without a runtime.
fn off_runtime(work: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => work(),
    }
}

impl Store {
    /// Publishes the paths of a session that were not published before.
    pub(in crate::session) fn finish(&self, session: &Arc<Session>) {
        let mut publication = session.publication.lock();
        // before the turns are counted: a call that ends later marks the session as open again
        self.order().mark_published(session);
        let Some(count) = session.live_turns().filter(|turns| publication.advance(*turns)) else { return };
        let turns = session.turns(count);
        let leaves = published_leaves(&turns);
        for leaves in leaves.chunks(PER_LOCK) {
            let claim = |leaf: &u32| Some((*leaf, publication.claim(&turns, *leaf)?));
            let claimed: Vec<_> = leaves.iter().filter_map(claim).collect();
            // the order stays locked, so that the numbers in the log rise
            let (mut order, mut state) = (self.order(), session.state());
            if state.removed {
                return;
            }
            for (leaf, trained_from) in claimed {
                let number = order.next_finished();
                state.finished.push(FinishedPath { number, leaf, turns: count, trained_from });
                order.finished.push(number, Arc::clone(&session.id));
                let record = session.record(Change::Finished { leaf, turns: count, number });
                self.log.append_unacknowledged(record);
                self.feed.send_finished(number);
            }
        }
    }

    /// Like [`Store::finish`], for tasks: a long session uses a blocking thread.
    pub(in crate::session) fn finish_soon(self: &Arc<Self>, session: &Arc<Session>) {
        if session.state().forest.next_id() > SHORT {
            let (store, session) = (Arc::clone(self), Arc::clone(session));
            return off_runtime(move || store.finish(&session));
        }
        self.finish(session);
    }

    /// Publishes the paths of idle sessions, unless it is a cache, then evicts. Blocks for long if there are many sessions, so it must not
    /// run on a task.
    pub(in crate::session) fn sweep(&self) {
        let mut wait = LogWait::default();
        if !self.is_cache {
            self.finish_idle(&mut wait);
        }
        self.evict_all(&mut wait);
    }

    /// Publishes the paths of idle sessions.
    fn finish_idle(&self, wait: &mut LogWait) {
        let (now, mut after) = (Instant::now(), 0);
        loop {
            let idle = self.order().idle(now, self.limits.idle, after, PER_LOCK);
            let Some((last, _)) = idle.last() else { return };
            after = *last;
            for (_, session) in idle {
                self.wait_for_log(wait);
                if !self.is_used(&session.state(), &session.id) {
                    self.finish(&session);
                }
            }
        }
    }

    /// Evicts sessions that are unused for longer than the TTL, and the oldest ones above the byte limit.
    pub(in crate::session) fn evict(&self) {
        self.evict_all(&mut LogWait::default());
    }

    fn evict_all(&self, wait: &mut LogWait) {
        self.evict_within(u64::MAX, || self.wait_for_log(wait));
    }

    /// Waits while the log is behind: a sweep may append records faster than the disk stores them, and a full queue rejects the records of
    /// calls as well.
    fn wait_for_log(&self, wait: &mut LogWait) {
        while self.log.is_behind() && wait.0 > Duration::ZERO {
            wait.0 = wait.0.saturating_sub(WAIT);
            std::thread::sleep(WAIT);
        }
    }

    /// Like [`Store::evict`], for tasks: long work runs on a blocking thread.
    pub(in crate::session) fn evict_soon(self: &Arc<Self>) {
        if self.evict_within(OWN_WORK, || ()) || self.evicting.swap(true, Ordering::Relaxed) {
            return;
        }
        let evicting = Evicting(Arc::clone(self));
        // sessions that become due while it ends are left to the next call, or to the next sweep
        off_runtime(move || evicting.0.evict());
    }

    /// Evicts sessions within this amount of work. Calls `pause`, without a lock, before it evicts an expired session, but not above the byte
    /// limit. Returns true if no session is left to evict.
    pub(in crate::session) fn evict_within(&self, mut work: u64, mut pause: impl FnMut()) -> bool {
        let now = Instant::now();
        let mut passed = 0;
        loop {
            let Some((tick, reason, session)) = self.due(now, passed) else { return true };
            let Some(left) = work.checked_sub(1) else { return false };
            (work, passed) = (left, tick + 1);
            let unused = |state: &State| !self.is_used(state, &session.id);
            let needed = {
                let state = session.state();
                if !unused(&state) {
                    continue;
                }
                eviction_work(state.forest.next_id(), state.bytes)
            };
            let Some(left) = work.checked_sub(needed) else { return false };
            work = left;
            if reason == "ttl" {
                pause();
            }
            // publishes the paths first, so that a reader of finished paths learns that it missed them
            if !self.is_cache {
                self.finish(&session);
            }
            let mut order = self.order();
            if session.tick() != tick {
                // the session was used in the meantime
                continue;
            }
            if self.is_cache {
                self.forget(&mut order, &session, None, unused);
                continue;
            }
            let evicted = session.record(Change::Evicted);
            if self.forget(&mut order, &session, Some(evicted), unused).is_some() {
                order.remember(EvictedSession { session: Arc::clone(&session.id), reason, at_ms: now_ms() });
                self.observer.session_evicted(reason);
            }
        }
    }

    /// The next session to evict, from tick `from` on, and the reason.
    fn due(&self, now: Instant, from: u64) -> Option<(u64, &'static str, Arc<Session>)> {
        let order = self.order();
        let over = self.bytes_of(&order) > self.limits.bytes;
        let (tick, used, session) = order.oldest(from)?;
        match (over, now.duration_since(used) >= self.limits.ttl) {
            (_, true) => Some((tick, "ttl", session)),
            (true, false) => Some((tick, "bytes", session)),
            (false, false) => None,
        }
    }

    fn is_used(&self, state: &State, id: &str) -> bool {
        state.running > 0 || state.is_detached || self.pending.has(id)
    }

    /// Removes a session, unless it was removed before or `may` returns false. The record, if any, is appended before the name can be reused.
    pub(in crate::session) fn forget(
        &self,
        order: &mut Order,
        session: &Arc<Session>,
        record: Option<Record>,
        may: impl FnOnce(&State) -> bool,
    ) -> Option<Ack> {
        let (bytes, ack) = {
            let mut state = session.state();
            if state.removed || !may(&state) {
                return None;
            }
            state.removed = true;
            self.images.release(std::mem::take(&mut state.images));
            (state.bytes, record.map_or_else(Ack::done, |record| self.log.append(record)))
        };
        order.remove(session, bytes);
        self.sessions.remove_if(&session.id, |_, found| Arc::ptr_eq(found, session));
        Some(ack)
    }
}

impl Drop for Session {
    /// Frees a large session on a blocking thread. The last reference may be that of a task, such as a call that ends after its session was
    /// deleted.
    fn drop(&mut self) {
        let (replies, state) = self.take_contents();
        if eviction_work(state.forest.next_id(), state.bytes) > OWN_WORK {
            off_runtime(move || drop((replies, state)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::session::tests::{BOUNDLESS, store, turn};
    use crate::session::{Call, Sessions, Turn};

    /// The store, whose sessions have all expired.
    fn expired(sessions: Arc<Sessions>) -> Store {
        let store = Arc::clone(sessions.memory());
        drop(sessions);
        let mut store = Arc::into_inner(store).expect("no call runs");
        store.limits.ttl = Duration::ZERO;
        store
    }

    #[test]
    fn caller_does_a_bounded_part_of_an_eviction() {
        let store = store(BOUNDLESS);
        for name in 0..1000 {
            turn(&store, &name.to_string(), &[1], &[2]);
        }
        let store = expired(store);
        let set_running = |running| {
            store.page(0, usize::MAX).iter().for_each(|(_, session)| session.state().running = running);
        };
        set_running(1);
        assert!(!store.evict_within(OWN_WORK, || ()), "checking 1,000 used sessions is too much");
        set_running(0);
        let (mut evicted, mut is_done) = (0, false);
        while !is_done {
            is_done = store.evict_within(OWN_WORK, || evicted += 1);
            assert!(evicted <= OWN_WORK / eviction_work(1, 0), "{evicted} evictions");
            evicted = 0;
        }
        assert_eq!(store.size().0, 0);
    }

    #[test]
    fn caller_does_not_evict_a_large_session() {
        let store = store(BOUNDLESS);
        for id in 0..600 {
            turn(&store, "s", &[id], &[2]);
        }
        let store = expired(store);
        assert!(!store.evict_within(OWN_WORK, || ()));
        assert_eq!(store.size().0, 1);
        store.evict();
        assert_eq!(store.size().0, 0);
    }

    #[tokio::test]
    async fn large_session_is_freed_on_a_blocking_thread() {
        let store = store(BOUNDLESS);
        for id in 0..600 {
            turn(&store, "s", &[id], &[2]);
        }
        let last: Weak<Turn> =
            Arc::downgrade(&store.session("s").and_then(|found| found.turn(599)).expect("it exists"));
        let call = Call::new(Arc::clone(&store), "s".into());
        drop(store.memory().delete("s").expect("it exists"));
        assert!(last.upgrade().is_some(), "a call holds the session");
        drop(call);
        while last.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    }
}
