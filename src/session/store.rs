//! All sessions, within limits of bytes and time. Each change is one record of the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dashmap::DashMap;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::change_feed::{ChangeFeed, CommittedTurn};
use super::ledger::log::random_store_id;
use super::ledger::{Ack, Change, Ledger, LedgerError, ProcessRecord, Record, RecordLog, SharedLog};
use super::name::is_name;
use super::observer::{NoObserver, StoreObserver};
use super::order_index::{EvictedSession, Order};
use super::pending::PendingCalls;
use super::restoration::Restoration;
use super::sharing::{Sharing, SharingCounts, SharingLimits};
use super::state::Session;
use super::turn::Draft;
use super::{Cause, ProcessId, Turn, Uid};

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

/// The store.
#[derive(Debug)]
pub struct Store {
    pub(super) sessions: DashMap<Arc<str>, Arc<Session>>,
    // locked before a session's own lock, never after it, and never across an await; each lock handles a bounded number of entries
    order: Mutex<Order>,
    /// Whether a blocking thread evicts, or is about to.
    pub(super) evicting: AtomicBool,
    pub(super) pending: PendingCalls,
    pub(super) feed: ChangeFeed,
    pub(super) limits: StoreLimits,
    pub(super) log: SharedLog,
    pub(super) restoration: Restoration,
    name: Box<str>,
    sharing: OnceLock<Arc<Sharing>>,
    pub(super) observer: Arc<dyn StoreObserver>,
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Store {
    /// An empty store without a log.
    #[must_use]
    pub fn new(limits: StoreLimits) -> Self {
        Self::with(limits, SharedLog::default(), Arc::new(NoObserver))
    }

    /// An empty store that appends its records to `log` and reports to `observer`.
    #[must_use]
    pub fn with(limits: StoreLimits, log: SharedLog, observer: Arc<dyn StoreObserver>) -> Self {
        let name = random_store_id();
        let (sessions, order, pending, feed) =
            (DashMap::with_shard_amount(SHARDS), Mutex::default(), PendingCalls::default(), ChangeFeed::default());
        let (restoration, evicting) = (Restoration::default(), AtomicBool::new(false));
        Self {
            sessions,
            order,
            evicting,
            pending,
            feed,
            limits,
            log,
            restoration,
            name,
            sharing: OnceLock::new(),
            observer,
        }
    }

    /// The log, once it is open.
    #[must_use]
    pub fn log(&self) -> Option<&dyn RecordLog> {
        self.log.get()
    }

    /// The id of the store. Cursors contain it, because another store numbers its finished paths again from 1.
    #[must_use]
    pub fn name(&self) -> &str {
        self.log.get().map_or(&self.name, RecordLog::id)
    }

    /// The process that counts the policy epochs of new turns.
    pub(super) fn process(&self) -> Option<ProcessId> {
        self.name().parse().ok()
    }

    pub(super) fn touch(&self, session: &Arc<Session>, now: Instant) {
        self.order().touch(session, now);
    }

    pub(super) fn restore_finished(&self, number: u64, session: Arc<str>) {
        self.order().restore_finished(number, session);
    }

    pub(super) fn restore_deleted(&self, id: &str) {
        if let Some(session) = self.session(id) {
            let record = session.record(Change::Deleted);
            drop(self.forget(&mut self.order(), &session, Some(record), |_| true));
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

    /// Evicted sessions, the latest last. Older ones are only counted.
    #[must_use]
    pub fn evicted(&self) -> Vec<EvictedSession> {
        self.order().evicted.iter().cloned().collect()
    }

    /// The eviction of a session, if it is remembered.
    #[must_use]
    pub fn eviction_of(&self, id: &str) -> Option<EvictedSession> {
        self.order().evicted.iter().rev().find(|evicted| &*evicted.session == id).cloned()
    }

    /// The numbers of sessions and bytes.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        (self.sessions.len(), self.bytes_of(&self.order()))
    }

    /// The bytes of all sessions and of the changes that they lack.
    pub(super) fn bytes_of(&self, order: &Order) -> u64 {
        u64::try_from(order.bytes).unwrap_or(0) + self.missing_bytes()
    }

    fn missing_bytes(&self) -> u64 {
        self.sharing().map_or(0, |sharing| sharing.missing_bytes())
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

    /// Enters a session only if it exists. Otherwise the call is pending until [`Store::end_pending`].
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

    /// Ends a pending call: it has entered its session, or has ended without one.
    pub(super) fn end_pending(&self, id: &str) {
        self.pending.remove(id);
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
        let record = |turn: &Arc<Turn>| {
            self.observer.turn_committed(turn);
            let ack = self.log.append(session.record(Change::Turn(Arc::clone(turn))));
            self.feed.send_turn(&session.id, turn);
            (Some(turn.id), ack)
        };
        let Some((bytes, recorded)) = session.commit(draft, record) else {
            self.observer.turn_dropped();
            return (None, Ack::done());
        };
        self.order().add(bytes);
        recorded
    }

    /// Marks a session as incomplete: a generation was not recorded.
    pub fn mark_incomplete(self: &Arc<Self>, id: &Arc<str>) {
        if let Some(sharing) = self.sharing() {
            return sharing.mark_incomplete(self, id);
        }
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
    pub fn delete(&self, id: &str) -> Option<Ack> {
        let session = self.session(id)?;
        let record = session.record(Change::Deleted);
        self.forget(&mut self.order(), &session, Some(record), |_| true)
    }

    /// Shares all sessions with other processes through `ledger` from now on.
    ///
    /// # Panics
    /// If it was called before.
    pub fn share(&self, ledger: Arc<dyn Ledger>, limits: SharingLimits) {
        let sharing = Arc::new(Sharing::new(ledger, limits));
        self.sharing.set(sharing).expect("sessions are shared once");
    }

    /// How the sessions are shared; `None` if they are not.
    pub(crate) fn sharing(&self) -> Option<&Arc<Sharing>> {
        self.sharing.get()
    }

    /// Reads what other processes have appended to these sessions. Does nothing if sessions are not shared.
    ///
    /// # Errors
    /// When the ledger fails. What is in memory may be outdated then.
    pub async fn refresh(self: &Arc<Self>, names: impl IntoIterator<Item: AsRef<str>>) -> Result<(), LedgerError> {
        let Some(sharing) = self.sharing() else { return Ok(()) };
        for name in names {
            if is_name(name.as_ref()) {
                sharing.refresh(self, &name.as_ref().into()).await?;
                sharing.check_spilled(name.as_ref())?;
            }
        }
        Ok(())
    }

    /// Counts of a process that shares its sessions, and whether its ledger fails now.
    #[must_use]
    pub fn sharing_counts(&self) -> Option<(&SharingCounts, bool)> {
        self.sharing().map(|sharing| (&sharing.counts, sharing.is_any_down()))
    }

    /// Works on shared sessions until it is dropped: appends detached turns, heals, and finishes idle sessions. Returns at once if sessions
    /// are not shared.
    pub async fn run_sharing(self: Arc<Self>) {
        if let Some(sharing) = self.sharing() {
            Arc::clone(sharing).run(Arc::clone(&self)).await;
        }
    }

    /// The session of this name, which is created with this birth if it does not exist.
    pub(super) fn session_of(&self, name: &Arc<str>, birth: Uid) -> Arc<Session> {
        let session = self.enter_as(name, || birth);
        session.state().running -= 1;
        self.touch(&session, Instant::now());
        session
    }

    /// Removes a session from memory only.
    pub(super) fn remove_shared(&self, session: &Arc<Session>) {
        self.forget(&mut self.order(), session, None, |_| true);
    }

    /// Counts the bytes by which a session grows, unless it was evicted.
    pub(super) fn add_shared_bytes(&self, session: &Session, bytes: i64) {
        let mut order = self.order();
        if !session.state().removed {
            order.change_session(session, bytes);
        }
    }

    /// Notes whether the shared ledger lacks changes of a session. It is not evicted then.
    pub(super) fn set_detached(&self, session: &Arc<Session>, is_detached: bool) {
        let mut order = self.order();
        let bytes = {
            let mut state = session.state();
            if std::mem::replace(&mut state.is_detached, is_detached) == is_detached || state.removed {
                return;
            }
            state.bytes
        };
        match is_detached {
            true => order.pin(session, bytes),
            false => order.unpin(session, bytes, Instant::now()),
        }
    }

    /// The bytes of the sessions of which the shared ledger lacks changes, and of the changes that these lack.
    #[must_use]
    pub fn detached_bytes(&self) -> u64 {
        self.order().pinned_bytes() + self.missing_bytes()
    }

    /// The bytes that they may take. The rest is for sessions of partitions that work.
    pub(super) fn detached_limit(&self) -> u64 {
        self.limits.bytes / 4 * 3
    }

    /// Whether they take all of these, so that no further turn is kept that the ledger lacks.
    pub(super) fn is_full_of_detached(&self) -> bool {
        self.detached_bytes() > self.detached_limit()
    }

    /// Reports a turn of this process.
    pub(super) fn announce(&self, session: &Arc<str>, turn: &Arc<Turn>) {
        self.observer.turn_committed(turn);
        self.feed.send_turn(session, turn);
    }

    /// Writes a turn that is not in the shared ledger to the local log, with its whole prompt. Without a birth, the turn is in the log
    /// only, and its own uid is the birth.
    pub(super) fn log_detached(&self, session: &Arc<str>, birth: Option<Uid>, id: u32, draft: &Draft) -> Ack {
        let (prompt, cause) = (draft.prompt.clone().unwrap_or_default(), Cause::NewConversation);
        let cause = if draft.prompt.is_some() { cause } else { Cause::Unplaced };
        let turn = Arc::new(draft.clone().place(id, None, cause, prompt));
        let birth = birth.or(turn.about.uid).expect("a placed turn has a uid");
        self.log.append(Record { session: Arc::clone(session), birth, change: Change::Turn(turn) })
    }

    /// Notes in the local log that no turn of the session is detached any more.
    pub(super) fn end_detached(&self, name: &Arc<str>) {
        self.log.append_unacknowledged(ProcessRecord::Settled { session: Arc::clone(name) });
    }

    /// Appends what the shared ledger lacks.
    pub async fn settle_shared(self: &Arc<Self>) {
        if let Some(sharing) = self.sharing() {
            sharing.settle_all(self).await;
        }
    }

    /// The names of the sessions with running calls, in a store that shares its sessions.
    pub(super) fn pending_names(&self) -> Vec<Arc<str>> {
        self.pending.names()
    }

    pub(super) fn is_pending(&self, name: &str) -> bool {
        self.pending.has(name)
    }

    /// Resolves when all records so far are on disk.
    #[must_use]
    pub fn written(&self) -> Ack {
        self.log.written()
    }

    /// Receives each turn from now on. A receiver that is more than 1,024 turns behind misses some and gets their number.
    #[must_use]
    pub fn watch_turns(&self) -> broadcast::Receiver<CommittedTurn> {
        self.feed.watch_turns()
    }

    /// Watches the number of the last finished path.
    #[must_use]
    pub fn watch_finished(&self) -> watch::Receiver<u64> {
        self.feed.watch_finished()
    }

    /// The number of the last finished path.
    #[must_use]
    pub fn last_finished(&self) -> u64 {
        self.order().last_finished()
    }
}

impl Session {
    /// Whether the session has more than `turns` turns.
    pub(super) fn is_longer_than(&self, turns: u32) -> bool {
        self.state().forest.next_id() > turns
    }

    pub(super) fn tick(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }
}
