// SPDX-License-Identifier: Apache-2.0
//! The sessions in memory, within limits of bytes and time. Each change is one record of the log.

mod annotations;
mod change_feed;
mod common;
mod eviction;
mod images;
mod order;
mod pending;
mod restoration;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dashmap::DashMap;
use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::ledger::{Ack, Change, RecordLog, SharedLog};
use super::state::Session;
use super::turn::Draft;
use super::{ProcessId, Turn, Uid};
use change_feed::ChangeFeed;
pub use change_feed::CommittedTurn;
use common::CommonValues;
pub(super) use images::ImageStore;
pub use order::EvictedSession;
use order::Order;
#[cfg(test)]
pub(super) use order::SESSION_OVERHEAD;
use pending::PendingCalls;
pub use restoration::{Restoration, RestoreProgress};

/// Parts of the map of sessions. A part that grows moves its sessions while it is locked: about a thousand of a million.
const SHARDS: usize = 1024;

/// Limits of the store.
#[derive(Debug, Clone, Copy)]
pub struct StoreLimits {
    /// Bytes of all sessions.
    pub bytes: u64,
    /// A session that is unused for this long is evicted.
    pub ttl: Duration,
    /// A session that is unused for this long has finished.
    pub idle: Duration,
}

impl StoreLimits {
    /// No limits: a command reads all sessions of a log.
    pub const UNLIMITED: Self = Self { bytes: u64::MAX, ttl: Duration::MAX, idle: Duration::MAX };
}

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) sessions: DashMap<Arc<str>, Arc<Session>, RandomState>,
    // locked before a session's own lock, never after it, and never across an await; each lock handles a bounded number of entries
    order: Mutex<Order>,
    // locked for one turn, after a session
    pub(super) common: Mutex<CommonValues>,
    pub(super) images: ImageStore,
    /// Whether a blocking thread evicts, or is about to.
    pub(super) evicting: AtomicBool,
    pub(super) pending: PendingCalls,
    pub(super) feed: ChangeFeed,
    pub(super) limits: StoreLimits,
    pub(super) log: SharedLog,
    pub(super) restoration: Restoration,
    /// The id of a store without a log.
    process: ProcessId,
    /// Whether it is the cache of a ledger. An eviction from a cache is not recorded and publishes no paths, because the ledger has the session.
    pub(super) is_cache: bool,
    /// The bytes of missing changes, which belong to no session in memory yet.
    pub(super) missing_bytes: Arc<AtomicU64>,
    pub(super) observer: Arc<dyn StoreObserver>,
}

/// Receives changes of a store. Its methods run under a lock of the store and must return quickly.
pub trait StoreObserver: Debug + Send + Sync {
    /// A turn was added.
    fn turn_committed(&self, turn: &Turn);

    /// A turn was not added, because its session was deleted while it ran.
    fn turn_dropped(&self);

    /// A session was evicted; the reason is `bytes` or `ttl`.
    fn session_evicted(&self, reason: &'static str);
}

/// Ignores all changes.
#[derive(Debug, Clone, Copy)]
pub struct NoObserver;

impl StoreObserver for NoObserver {
    fn turn_committed(&self, _turn: &Turn) {}

    fn turn_dropped(&self) {}

    fn session_evicted(&self, _reason: &'static str) {}
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Store {
    /// An empty store that appends its records to `log` and reports to `observer`.
    pub(super) fn new(limits: StoreLimits, log: SharedLog, observer: Arc<dyn StoreObserver>) -> Self {
        Self {
            sessions: DashMap::with_hasher_and_shard_amount(RandomState::default(), SHARDS),
            order: Mutex::default(),
            common: Mutex::default(),
            images: ImageStore::default(),
            evicting: AtomicBool::new(false),
            pending: PendingCalls::default(),
            feed: ChangeFeed::default(),
            limits,
            log,
            restoration: Restoration::default(),
            process: ProcessId::random(),
            is_cache: false,
            missing_bytes: Arc::default(),
            observer,
        }
    }

    /// An empty store that is the cache of a ledger.
    pub(super) fn cache(limits: StoreLimits, log: SharedLog, observer: Arc<dyn StoreObserver>) -> Self {
        Self { is_cache: true, ..Self::new(limits, log, observer) }
    }

    /// The process that has the store. Cursors contain its id, because another store numbers its finished paths again from 1.
    pub(super) fn process(&self) -> ProcessId {
        self.log.get().map_or(self.process, RecordLog::id)
    }

    pub(super) fn touch(&self, session: &Arc<Session>, now: Instant) {
        self.order().touch(session, now);
    }

    pub(super) fn restore_deleted(&self, id: &str) {
        if let Some(session) = self.session(id) {
            let record = session.record(Change::Deleted);
            drop(self.forget(&mut self.order(), &session, Some(record), |_| true));
        }
    }

    pub(super) fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock()
    }

    /// The session with this name.
    pub(super) fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.get(id).map(|session| Arc::clone(session.value()))
    }

    /// Evicted sessions, the latest last. Older ones are only counted.
    pub(super) fn evicted(&self) -> Vec<EvictedSession> {
        self.order().evicted.iter().cloned().collect()
    }

    /// The eviction of a session, if it is remembered.
    pub(super) fn eviction_of(&self, id: &str) -> Option<EvictedSession> {
        self.order().evicted.iter().rev().find(|evicted| &*evicted.session == id).cloned()
    }

    /// The numbers of sessions and bytes.
    pub(super) fn size(&self) -> (usize, u64) {
        (self.sessions.len(), self.bytes_of(&self.order()))
    }

    /// The bytes of all sessions, of their pictures and of the missing changes.
    pub(super) fn bytes_of(&self, order: &Order) -> u64 {
        let missing = self.missing_bytes.load(Ordering::Relaxed);
        u64::try_from(order.bytes).unwrap_or(0) + self.images.bytes() + missing
    }

    /// The session, which is created if it does not exist. Counts a running call, so that the session is not evicted.
    pub(super) fn enter(&self, id: &Arc<str>) -> Arc<Session> {
        self.enter_as(id, Uid::unique)
    }

    /// Like [`Store::enter`]; a new session gets this birth.
    pub(super) fn enter_as(&self, id: &Arc<str>, birth: impl Fn() -> Uid) -> Arc<Session> {
        loop {
            let session = self.session(id).unwrap_or_else(|| {
                // the order is never locked while the map is
                let fresh = Arc::new(self.order().begin(Arc::clone(id), birth(), now_ms()));
                Arc::clone(self.sessions.entry(Arc::clone(id)).or_insert(fresh).value())
            });
            let mut state = session.state();
            if !state.removed {
                state.running += 1;
                drop(state);
                return session;
            }
            // the session is being removed; retry with a new one
            drop(state);
            self.sessions.remove_if(id, |_, found| Arc::ptr_eq(found, &session));
        }
    }

    /// Enters a session only if it exists. Otherwise the call is pending until it ends, or enters its session.
    pub(super) fn enter_known(&self, id: &Arc<str>) -> Option<Arc<Session>> {
        let session = self.session(id).filter(|session| {
            let mut state = session.state();
            state.running += u32::from(!state.removed);
            !state.removed
        });
        if session.is_none() {
            self.pending.add(id);
        }
        session
    }

    /// Ends a call. `done` is true if it was the last call of the session.
    pub(super) fn leave(self: &Arc<Self>, session: &Arc<Session>, done: bool) {
        // marked as used before it can be evicted: the duration of a call is not idle time
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

    /// Adds a turn. It is in the store when this returns, and in the log when the ack resolves.
    pub(super) fn commit(&self, session: &Arc<Session>, draft: Draft) -> (Option<u32>, Ack) {
        let (turn, bytes, ack) = {
            let mut state = session.state();
            if state.removed {
                self.observer.turn_dropped();
                return (None, Ack::done());
            }
            let mut turn = session.place(&mut state, draft);
            let shared = self.common.lock().share(&mut turn.about);
            if let Some(images) = &mut turn.about.images {
                self.images.hold(&mut state.images, images);
            }
            let turn = Arc::new(turn);
            // while it is locked, so that turns are in order in the log
            let ack = self.log.append(session.record(Change::Turn(Arc::clone(&turn))));
            let ack = state.track_image_record(&turn, ack);
            self.announce(&session.id, &turn);
            (turn.id, state.push(turn, shared), ack)
        };
        self.order().add(bytes);
        (Some(turn), ack)
    }

    /// Marks a session as incomplete: a generation was not recorded.
    pub(super) fn mark_incomplete(self: &Arc<Self>, id: &Arc<str>) {
        let session = self.enter(id);
        let new = {
            let mut state = session.state();
            let (version, new) = (state.open_version(), state.incomplete.is_none());
            // a frozen version does not change
            state.incomplete.get_or_insert(version);
            new
        };
        if new {
            self.log.append_unacknowledged(session.record(Change::Incomplete));
        }
        self.leave(&session, false);
    }

    /// Deletes a session. Returns `None` if it did not exist.
    pub(super) fn delete(&self, id: &str) -> Option<Ack> {
        let session = self.session(id)?;
        let record = session.record(Change::Deleted);
        self.forget(&mut self.order(), &session, Some(record), |_| true)
    }

    /// The session of this name, which is created with this birth if it does not exist.
    pub(super) fn session_of(&self, name: &Arc<str>, birth: Uid) -> Arc<Session> {
        let session = self.enter_as(name, || birth);
        session.state().running -= 1;
        self.touch(&session, Instant::now());
        session
    }

    /// Removes a session from memory without a record.
    pub(super) fn remove_session(&self, session: &Arc<Session>) {
        self.forget(&mut self.order(), session, None, |_| true);
    }

    /// Reports a turn of this process.
    pub(super) fn announce(&self, session: &Arc<str>, turn: &Arc<Turn>) {
        self.observer.turn_committed(turn);
        self.feed.send_turn(session, turn);
    }
}

impl Session {
    pub(super) fn tick(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }
}
