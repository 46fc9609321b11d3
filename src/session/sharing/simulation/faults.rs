// SPDX-License-Identifier: Apache-2.0
//! A ledger that fails: the connection of one process to a server with a replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::random::Random;
use crate::session::Uid;
use crate::session::ledger::memory::{MemoryLedger, State};
use crate::session::ledger::{
    Append, Appended, Deletion, FinishedPage, HeldImages, ImageKey, LastUse, Ledger, LedgerError, LedgerFuture,
    ListOrder, Position, StreamId, Tail,
};

/// What a failover loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// There is no failover.
    None,
    /// Entries that no replica has confirmed.
    Unconfirmed,
    /// Also entries that were acknowledged.
    Acknowledged,
    /// Everything.
    All,
}

impl Loss {
    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "unconfirmed" => Self::Unconfirmed,
            "acknowledged" => Self::Acknowledged,
            "all" => Self::All,
            _ => Self::None,
        }
    }
}

/// The server and its replica.
#[derive(Debug)]
pub(super) struct Server {
    pub memory: MemoryLedger,
    loss: Loss,
    /// The data of the replica.
    replica: Mutex<State>,
    random: Mutex<Random>,
    /// Appends fail, as without memory.
    refuses: AtomicBool,
    /// The replica gets nothing.
    lags: AtomicBool,
    /// The number of failovers.
    pub failovers: AtomicU64,
    /// When all data was lost.
    pub flushes: Mutex<Vec<Instant>>,
    /// Turns that the replica lacked when a local log forgot them, and their sessions.
    pub forgotten: Mutex<Vec<(Arc<str>, Uid)>>,
}

impl Server {
    pub(super) fn new(loss: Loss, random: Random) -> Self {
        Self {
            memory: MemoryLedger::new(),
            loss,
            replica: Mutex::default(),
            random: Mutex::new(random),
            refuses: AtomicBool::new(false),
            lags: AtomicBool::new(false),
            failovers: AtomicU64::new(0),
            flushes: Mutex::default(),
            forgotten: Mutex::default(),
        }
    }

    /// Copies all data to the replica.
    fn replicate(&self) {
        *self.replica.lock() = self.memory.state().clone();
    }

    /// A local log forgets these turns of a session.
    pub(super) fn forget(&self, session: &Arc<str>, turns: impl Iterator<Item = Uid>) {
        let replica = self.replica.lock();
        let list = replica.lists.get(session).map_or(&[][..], Vec::as_slice);
        let lost = turns.filter(|turn| list.iter().all(|entry| entry.uid != *turn));
        let mut forgotten = self.forgotten.lock();
        forgotten.extend(lost.map(|turn| (Arc::clone(session), turn)));
    }

    /// Whether the replica gets all data now. With [`Loss::Acknowledged`] it is confirmed without being true.
    fn confirms(&self) -> bool {
        let keeps_up = self.random.lock().chance(700);
        let replicates = keeps_up && !self.lags.load(Ordering::Relaxed);
        if replicates {
            self.replicate();
        }
        replicates || !matches!(self.loss, Loss::Unconfirmed)
    }

    /// The replica becomes the primary.
    pub(super) fn fail_over(&self) {
        let mut state = match self.loss {
            Loss::None => return,
            Loss::All => State { fleet: self.memory.state().fleet + 1, ..State::default() },
            Loss::Unconfirmed | Loss::Acknowledged => self.replica.lock().clone(),
        };
        std::mem::swap(&mut *self.memory.state(), &mut state);
        self.replicate();
        self.failovers.fetch_add(1, Ordering::Relaxed);
        if self.loss == Loss::All {
            self.flushes.lock().push(Instant::now());
        }
        self.memory.disruptions.send_modify(|count| *count += 1);
    }

    /// Whether a failover loses what no replica has confirmed, and only that.
    pub(super) fn loses_unconfirmed(&self) -> bool {
        self.loss == Loss::Unconfirmed
    }

    /// Whether a failover loses what was acknowledged.
    pub(super) fn loses_confirmed(&self) -> bool {
        matches!(self.loss, Loss::Acknowledged | Loss::All)
    }

    pub(super) fn set_lags(&self, lags: bool) {
        self.lags.store(lags, Ordering::Relaxed);
    }

    pub(super) fn set_refuses(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }
}

/// The connection of one process.
#[derive(Debug)]
pub(super) struct Connection {
    server: Arc<Server>,
    random: Arc<Mutex<Random>>,
    /// The process has crashed: nothing is sent or received any more.
    is_dead: Arc<AtomicBool>,
    /// The process cannot reach the server.
    is_cut: Arc<AtomicBool>,
    /// Faults have ended.
    is_calm: Arc<AtomicBool>,
}

impl Connection {
    pub(super) fn new(server: &Arc<Server>, random: Random, is_calm: &Arc<AtomicBool>) -> Self {
        Self {
            server: Arc::clone(server),
            random: Arc::new(Mutex::new(random)),
            is_dead: Arc::default(),
            is_cut: Arc::default(),
            is_calm: Arc::clone(is_calm),
        }
    }

    /// Ends the process.
    pub(super) fn kill_switch(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_dead)
    }

    /// Cuts the process off.
    pub(super) fn cut_switch(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_cut)
    }

    /// Runs an operation with delays and losses. An append returns whether replicas confirm it.
    fn call<T: Send + 'static>(
        &self,
        is_append: bool,
        operation: impl Fn(&MemoryLedger) -> LedgerFuture<T> + Send + 'static,
        confirm: impl Fn(T, bool) -> T + Send + 'static,
    ) -> LedgerFuture<T> {
        let (server, random) = (Arc::clone(&self.server), Arc::clone(&self.random));
        let (is_dead, is_cut) = (Arc::clone(&self.is_dead), Arc::clone(&self.is_cut));
        let calm = self.is_calm.load(Ordering::Relaxed);
        let draw = move |end| random.lock().below(end);
        Box::pin(async move {
            let unavailable = || LedgerError::Unavailable("simulated".into());
            let fault = if calm { 1000 } else { draw(1000) };
            sleep(Duration::from_micros(100 + draw(2000))).await;
            if is_cut.load(Ordering::Relaxed) || fault < 10 {
                return Err(unavailable()); // the request was lost
            }
            if fault < 15 {
                sleep(Duration::from_secs(1)).await; // a slow request
            }
            if is_dead.load(Ordering::Relaxed) || fault == 15 {
                std::future::pending::<()>().await; // no answer ever, and the request was lost
            }
            if is_append && server.refuses.load(Ordering::Relaxed) {
                return Err(LedgerError::Refused("out of memory".into()));
            }
            let result = operation(&server.memory).await?;
            let confirmed = server.confirms();
            sleep(Duration::from_micros(100 + draw(2000))).await;
            if is_dead.load(Ordering::Relaxed) || (16..20).contains(&fault) {
                std::future::pending::<()>().await; // no answer ever
            }
            if is_cut.load(Ordering::Relaxed) || (20..30).contains(&fault) {
                return Err(unavailable()); // the answer was lost
            }
            Ok(confirm(result, confirmed))
        })
    }

    fn plain<T: Send + 'static>(
        &self,
        operation: impl Fn(&MemoryLedger) -> LedgerFuture<T> + Send + 'static,
    ) -> LedgerFuture<T> {
        self.call(false, operation, |result, _| result)
    }
}

impl Ledger for Connection {
    fn fleet(&self) -> LedgerFuture<Arc<str>> {
        self.plain(Ledger::fleet)
    }

    fn fetch(&self, session: &Arc<str>, after: Option<Position>) -> LedgerFuture<Option<Tail>> {
        let session = Arc::clone(session);
        self.plain(move |memory| memory.fetch(&session, after))
    }

    fn append(&self, append: Append) -> LedgerFuture<Appended> {
        let confirm = |result, confirmed| match result {
            Appended::Stored { .. } => Appended::Stored { replicated: confirmed },
            other => other,
        };
        self.call(true, move |memory| memory.append(append.clone()), confirm)
    }

    fn is_replicated(&self, session: &Arc<str>) -> LedgerFuture<bool> {
        let session = Arc::clone(session);
        self.call(false, move |memory| memory.is_replicated(&session), |_, confirmed| confirmed)
    }

    fn delete(&self, session: &Arc<str>, birth: Uid) -> LedgerFuture<bool> {
        let session = Arc::clone(session);
        self.plain(move |memory| memory.delete(&session, birth))
    }

    fn deletion(&self, session: &Arc<str>) -> LedgerFuture<Option<Deletion>> {
        let session = Arc::clone(session);
        self.plain(move |memory| memory.deletion(&session))
    }

    fn restore_deletion(&self, session: &Arc<str>, birth: Uid, deleted_ms: u64) -> LedgerFuture<()> {
        let session = Arc::clone(session);
        self.plain(move |memory| memory.restore_deletion(&session, birth, deleted_ms))
    }

    fn now_ms(&self, partition: u16) -> LedgerFuture<u64> {
        self.plain(move |memory| memory.now_ms(partition))
    }

    fn finished(&self, partition: u16, after: StreamId, limit: usize) -> LedgerFuture<FinishedPage> {
        self.plain(move |memory| memory.finished(partition, after, limit))
    }

    fn renew(&self, sessions: Vec<Arc<str>>) -> LedgerFuture<()> {
        self.plain(move |memory| memory.renew(sessions.clone()))
    }

    fn idle(&self, partition: u16, idle: Duration, limit: usize) -> LedgerFuture<Vec<LastUse>> {
        let is_used = self.server.memory.state().used.get(&partition).is_some_and(|used| !used.is_empty());
        if self.is_calm.load(Ordering::Relaxed) || !is_used {
            // there are many of them
            return self.server.memory.idle(partition, idle, limit);
        }
        self.plain(move |memory| memory.idle(partition, idle, limit))
    }

    fn end_use(&self, idle: LastUse) -> LedgerFuture<()> {
        self.plain(move |memory| memory.end_use(idle.clone()))
    }

    fn list(&self, partition: u16, order: ListOrder, from: Option<u64>, limit: usize) -> LedgerFuture<Vec<LastUse>> {
        self.plain(move |memory| memory.list(partition, order, from, limit))
    }

    fn claim(&self, partition: u16, owner: Uid, lease: Duration) -> LedgerFuture<bool> {
        self.plain(move |memory| memory.claim(partition, owner, lease))
    }

    fn hold_images(&self, session: Uid, images: Vec<ImageKey>) -> LedgerFuture<HeldImages> {
        self.plain(move |memory| memory.hold_images(session, images.clone()))
    }

    fn put_image(&self, session: Uid, image: ImageKey, bytes: Bytes) -> LedgerFuture<bool> {
        self.call(true, move |memory| memory.put_image(session, image, bytes.clone()), |is_stored, _| is_stored)
    }

    fn images(&self, images: Vec<ImageKey>) -> LedgerFuture<Vec<Option<Bytes>>> {
        self.plain(move |memory| memory.images(images.clone()))
    }

    fn release_images(&self, session: Option<Uid>, images: Vec<ImageKey>) -> LedgerFuture<()> {
        self.plain(move |memory| memory.release_images(session, images.clone()))
    }

    fn probe(&self, partition: u16) -> LedgerFuture<()> {
        self.plain(move |memory| memory.probe(partition))
    }

    fn partitions_by_primary(&self) -> Vec<Vec<u16>> {
        self.server.memory.partitions_by_primary()
    }

    fn disruptions(&self) -> watch::Receiver<u64> {
        self.server.memory.disruptions()
    }
}
