//! What happens to sessions with time: they finish, and they leave.

use std::sync::Arc;

use tokio::time::Instant;

use super::log::Record;
use super::order::{Gone, Order};
use super::session::Session;
use super::store::{Store, now_ms};

impl Store {
    /// Gives out the paths of a session that have not been given out.
    pub(super) fn finish(&self, session: &Arc<Session>) {
        // under the order's lock the numbers of a session rise
        let mut order = self.order();
        order.settled(session);
        let given = session.give_out(|| order.next_finished());
        for (number, leaf, turns) in given {
            order.finished.push_back((number, Arc::clone(&session.id)));
            self.note(Record::Finished { session: Arc::clone(&session.id), leaf, turns, number });
        }
    }

    /// Lets go of what is over its time, and gives out what is idle.
    pub fn sweep(&self) {
        let now = Instant::now();
        let idle = self.order().idle(now, self.limits.idle);
        for session in idle {
            let running = session.state().running > 0;
            if !running {
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
            let over = order.bytes > self.limits.bytes;
            let Some((tick, used, session)) = order.oldest(passed) else { return };
            let reason = match (over, now.duration_since(used) >= self.limits.ttl) {
                (_, true) => "ttl",
                (true, false) => "bytes",
                _ => return,
            };
            if session.state().running > 0 {
                passed = tick + 1;
                continue;
            }
            self.forget(&mut order, &session);
            order.remember(Gone { session: Arc::clone(&session.id), reason, at_ms: now_ms() });
            self.metrics.sessions_evicted.with_label_values(&[reason]).inc();
            self.note(Record::Deleted { session: Arc::clone(&session.id) });
        }
    }

    pub(super) fn forget(&self, order: &mut Order, session: &Arc<Session>) {
        let bytes = {
            let mut state = session.state();
            if std::mem::replace(&mut state.gone, true) {
                return;
            }
            state.bytes
        };
        order.remove(session, bytes);
        self.sessions.remove_if(&session.id, |_, found| Arc::ptr_eq(found, session));
    }
}
