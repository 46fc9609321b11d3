//! All sessions, within bounds of bytes and time. Each change is one record of the ledger.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dashmap::DashMap;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::change_feed::{ChangeFeed, Ended};
use super::ledger::log::fresh_store;
use super::ledger::{Ack, Ledger, Record, SharedLedger};
use super::observer::{NoObserver, StoreObserver};
use super::order_index::{EvictedSession, Order};
use super::pending::Early;
use super::restoration::Restoration;
use super::state::Session;
use super::turn::Draft;
use super::{Turn, Uid};

/// Bounds of the store.
#[derive(Debug, Clone, Copy)]
pub struct StoreLimits {
    /// Bytes of all sessions.
    pub bytes: u64,
    /// How long an unused session stays.
    pub ttl: Duration,
    /// A session that is not used for so long has finished.
    pub idle: Duration,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    pub(super) sessions: DashMap<Arc<str>, Arc<Session>>,
    // taken before a session's own lock, never behind it, and never across an await; held for a bounded number of entries
    order: Mutex<Order>,
    /// A blocking thread evicts, or is about to.
    pub(super) evicting: AtomicBool,
    pub(super) early: Early,
    pub(super) news: ChangeFeed,
    pub(super) limits: StoreLimits,
    pub(super) ledger: SharedLedger,
    pub(super) restoration: Restoration,
    name: Box<str>,
    pub(super) observer: Arc<dyn StoreObserver>,
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Store {
    /// An empty store without a ledger.
    #[must_use]
    pub fn new(limits: StoreLimits) -> Self {
        Self::with(limits, SharedLedger::default(), Arc::new(NoObserver))
    }

    /// An empty store that appends its records to `ledger` and reports to `observer`.
    #[must_use]
    pub fn with(limits: StoreLimits, ledger: SharedLedger, observer: Arc<dyn StoreObserver>) -> Self {
        let name = fresh_store();
        let (sessions, order, early, news) =
            (DashMap::new(), Mutex::default(), Early::default(), ChangeFeed::default());
        let (restoration, evicting) = (Restoration::default(), AtomicBool::new(false));
        Self { sessions, order, evicting, early, news, limits, ledger, restoration, name, observer }
    }

    /// The ledger, once it is open.
    #[must_use]
    pub fn ledger(&self) -> Option<&dyn Ledger> {
        self.ledger.get()
    }

    /// The id that cursors depend on: another store numbers its finished paths anew.
    #[must_use]
    pub fn name(&self) -> &str {
        self.ledger.get().map_or(&self.name, Ledger::id)
    }

    pub(super) fn held(&self, bytes: u64) {
        self.order().add(bytes);
    }

    pub(super) fn touch(&self, session: &Arc<Session>, now: Instant) {
        self.order().touch(session, now);
    }

    pub(super) fn restore_finished(&self, number: u64, session: Arc<str>) {
        self.order().restore_finished(number, session);
    }

    pub(super) fn restore_deleted(&self, id: &str) {
        if let Some(session) = self.session(id) {
            let record = Record::Deleted { session: session.key() };
            drop(self.forget(&mut self.order(), &session, record, |_| true));
        }
    }

    pub(super) fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session with this name.
    #[must_use]
    pub fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.get(id).map(|session| Arc::clone(session.value()))
    }

    /// Sessions that were evicted, the latest last; older ones are only counted.
    #[must_use]
    pub fn evicted(&self) -> Vec<EvictedSession> {
        self.order().gone.iter().cloned().collect()
    }

    /// Why a session is no longer there, where that is remembered.
    #[must_use]
    pub fn gone(&self, id: &str) -> Option<EvictedSession> {
        self.order().gone.iter().rev().find(|gone| &*gone.session == id).cloned()
    }

    /// Sessions and bytes.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        (self.sessions.len(), u64::try_from(self.order().bytes).unwrap_or(0))
    }

    /// The session, which is created if it does not exist. A running call is counted, so that the session stays.
    pub(super) fn enter(&self, id: &Arc<str>) -> Arc<Session> {
        self.enter_as(id, Uid::unique)
    }

    /// The same; a new session gets this birth.
    pub(super) fn enter_as<B: Into<Option<Uid>>>(&self, id: &Arc<str>, birth: impl Fn() -> B) -> Arc<Session> {
        loop {
            let session = self.session(id).unwrap_or_else(|| {
                // the order's lock is never taken behind one of the map's
                let fresh = Arc::new(self.order().begin(Arc::clone(id), birth().into(), now_ms()));
                Arc::clone(self.sessions.entry(Arc::clone(id)).or_insert(fresh).value())
            });
            let mut state = session.state();
            if !state.gone {
                state.running += 1;
                drop(state);
                return session;
            }
            // it is being evicted; in a moment its name is free
            drop(state);
            self.sessions.remove_if(id, |_, found| Arc::ptr_eq(found, &session));
        }
    }

    /// Enters a session only if it exists; otherwise the call is [early](Store::arrived).
    pub(super) fn enter_known(&self, id: &Arc<str>) -> Option<Arc<Session>> {
        let session = self.session(id).filter(|session| {
            let mut state = session.state();
            state.running += u32::from(!state.gone);
            !state.gone
        });
        if session.is_none() {
            self.early.add(id);
        }
        session
    }

    /// A call that began before its session has entered it, or has ended.
    pub(super) fn arrived(&self, id: &str) {
        self.early.remove(id);
    }

    /// A call has ended; `done`: it was the session's last.
    pub(super) fn leave(self: &Arc<Self>, session: &Arc<Session>, done: bool) {
        // marked as used before it may be evicted: a long call does not count as idle time
        self.order().touch(session, Instant::now());
        {
            let mut state = session.state();
            state.running -= 1;
            state.done |= done;
        }
        if done {
            self.finish_soon(session);
        }
        self.evict_soon();
    }

    /// Adds a turn; it is in the store when this returns, and in the log when the ack resolves.
    pub(super) fn commit(&self, session: &Arc<Session>, draft: Draft) -> (Option<u32>, Ack) {
        let record = |turn: &Arc<Turn>| {
            self.observer.turn_committed(turn);
            let ack = self.ledger.append(Record::Turn { session: session.key(), turn: Arc::clone(turn) });
            self.news.turn(&session.id, turn);
            (Some(turn.id), ack)
        };
        let Some((bytes, recorded)) = session.commit(draft, record) else {
            self.observer.turn_dropped();
            return (None, Ack::done());
        };
        self.order().add(bytes);
        recorded
    }

    /// A generation passed unseen.
    pub fn incomplete(self: &Arc<Self>, id: &Arc<str>) {
        let session = self.enter(id);
        let new = {
            let mut state = session.state();
            let (version, new) = (state.open_version(), state.incomplete.is_none());
            // a frozen version does not change
            state.incomplete.get_or_insert(version);
            new
        };
        if new {
            self.ledger.append_unacknowledged(Record::Incomplete { session: session.key() });
        }
        self.leave(&session, false);
    }

    /// Deletes a session; returns whether it existed.
    pub fn delete(&self, id: &str) -> Option<Ack> {
        let session = self.session(id)?;
        let record = Record::Deleted { session: session.key() };
        self.forget(&mut self.order(), &session, record, |_| true)
    }

    /// Tells when everything so far is on disk.
    #[must_use]
    pub fn written(&self) -> Ack {
        self.ledger.written()
    }

    /// Each turn from now on. A receiver that is more than 1,024 turns behind misses some and gets their number.
    #[must_use]
    pub fn watch_turns(&self) -> broadcast::Receiver<Ended> {
        self.news.watch_turns()
    }

    /// The number of the last finished path since tokentap began, and each later one.
    #[must_use]
    pub fn watch_finished(&self) -> watch::Receiver<u64> {
        self.news.watch_finished()
    }

    /// The number of the last finished path.
    #[must_use]
    pub fn last_finished(&self) -> u64 {
        self.order().last_finished()
    }
}

impl Session {
    /// Whether it has more turns than that.
    pub(super) fn is_longer_than(&self, turns: u32) -> bool {
        self.state().forest.next_id() > turns
    }

    pub(super) fn tick(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }
}
