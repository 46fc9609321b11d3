//! Finishes idle sessions, and evicts sessions by age and by bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::View;
use super::ledger::{Ack, Record};
use super::order_index::{EvictedSession, Order};
use super::state::{Session, State};
use super::store::{Store, now_ms};

/// Paths that are numbered, or sessions that are listed, per lock of the order.
const PER_LOCK: usize = 64;

/// Turns of the longest session that is walked on the caller's thread. The caller may be a task, so longer sessions use a blocking thread.
const SHORT: u32 = 256;

/// Sessions that a caller checks on its own thread to make room.
const CHECKS: usize = 512;

/// Runs work that may take long on a blocking thread, or inline without a runtime.
fn off_runtime(work: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => work(),
    }
}

impl Store {
    /// Publishes the paths of a session that were not published before.
    pub(super) fn finish(&self, session: &Arc<Session>) {
        let _finishing = session.finishing();
        // before the turns are counted: a call that ends later marks the session as open again
        self.order().mark_published(session);
        let Some(turns) = session.unpublished() else { return };
        let leaves = View::new(&session.turns(turns)).leaves().exported;
        for leaves in leaves.chunks(PER_LOCK) {
            let claimed = session.claim(leaves);
            // the order stays locked, so that the numbers in the log rise
            let mut order = self.order();
            for (number, leaf) in session.publish(turns, &claimed, || order.next_finished()) {
                order.finished.push_back((number, Arc::clone(&session.id)));
                self.ledger.append_unacknowledged(Record::Finished { session: session.key(), leaf, turns, number });
                self.feed.send_finished(number);
            }
        }
    }

    /// Like [`Store::finish`], for tasks: a long session uses a blocking thread.
    pub(super) fn finish_soon(self: &Arc<Self>, session: &Arc<Session>) {
        if session.is_longer_than(SHORT) {
            let (store, session) = (Arc::clone(self), Arc::clone(session));
            return off_runtime(move || store.finish(&session));
        }
        self.finish(session);
    }

    /// Publishes the paths of idle sessions, then evicts. Blocks for long if there are many sessions, so it must not run on a task.
    pub fn sweep(&self) {
        let (now, mut after) = (Instant::now(), 0);
        loop {
            let idle = self.order().idle(now, self.limits.idle, after, PER_LOCK);
            let Some((last, _)) = idle.last() else { break };
            after = *last;
            for (_, session) in idle {
                if !self.is_used(&session.state(), &session.id) {
                    self.finish(&session);
                }
            }
        }
        self.evict();
    }

    /// Evicts sessions that are unused for longer than the TTL, and the oldest ones above the byte limit.
    pub(super) fn evict(&self) {
        self.evict_within(usize::MAX, u32::MAX);
    }

    /// Like [`Store::evict`], for tasks: a blocking thread does what takes longer.
    pub(super) fn evict_soon(self: &Arc<Self>) {
        if self.evict_within(CHECKS, SHORT) || self.evicting.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = Arc::clone(self);
        off_runtime(move || {
            store.evicting.store(false, Ordering::Relaxed);
            store.evict();
        });
    }

    /// Checks at most `checks` sessions, none of them longer than `longest`. Returns whether nothing is left to evict.
    fn evict_within(&self, checks: usize, longest: u32) -> bool {
        let now = Instant::now();
        let mut passed = 0;
        for _ in 0..checks {
            let Some((tick, reason, session)) = self.due(now, passed) else { return true };
            passed = tick + 1;
            let unused = |state: &State| !self.is_used(state, &session.id);
            if !unused(&session.state()) {
                continue;
            }
            if session.is_longer_than(longest) {
                return false;
            }
            // publishes the paths first, so that a reader of finished paths learns that it missed them
            self.finish(&session);
            let mut order = self.order();
            if session.tick() != tick {
                // the session was used in the meantime
                continue;
            }
            let evicted = Record::Evicted { session: session.key() };
            if self.forget(&mut order, &session, evicted, unused).is_some() {
                order.remember(EvictedSession { session: Arc::clone(&session.id), reason, at_ms: now_ms() });
                self.observer.session_evicted(reason);
            }
        }
        false
    }

    /// The next session to evict, from tick `from` on, and the reason.
    fn due(&self, now: Instant, from: u64) -> Option<(u64, &'static str, Arc<Session>)> {
        let order = self.order();
        let over = u64::try_from(order.bytes).is_ok_and(|bytes| bytes > self.limits.bytes);
        let (tick, used, session) = order.oldest(from)?;
        match (over, now.duration_since(used) >= self.limits.ttl) {
            (_, true) => Some((tick, "ttl", session)),
            (true, false) => Some((tick, "bytes", session)),
            (false, false) => None,
        }
    }

    fn is_used(&self, state: &State, id: &str) -> bool {
        state.running > 0 || self.pending.has(id)
    }

    /// Removes a session, unless it is removed already or `may` returns false. The record is appended before the name becomes free.
    pub(super) fn forget(
        &self,
        order: &mut Order,
        session: &Arc<Session>,
        record: Record,
        may: impl FnOnce(&State) -> bool,
    ) -> Option<Ack> {
        let (bytes, ack) = {
            let mut state = session.state();
            if state.removed || !may(&state) {
                return None;
            }
            state.removed = true;
            (state.bytes, self.ledger.append(record))
        };
        order.remove(session, bytes);
        self.sessions.remove_if(&session.id, |_, found| Arc::ptr_eq(found, session));
        Some(ack)
    }
}
