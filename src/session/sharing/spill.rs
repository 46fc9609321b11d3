// SPDX-License-Identifier: Apache-2.0
//! Turns that are in the local log only.
//!
//! While the ledger fails, all changes stay in memory until it has them. When they take all of the memory that sessions may take, further
//! turns are written to the local log and not kept. When the ledger works again, they are read back, a part at a time.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::Sharing;
use super::missing::{Missing, MissingChange};
use crate::session::ledger::{Change, LedgerError, LogRecord, ProcessRecord, Record, SharedLog};
use crate::session::{Draft, Turn, Uid};

/// The turns of a session that are in the local log only.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct SpilledTurns {
    bytes: u64,
    /// The turns that no process has in memory. A log that has fewer is damaged.
    turns: u64,
}

impl Sharing {
    /// Notes that a turn of a session is in the local log only.
    pub(super) fn spill(&self, name: &Arc<str>, draft: &Draft) {
        if self.counts.spilled.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(
                session = &**name,
                "turns are in the local log only: the memory is full of turns that the shared ledger lacks"
            );
        }
        self.note_spilled(name, draft.bytes(), 1);
    }

    /// Notes that turns of a session are to be read back from the local log; `only_there` of them are in no process.
    pub(super) fn note_spilled(&self, name: &Arc<str>, bytes: u64, only_there: u64) {
        let mut spilled = self.spilled.lock();
        let session = spilled.entry(Arc::clone(name)).or_default();
        session.bytes += bytes;
        session.turns += only_there;
    }

    /// Whether the local log has turns of the session that are not in memory.
    pub(super) fn is_spilled(&self, name: &str) -> bool {
        self.spilled.lock().contains_key(name)
    }

    /// Fails if the session in memory lacks turns that the local log has: it must not be taken for the whole session.
    pub(in crate::session) fn check_spilled(&self, name: &str) -> Result<(), LedgerError> {
        if self.is_spilled(name) { Err(LedgerError::Unconfirmed) } else { Ok(()) }
    }

    /// Reads the spilled turns of some sessions back, whose partitions work, as far as the memory has room.
    pub(super) async fn recall(&self) {
        let mut left = self.detached_limit().saturating_sub(self.detached_bytes());
        if left < self.detached_limit() / 2 {
            // the ledger has not taken those that were read back before
            return;
        }
        let mut names = BTreeMap::new();
        for (name, session) in self.spilled.lock().iter().filter(|(name, _)| !self.is_down(name)) {
            // one session may be larger than the room
            if session.bytes > left && !names.is_empty() {
                continue;
            }
            left = left.saturating_sub(session.bytes);
            names.insert(Arc::clone(name), *session);
        }
        if names.is_empty() {
            return;
        }
        let (log, wanted) = (self.store.log.clone(), names.keys().map(Arc::clone).collect());
        let sum = Arc::clone(&self.store.missing_bytes);
        let read = tokio::task::spawn_blocking(move || turns_of(&log, &wanted, &sum)).await;
        let mut turns = match read {
            Ok(Some(turns)) => turns,
            // the process is ending, or the log cannot be read: it is tried again in the next round
            _ => return,
        };
        for (name, session) in names {
            let line = self.line(&name);
            let mut known = line.known.lock().await;
            known.forget_removed();
            let LoggedTurns { turns, spilled: found } = turns.remove(&name).unwrap_or_default();
            let mut present: HashSet<Uid> = known.missing.iter().map(|missing| missing.uid).collect();
            for missing in turns {
                if known.turn(missing.uid).is_some() {
                    // the log needs it until replicas have it
                    known.is_unconfirmed = true;
                } else if present.insert(missing.uid) {
                    known.missing.push_back(missing);
                }
            }
            if let Some(lost) = session.turns.checked_sub(found).filter(|lost| *lost > 0) {
                self.counts.left_out.fetch_add(lost, Ordering::Relaxed);
                tracing::error!(session = &*name, lost, "turns are lost: the local log is damaged");
                let (uid, at) = (Uid::unique(), Instant::now());
                known.missing.push_back(Missing::new(uid, at, MissingChange::Incomplete, &self.store.missing_bytes));
            }
            let mut spilled = self.spilled.lock();
            if spilled.get(&name) == Some(&session) {
                // no turn was spilled since the log was read
                spilled.remove(&name);
            }
            drop(spilled);
            self.mark_unsettled(&line, &known);
        }
    }
}

/// Whether a turn of the local log has no session in the process that recorded it; see [`Sharing::log_detached`].
pub(super) fn is_only_logged(birth: Uid, turn: &Turn) -> bool {
    turn.about.uid == birth
}

/// The turns of a session that the local log has.
#[derive(Debug, Default)]
struct LoggedTurns {
    turns: Vec<Missing>,
    /// The number of turns that only the log has.
    spilled: u64,
}

/// The turns of these sessions that the local log has, unless the ledger has all of them. `None` if it cannot be read.
fn turns_of(
    log: &SharedLog,
    names: &BTreeSet<Arc<str>>,
    sum: &Arc<AtomicU64>,
) -> Option<BTreeMap<Arc<str>, LoggedTurns>> {
    let mut turns: BTreeMap<Arc<str>, LoggedTurns> = BTreeMap::new();
    let read = log.get()?.read(&mut |record| match record {
        LogRecord::Session(Record { session, birth, change: Change::Turn(turn) }) if names.contains(&session) => {
            let logged = turns.entry(session).or_default();
            logged.spilled += u64::from(is_only_logged(birth, &turn));
            logged.turns.push(Missing::turn(turn, sum));
        }
        LogRecord::Session(Record { session, change: Change::Evicted, .. })
        | LogRecord::Process(ProcessRecord::Settled { session }) => drop(turns.remove(&session)),
        _ => {}
    });
    read.inspect_err(|error| tracing::error!(%error, "turns cannot be read back from the local log")).ok()?;
    Some(turns)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::tempdir;

    use super::*;
    use crate::images::Image;
    use crate::session::PromptImages;
    use crate::session::error::SessionError;
    use crate::session::ledger::log::{self, Fsync, Log, Options};
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::ledger::{AppendError, Entry, PARTITIONS};
    use crate::session::state::Frozen;
    use crate::session::tests::{draft, shared_with};
    use crate::session::{Call, Sessions, StoreLimits};

    /// The bytes that sessions may take.
    const LIMIT: u64 = 20_000;

    fn shared(ledger: &Arc<MemoryLedger>, log: SharedLog) -> Arc<Sessions> {
        let limits = StoreLimits { bytes: LIMIT, ttl: Duration::from_secs(1 << 30), idle: Duration::MAX };
        shared_with(ledger, log, limits, Duration::MAX)
    }

    /// A store with a new log in `dir`.
    fn logged(ledger: &Arc<MemoryLedger>, log: &SharedLog, dir: &tempfile::TempDir) -> Arc<Sessions> {
        let store = shared(ledger, log.clone());
        let options = Options { fsync: Fsync::Never, ..Options::new(dir.path()) };
        log.set(Log::open(&options, |_| ()).expect("it is new").0);
        store
    }

    /// Adds a turn to each of 100 sessions. Returns how the acks ended: detached and left out.
    async fn fill(store: &Arc<Sessions>) -> (usize, usize) {
        let (mut detached, mut left_out) = (0, 0);
        for at in 0..100 {
            let mut call = Call::new(Arc::clone(store), format!("s{at}").into());
            match call.commit(draft(&[1, 2], &[at])).1.await {
                Err(AppendError::Detached) => detached += 1,
                Err(AppendError::NoRoom) => left_out += 1,
                other => panic!("{other:?}"),
            }
        }
        (detached, left_out)
    }

    fn fail(ledger: &MemoryLedger) {
        let down = || LedgerError::Unavailable("it is down".into());
        ledger.failing.lock().extend((0..PARTITIONS).map(|partition| (partition, down())));
    }

    #[tokio::test(start_paused = true)]
    async fn pictures_of_detached_sessions_count_towards_the_limit() {
        let (dir, ledger, shared_log) =
            (tempdir().expect("a directory"), Arc::new(MemoryLedger::new()), SharedLog::default());
        let store = logged(&ledger, &shared_log, &dir);
        fail(&ledger);
        let prompt = [1, 9, 9, 2, 9, 9];
        for at in 0..8 {
            let picture = Arc::new(Image::new(vec![at; 5000].into()));
            let images = PromptImages::new(&prompt, [(Arc::clone(&picture), 1..3), (picture, 4..6)]);
            let mut draft = draft(&prompt, &[5]);
            draft.about.images = Some(Box::new(images));
            let mut call = Call::new(Arc::clone(&store), format!("s{at}").into());
            call.commit(draft).1.await.expect_err("the ledger is down");
        }
        let spilled = store.sharing().counts.spilled.load(Ordering::Relaxed);
        let detached = store.sharing().detached_bytes();
        // the last session may exceed the limit by what it takes besides its turn
        assert!(spilled >= 4 && (10_000..LIMIT + 2_000).contains(&detached), "{spilled} spilled, {detached} bytes");
        let mut pictures = Vec::new();
        let log = store.memory().log.get().expect("it is open");
        store.memory().log.written().await.expect("the disk works");
        let mut read = |record: LogRecord| {
            if let LogRecord::Session(Record { change: Change::Turn(turn), .. }) = record {
                pictures.push(turn.about.images.iter().flat_map(|images| images.stored()).count());
            }
        };
        log.read(&mut read).expect("the disk works");
        assert_eq!(pictures, [1; 8], "a record has a picture once");

        ledger.failing.lock().clear();
        let sharing = tokio::spawn(Arc::clone(&store).run());
        while ledger.state().lists.len() < 8 || !store.sharing().spilled.lock().is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        sharing.abort();
        assert_eq!(store.sharing().detached_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_beyond_the_memory_are_in_the_log_until_the_ledger_works() {
        let (dir, ledger, shared_log) =
            (tempdir().expect("a directory"), Arc::new(MemoryLedger::new()), SharedLog::default());
        let store = logged(&ledger, &shared_log, &dir);
        fail(&ledger);
        assert_eq!(fill(&store).await, (100, 0));
        let counts = &store.sharing().counts;
        let spilled = counts.spilled.load(Ordering::Relaxed);
        assert!(spilled > 50, "{spilled} turns are in the log only");
        assert!(
            store.sharing().detached_bytes() < LIMIT,
            "{} bytes: healthy sessions have room",
            store.sharing().detached_bytes()
        );
        assert_eq!(counts.left_out.load(Ordering::Relaxed), 0);

        ledger.failing.lock().clear();
        let sharing = tokio::spawn(Arc::clone(&store).run());
        while ledger.state().lists.len() < 100 || !store.sharing().spilled.lock().is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(store.sharing().detached_bytes() < LIMIT * 5 / 4, "{} bytes", store.sharing().detached_bytes());
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        sharing.abort();
        assert_eq!(store.sharing().detached_bytes(), 0);
        assert!(ledger.state().lists.values().all(|list| list.len() == 2), "each has a first entry and a turn");
        store.memory().log.written().await.expect("the disk works");

        let next = shared(&ledger, SharedLog::default());
        let restore = |_, record| next.sharing().restore(record);
        log::read(dir.path(), restore).expect("it is a log");
        assert_eq!(next.sharing().unsettled.lock().len(), 0, "a restart finds nothing to append");
    }

    #[tokio::test(start_paused = true)]
    async fn restart_reads_no_more_turns_than_the_memory_has_room_for() {
        let (dir, ledger, shared_log) =
            (tempdir().expect("a directory"), Arc::new(MemoryLedger::new()), SharedLog::default());
        let store = logged(&ledger, &shared_log, &dir);
        fail(&ledger);
        assert_eq!(fill(&store).await, (100, 0));
        store.memory().log.written().await.expect("the disk works");
        drop(store);

        let store = shared(&ledger, shared_log);
        let sharing = store.sharing();
        log::read(dir.path(), |_, record| sharing.restore(record)).expect("it is a log");
        assert!(
            store.sharing().detached_bytes() > LIMIT / 2 && store.sharing().detached_bytes() < LIMIT,
            "{}",
            store.sharing().detached_bytes()
        );
        assert!(store.size().1 >= store.sharing().detached_bytes(), "they make other sessions leave");
        assert!(sharing.spilled.lock().len() > 50);
        // the log lacks one turn
        let name = sharing.spilled.lock().keys().next().map(Arc::clone).expect("one");
        sharing.note_spilled(&name, 100, 1);
        let lost = &sharing.counts.left_out;

        ledger.failing.lock().clear();
        let running = tokio::spawn(Arc::clone(&store).run());
        while ledger.state().lists.len() < 100
            || !sharing.spilled.lock().is_empty()
            || store.sharing().detached_bytes() > 0
        {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(store.sharing().detached_bytes() < LIMIT * 5 / 4, "{} bytes", store.sharing().detached_bytes());
        }
        running.abort();
        assert_eq!(lost.load(Ordering::Relaxed), 1);
        store.refresh([&name]).await.expect("the ledger works");
        let session = store.session(&name).expect("it is in memory");
        assert!(session.state().incomplete.is_some(), "it says that it lacks a turn");
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_cannot_be_appended_does_not_stop_the_others() {
        let (dir, ledger, log) = (tempdir().expect("a directory"), Arc::new(MemoryLedger::new()), SharedLog::default());
        let store = logged(&ledger, &log, &dir);
        fail(&ledger);
        fill(&store).await;
        let unreadable = Entry { uid: Uid::unique(), body: b"?"[..].into() };
        ledger.state().lists.insert("s0".into(), vec![unreadable]);
        ledger.failing.lock().clear();
        let running = tokio::spawn(Arc::clone(&store).run());
        tokio::time::sleep(Duration::from_secs(60)).await;
        running.abort();
        let whole = ledger.state().lists.values().filter(|list| list.len() == 2).count();
        assert_eq!(whole, 99);
    }

    /// A version that lacks turns of the local log would be trained as if it were whole.
    #[tokio::test(start_paused = true)]
    async fn session_is_not_frozen_until_its_spilled_turns_are_read_back() {
        let (dir, ledger, log) = (tempdir().expect("a directory"), Arc::new(MemoryLedger::new()), SharedLog::default());
        let store = logged(&ledger, &log, &dir);
        let commit =
            async |response| Call::new(Arc::clone(&store), "a".into()).commit(draft(&[1, 2], &[response])).1.await;
        commit(3).await.expect("it is confirmed");
        fail(&ledger);
        fill(&store).await;
        assert!(matches!(commit(4).await, Err(AppendError::Detached)));
        ledger.failing.lock().clear();
        let sharing = store.sharing();
        sharing.probe_primaries().await;
        let name = "a".into();
        assert_eq!(sharing.freeze(&name).await, Err(SessionError::Unconfirmed));
        assert_eq!(sharing.finish(&name).await, Err(SessionError::Unconfirmed));
        assert!(store.refresh(["a"]).await.is_err(), "a reader would miss a turn");
        let running = tokio::spawn(Arc::clone(&store).run());
        while sharing.is_spilled("a") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(sharing.freeze(&name).await, Ok(Frozen { version: 1, turns: 2 }));
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn turns_beyond_the_memory_are_lost_without_a_log_and_sessions_say_so() {
        let ledger = Arc::new(MemoryLedger::new());
        let store = shared(&ledger, SharedLog::default());
        fail(&ledger);
        let (detached, left_out) = fill(&store).await;
        assert!(detached > 5 && left_out > 50, "{detached} {left_out}");
        let is_incomplete = |at: &usize| {
            let session = store.session(&format!("s{at}"));
            session.is_some_and(|session| session.state().incomplete.is_some())
        };
        assert!((0..100).filter(is_incomplete).count() > 10);
        fill(&store).await;
        assert!(store.sharing().detached_bytes() < LIMIT * 9 / 4, "{} bytes", store.sharing().detached_bytes());
    }

    /// A request does no work for the sessions that must not be evicted.
    #[tokio::test(start_paused = true)]
    async fn detached_sessions_are_not_searched() {
        let ledger = Arc::new(MemoryLedger::new());
        let store = shared(&ledger, SharedLog::default());
        fail(&ledger);
        fill(&store).await;
        assert!(store.size().1 > LIMIT);
        assert!(store.memory().evict_within(0, || ()), "nothing is examined");
        ledger.failing.lock().clear();
        let sharing = tokio::spawn(Arc::clone(&store).run());
        tokio::time::sleep(Duration::from_secs(5)).await;
        sharing.abort();
        store.memory().evict();
        assert!(store.size().1 <= LIMIT, "they can be evicted again");
    }
}
