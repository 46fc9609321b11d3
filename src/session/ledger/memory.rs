// SPDX-License-Identifier: Apache-2.0
//! A ledger in memory with the semantics of the real one, for tests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{
    Append, Appended, Deletion, Entry, FinishedEntry, FinishedPage, HeldImages, IMAGE_OVERHEAD, ImageKey, LastUse,
    Ledger, LedgerError, LedgerFuture, ListOrder, PARTITIONS, Position, StreamId, Tail, partition_of,
};
use crate::images::ImageDigest;
use crate::session::Uid;

/// Entries that one fetch returns at most.
pub(crate) const PAGE: usize = 256;

/// The time at which a ledger begins, in milliseconds of its clock: a day.
const EPOCH_MS: u64 = 86_400_000;

/// The ledger.
#[derive(Debug)]
pub(crate) struct MemoryLedger {
    // locked for one operation, never across an await
    state: Mutex<State>,
    begun: Instant,
    /// Incremented by tests that lose entries.
    pub disruptions: watch::Sender<u64>,
    /// Partitions that fail, and how. Each is on its own primary then.
    pub failing: Mutex<BTreeMap<u16, LedgerError>>,
    /// The id of the fleet cannot be read.
    pub is_fleet_down: AtomicBool,
    /// Another build has described it.
    pub has_other_schema: AtomicBool,
    /// Bytes of all pictures.
    pub image_limit: AtomicU64,
    /// Milliseconds for which a picture stays after its last use.
    pub image_ttl_ms: AtomicU64,
    /// How the operations on pictures fail.
    pub image_failure: Mutex<Option<LedgerError>>,
}

/// The data of the ledger. A copy is a replica.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub lists: BTreeMap<Arc<str>, Vec<Entry>>,
    pub finished: BTreeMap<u16, Vec<FinishedEntry>>,
    pub used: BTreeMap<u16, BTreeMap<Arc<str>, u64>>,
    pub listed: BTreeMap<u16, BTreeMap<Arc<str>, u64>>,
    pub asked: HashMap<u16, u64>,
    pub claims: HashMap<u16, (Uid, u64)>,
    /// The births of deleted sessions, and when they were deleted.
    pub deleted: BTreeMap<Arc<str>, (Uid, u64)>,
    pub images: BTreeMap<ImageDigest, StoredImage>,
    pub last_id: StreamId,
    /// Incremented when all data is lost.
    pub fleet: u64,
}

/// A picture.
#[derive(Debug, Clone)]
pub(crate) struct StoredImage {
    pub bytes: Bytes,
    /// The sessions that use it, and when the use of each ends.
    pub sessions: BTreeMap<Uid, u64>,
    pub expires_ms: u64,
}

impl MemoryLedger {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            begun: Instant::now(),
            disruptions: watch::Sender::new(0),
            failing: Mutex::default(),
            is_fleet_down: AtomicBool::new(false),
            has_other_schema: AtomicBool::new(false),
            image_limit: AtomicU64::new(u64::MAX),
            image_ttl_ms: AtomicU64::new(u64::MAX),
            image_failure: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn failure<T: Send + 'static>(&self, partition: u16) -> Option<LedgerFuture<T>> {
        let error = self.failing.lock().get(&partition)?.clone();
        Some(Box::pin(std::future::ready(Err(error))))
    }

    /// When something was so long ago. The clock of the ledger begins late enough for any time of a test.
    fn before_ms(&self, ago: Duration) -> u64 {
        self.elapsed_ms().saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX))
    }

    /// The data without expired pictures, the time, and when a picture that is used now expires.
    fn live_images(&self) -> Result<(MutexGuard<'_, State>, u64, u64), LedgerError> {
        if let Some(error) = &*self.image_failure.lock() {
            return Err(error.clone());
        }
        let (now, mut state) = (self.elapsed_ms(), self.state());
        state.images.retain(|_, image| image.expires_ms > now);
        Ok((state, now, now.saturating_add(self.image_ttl_ms.load(Ordering::Relaxed))))
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).expect("tests are short") + EPOCH_MS
    }
}

fn ready<T: Send + 'static>(value: T) -> LedgerFuture<T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl StoredImage {
    fn hold(&mut self, session: Uid, now_ms: u64, expires_ms: u64) {
        self.end_uses(now_ms);
        self.sessions.insert(session, expires_ms);
        self.expires_ms = expires_ms;
    }

    fn end_uses(&mut self, now_ms: u64) {
        self.sessions.retain(|_, until_ms| *until_ms > now_ms);
    }
}

impl State {
    /// The bytes of all pictures.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.images.values().map(|image| image.bytes.len() as u64 + IMAGE_OVERHEAD).sum()
    }

    /// Whether the list is exactly up to this position.
    fn ends_at(list: &[Entry], after: Position) -> bool {
        list.len() as u64 == after.length && Self::begins_with(list, after)
    }

    /// Whether the list begins with the entries up to this position.
    fn begins_with(list: &[Entry], after: Position) -> bool {
        let last = usize::try_from(after.length - 1).ok().and_then(|at| list.get(at));
        list.first().is_some_and(|first| first.uid == after.birth) && last.is_some_and(|last| last.uid == after.last)
    }
}

impl Ledger for MemoryLedger {
    fn fleet(&self) -> LedgerFuture<Arc<str>> {
        if self.is_fleet_down.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(LedgerError::Unavailable("the fleet is down".into()))));
        }
        if self.has_other_schema.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(LedgerError::OtherSchema("9".into()))));
        }
        ready(format!("{:016x}", self.state().fleet).into())
    }

    fn fetch(&self, session: &Arc<str>, after: Option<Position>) -> LedgerFuture<Option<Tail>> {
        if let Some(failure) = self.failure(partition_of(session)) {
            return failure;
        }
        let state = self.state();
        let Some(list) = state.lists.get(session) else { return ready(None) };
        let start = after.filter(|after| State::begins_with(list, *after)).map_or(0, |after| after.length);
        let from = usize::try_from(start).expect("it fits");
        let entries = list[from..].iter().take(PAGE).cloned().collect();
        ready(Some(Tail { start, length: list.len() as u64, entries }))
    }

    fn append(&self, append: Append) -> LedgerFuture<Appended> {
        if let Some(failure) = self.failure(partition_of(&append.session)) {
            return failure;
        }
        let now = self.elapsed_ms();
        let mut state = self.state();
        let Append { session, after, entries, finished, in_use, begun_ago } = append;
        let list = state.lists.get(&session);
        let is_deleted =
            |(birth, deleted_ms): &(Uid, u64)| *birth == entries[0].uid || self.before_ms(begun_ago) < *deleted_ms;
        match (list, after) {
            (None, None) if state.deleted.get(&session).is_some_and(is_deleted) => return ready(Appended::Gone),
            (None, None) => {}
            (Some(_), None) => return ready(Appended::Behind),
            (None, Some(_)) => return ready(Appended::Gone),
            (Some(list), Some(after)) if list[0].uid != after.birth => return ready(Appended::Gone),
            (Some(list), Some(after)) if !State::ends_at(list, after) => return ready(Appended::Behind),
            (Some(_), Some(_)) => {}
        }
        let list = state.lists.entry(Arc::clone(&session)).or_default();
        list.extend(entries);
        let birth = list[0].uid;
        let partition = partition_of(&session);
        for leaf in finished {
            let last = state.last_id;
            let id = if now > last.ms { StreamId { ms: now, seq: 0 } } else { StreamId { seq: last.seq + 1, ..last } };
            state.last_id = id;
            let entry = FinishedEntry { id, session: Arc::clone(&session), birth, leaf };
            state.finished.entry(partition).or_default().push(entry);
        }
        state.listed.entry(partition).or_default().insert(Arc::clone(&session), now);
        let used = state.used.entry(partition).or_default();
        if in_use {
            used.insert(session, now);
        } else {
            used.remove(&session);
        }
        ready(Appended::Stored { replicated: true })
    }

    fn is_replicated(&self, _session: &Arc<str>) -> LedgerFuture<bool> {
        ready(true)
    }

    fn delete(&self, session: &Arc<str>, birth: Uid) -> LedgerFuture<bool> {
        if let Some(failure) = self.failure(partition_of(session)) {
            return failure;
        }
        let mut state = self.state();
        let is_same = state.lists.get(session).is_some_and(|list| list[0].uid == birth);
        if is_same {
            state.lists.remove(session);
            state.used.entry(partition_of(session)).or_default().remove(session);
            state.listed.entry(partition_of(session)).or_default().remove(session);
        }
        state.deleted.insert(Arc::clone(session), (birth, self.elapsed_ms()));
        ready(is_same)
    }

    fn deletion(&self, session: &Arc<str>) -> LedgerFuture<Option<Deletion>> {
        if let Some(failure) = self.failure(partition_of(session)) {
            return failure;
        }
        let now = self.elapsed_ms();
        let deletion = |(birth, deleted_ms): &(Uid, u64)| Deletion {
            birth: *birth,
            ago: Duration::from_millis(now.saturating_sub(*deleted_ms)),
        };
        ready(self.state().deleted.get(session).map(deletion))
    }

    fn restore_deletion(&self, session: &Arc<str>, birth: Uid, deleted_ms: u64) -> LedgerFuture<()> {
        if let Some(failure) = self.failure(partition_of(session)) {
            return failure;
        }
        let mut state = self.state();
        if state.deleted.get(session).is_none_or(|known| known.1 < deleted_ms) {
            state.deleted.insert(Arc::clone(session), (birth, deleted_ms));
        }
        ready(())
    }

    fn now_ms(&self, partition: u16) -> LedgerFuture<u64> {
        self.failure(partition).unwrap_or_else(|| ready(self.elapsed_ms()))
    }

    fn finished(&self, partition: u16, after: StreamId, limit: usize) -> LedgerFuture<FinishedPage> {
        if let Some(failure) = self.failure(partition) {
            return failure;
        }
        let state = self.state();
        let all = state.finished.get(&partition).map_or(&[][..], Vec::as_slice);
        let entries = all.iter().filter(|entry| entry.id > after).take(limit).cloned().collect();
        ready(FinishedPage { entries, trimmed: false })
    }

    fn renew(&self, sessions: Vec<Arc<str>>) -> LedgerFuture<()> {
        let now = self.elapsed_ms();
        let mut state = self.state();
        for session in sessions {
            if state.lists.contains_key(&session) {
                let partition = partition_of(&session);
                state.listed.entry(partition).or_default().insert(Arc::clone(&session), now);
                state.used.entry(partition).or_default().insert(session, now);
            }
        }
        ready(())
    }

    fn idle(&self, partition: u16, idle: Duration, limit: usize) -> LedgerFuture<Vec<LastUse>> {
        let now = self.elapsed_ms();
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut state = self.state();
        if state.asked.get(&partition).is_some_and(|until| *until > now) {
            return ready(Vec::new());
        }
        state.asked.insert(partition, now.saturating_add((idle / 10).max(1)));
        let Some(used) = state.used.get(&partition) else { return ready(Vec::new()) };
        let is_idle = |used: &u64| used.saturating_add(idle) <= now;
        let mut found: Vec<LastUse> = used
            .iter()
            .filter(|(_, used)| is_idle(used))
            .map(|(session, used)| LastUse { session: Arc::clone(session), used_ms: *used })
            .collect();
        found.sort_by(|a, b| (a.used_ms, &a.session).cmp(&(b.used_ms, &b.session)));
        found.truncate(limit);
        ready(found)
    }

    fn end_use(&self, idle: LastUse) -> LedgerFuture<()> {
        let mut state = self.state();
        let used = state.used.entry(partition_of(&idle.session)).or_default();
        if used.get(&idle.session) == Some(&idle.used_ms) {
            used.remove(&idle.session);
        }
        ready(())
    }

    fn list(&self, partition: u16, order: ListOrder, from: Option<u64>, limit: usize) -> LedgerFuture<Vec<LastUse>> {
        let state = self.state();
        if let Some(failure) = self.failure(partition) {
            return failure;
        }
        let Some(listed) = state.listed.get(&partition) else { return ready(Vec::new()) };
        let mut all: Vec<_> = listed.iter().map(|(session, used)| (*used, Arc::clone(session))).collect();
        all.sort();
        if order == ListOrder::Newest {
            all.reverse();
        }
        let is_listed = |used: u64| match order {
            ListOrder::Oldest => from.is_none_or(|from| used >= from),
            ListOrder::Newest => from.is_none_or(|from| used <= from),
        };
        let listed = all.into_iter().filter(|(used, _)| is_listed(*used)).take(limit);
        ready(listed.map(|(used_ms, session)| LastUse { session, used_ms }).collect())
    }

    fn claim(&self, partition: u16, owner: Uid, lease: Duration) -> LedgerFuture<bool> {
        if let Some(failure) = self.failure(partition) {
            return failure;
        }
        let now = self.elapsed_ms();
        let mut state = self.state();
        let is_free = state.claims.get(&partition).is_none_or(|(by, until)| *by == owner || *until <= now);
        if is_free {
            let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
            state.claims.insert(partition, (owner, now.saturating_add(lease)));
        }
        ready(is_free)
    }

    fn hold_images(&self, session: Uid, images: Vec<ImageKey>) -> LedgerFuture<HeldImages> {
        let (mut state, now_ms, expires_ms) = match self.live_images() {
            Ok(images) => images,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let hold = |image: ImageKey| {
            let Some(found) = state.images.get_mut(&image.digest) else { return false };
            found.hold(session, now_ms, expires_ms);
            true
        };
        let present = images.into_iter().map(hold).collect();
        let free = self.image_limit.load(Ordering::Relaxed).saturating_sub(state.image_bytes());
        ready(HeldImages { present, free })
    }

    fn put_image(&self, session: Uid, image: ImageKey, bytes: Bytes) -> LedgerFuture<bool> {
        let (mut state, now_ms, expires_ms) = match self.live_images() {
            Ok(images) => images,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let limit = self.image_limit.load(Ordering::Relaxed);
        let all = state.image_bytes() + image.size + IMAGE_OVERHEAD;
        if !state.images.contains_key(&image.digest) && all > limit {
            return ready(false);
        }
        let none = || StoredImage { bytes, sessions: BTreeMap::new(), expires_ms };
        let stored = state.images.entry(image.digest).or_insert_with(none);
        stored.hold(session, now_ms, expires_ms);
        ready(true)
    }

    fn images(&self, images: Vec<ImageKey>) -> LedgerFuture<Vec<Option<Bytes>>> {
        match self.live_images() {
            // one at a time
            Ok((state, ..)) => {
                ready(images.iter().take(1).map(|image| Some(state.images.get(&image.digest)?.bytes.clone())).collect())
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn release_images(&self, session: Option<Uid>, images: Vec<ImageKey>) -> LedgerFuture<()> {
        let (mut state, now_ms, _) = match self.live_images() {
            Ok(images) => images,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        for image in images {
            let Some(found) = state.images.get_mut(&image.digest) else { continue };
            found.end_uses(now_ms);
            found.sessions.retain(|by, _| session.is_some_and(|session| session != *by));
            if found.sessions.is_empty() {
                state.images.remove(&image.digest);
            }
        }
        ready(())
    }

    fn probe(&self, partition: u16) -> LedgerFuture<()> {
        self.failure(partition).unwrap_or_else(|| ready(()))
    }

    fn partitions_by_primary(&self) -> Vec<Vec<u16>> {
        let failing = self.failing.lock();
        let (own, shared) = (0..PARTITIONS).partition::<Vec<u16>, _>(|partition| failing.contains_key(partition));
        own.into_iter().map(|partition| vec![partition]).chain([shared]).collect()
    }

    fn disruptions(&self) -> watch::Receiver<u64> {
        self.disruptions.subscribe()
    }
}
