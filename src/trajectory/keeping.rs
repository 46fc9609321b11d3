//! What happens to sessions with time: they finish, and they leave.

use std::sync::Arc;

use tokio::time::Instant;

use super::log::{Ack, Record};
use super::order::{Gone, Order};
use super::session::{Session, State};
use super::store::{Store, now_ms};

impl Store {
    /// Gives out the paths of a session that have not been given out.
    pub(super) fn finish(&self, session: &Arc<Session>) {
        // under the order's lock the numbers of a session rise
        let mut order = self.order();
        order.settled(session);
        self.number(&mut order, session);
    }

    fn number(&self, order: &mut Order, session: &Arc<Session>) {
        for (number, leaf, turns) in session.give_out(|| order.next_finished()) {
            order.finished.push_back((number, Arc::clone(&session.id)));
            self.note(Record::Finished { session: Arc::clone(&session.id), leaf, turns, number });
            self.news.finished(number);
        }
    }

    /// Lets go of what is over its time, and gives out what is idle.
    pub fn sweep(&self) {
        let now = Instant::now();
        let idle = self.order().idle(now, self.limits.idle);
        for session in idle {
            if !self.is_used(&session.state(), &session.id) {
                self.finish(&session);
            }
        }
        self.evict();
    }

    pub(super) fn evict(&self) {
        let mut order = self.order();
        let now = Instant::now();
        let mut passed = 0;
        loop {
            let over = u64::try_from(order.bytes).is_ok_and(|bytes| bytes > self.limits.bytes);
            let Some((tick, used, session)) = order.oldest(passed) else { return };
            let reason = match (over, now.duration_since(used) >= self.limits.ttl) {
                (_, true) => "ttl",
                (true, false) => "bytes",
                _ => return,
            };
            passed = tick + 1;
            let evicted = Record::Evicted { session: Arc::clone(&session.id) };
            let unused = |state: &State| !self.is_used(state, &session.id);
            if !unused(&session.state()) {
                continue;
            }
            // whoever reads finished paths must learn that these went before they were read
            self.number(&mut order, &session);
            if self.forget(&mut order, &session, evicted, unused).is_some() {
                order.remember(Gone { session: Arc::clone(&session.id), reason, at_ms: now_ms() });
                self.metrics.sessions_evicted.with_label_values(&[reason]).inc();
            }
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
            (state.bytes, self.record(record))
        };
        order.remove(session, bytes);
        self.sessions.remove_if(&session.id, |_, found| Arc::ptr_eq(found, session));
        Some(ack)
    }
}
