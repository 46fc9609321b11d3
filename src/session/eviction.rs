//! What happens to sessions with time: they finish, and they leave.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::View;
use super::ledger::{Ack, Record};
use super::order_index::{EvictedSession, Order};
use super::state::{Session, State};
use super::store::{Store, now_ms};

/// Paths that are numbered, and sessions that are listed, under one hold of the order's lock.
const AT_ONCE: usize = 64;

/// Turns of a session that a caller looks over itself. A longer session takes a blocking thread, because the caller may be a task.
const SHORT: u32 = 256;

/// Sessions that a caller looks at itself to make room.
const LOOKS: usize = 512;

/// Runs work that may take long on a blocking thread; at once where there is no runtime.
fn off_runtime(work: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => work(),
    }
}

impl Store {
    /// Gives out the paths of a session that have not been given out.
    pub(super) fn finish(&self, session: &Arc<Session>) {
        let _finishing = session.finishing();
        // before the turns are counted: a call that ends later opens the session again
        self.order().settled(session);
        let Some(turns) = session.unsettled() else { return };
        let leaves = View::new(&session.turns(turns)).leaves().exported;
        for leaves in leaves.chunks(AT_ONCE) {
            let claimed = session.claim(leaves);
            // under the order's lock the numbers in the log rise
            let mut order = self.order();
            for (number, leaf) in session.give_out(turns, &claimed, || order.next_finished()) {
                order.finished.push_back((number, Arc::clone(&session.id)));
                self.ledger.append_unacknowledged(Record::Finished { session: session.key(), leaf, turns, number });
                self.news.finished(number);
            }
        }
    }

    /// The same from a task: a long session takes a blocking thread.
    pub(super) fn finish_soon(self: &Arc<Self>, session: &Arc<Session>) {
        if session.is_longer_than(SHORT) {
            let (store, session) = (Arc::clone(self), Arc::clone(session));
            return off_runtime(move || store.finish(&session));
        }
        self.finish(session);
    }

    /// Gives out what is idle and evicts what is over its time. Takes long where many sessions are: not for a task.
    pub fn sweep(&self) {
        let (now, mut after) = (Instant::now(), 0);
        loop {
            let idle = self.order().idle(now, self.limits.idle, after, AT_ONCE);
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

    /// Evicts what is over its time, and what is over the bytes.
    pub(super) fn evict(&self) {
        self.evict_within(usize::MAX, u32::MAX);
    }

    /// The same from a task: a blocking thread does what takes longer.
    pub(super) fn evict_soon(self: &Arc<Self>) {
        if self.evict_within(LOOKS, SHORT) || self.evicting.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = Arc::clone(self);
        off_runtime(move || {
            store.evicting.store(false, Ordering::Relaxed);
            store.evict();
        });
    }

    /// Looks at `looks` sessions at most, none of them longer than `longest`; returns whether that was enough.
    fn evict_within(&self, looks: usize, longest: u32) -> bool {
        let now = Instant::now();
        let mut passed = 0;
        for _ in 0..looks {
            let Some((tick, reason, session)) = self.due(now, passed) else { return true };
            passed = tick + 1;
            let unused = |state: &State| !self.is_used(state, &session.id);
            if !unused(&session.state()) {
                continue;
            }
            if session.is_longer_than(longest) {
                return false;
            }
            // readers of finished paths must learn that these went before they were read
            self.finish(&session);
            let mut order = self.order();
            if session.tick() != tick {
                // it was used in the meantime
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

    /// The session to be evicted next, from tick `from` on, and why.
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
        state.running > 0 || self.early.has(id)
    }

    /// Lets a session go, unless it is gone or `may` does not hold. It is recorded before the name is free for another.
    pub(super) fn forget(
        &self,
        order: &mut Order,
        session: &Arc<Session>,
        record: Record,
        may: impl FnOnce(&State) -> bool,
    ) -> Option<Ack> {
        let (bytes, ack) = {
            let mut state = session.state();
            if state.gone || !may(&state) {
                return None;
            }
            state.gone = true;
            (state.bytes, self.ledger.append(record))
        };
        order.remove(session, bytes);
        self.sessions.remove_if(&session.id, |_, found| Arc::ptr_eq(found, session));
        Some(ack)
    }
}
