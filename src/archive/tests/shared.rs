// SPDX-License-Identifier: Apache-2.0
//! Archivers of several processes that share sessions through a ledger.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;

use super::*;
use crate::generation::log_wait::LogWait;
use crate::session::ledger::memory::MemoryLedger;
use crate::session::ledger::{self, Ledger, SharedLog};
use crate::session::{Call, Draft, NoObserver, RewardTarget, Sessions, SharedLedger, SharingLimits, StoreLimits, Uid};

/// A process that shares its sessions.
struct Process {
    store: Arc<Sessions>,
    sharing: tokio::task::JoinHandle<()>,
    archive: RunningArchive,
}

fn shared(ledger: &Arc<MemoryLedger>) -> Arc<Sessions> {
    let limits = StoreLimits { bytes: u64::MAX / 4, ttl: HOUR, idle: HOUR };
    let sharing = SharingLimits { timeout: Duration::from_secs(2), idle: HOUR };
    let ledger = SharedLedger { ledger: Arc::clone(ledger) as _, limits: sharing };
    Arc::new(Sessions::shared(limits, SharedLog::default(), Arc::new(NoObserver), ledger))
}

/// Adds a turn to this session and finishes it.
async fn add(store: &Arc<Sessions>, session: &str) {
    let mut call = Call::new(Arc::clone(store), session.into());
    let draft = Draft {
        prompt: Some([1].into()),
        response: vec![2],
        logprobs: vec![-0.5],
        about: TurnMetadata { model: "m".into(), ..TurnMetadata::default() },
        ..Draft::default()
    };
    call.commit(draft).1.await.unwrap();
    call.mark_last();
}

/// The finished paths of the sessions.
async fn open(sessions: &Arc<Sessions>) -> SessionSource {
    let log_wait = Arc::new(LogWait::new(Arc::new(Metrics::new("none")), Duration::from_secs(2), false));
    SessionSource::open(sessions, &log_wait).await.unwrap()
}

impl Process {
    /// A process that has recorded nine sessions.
    async fn with_nine_sessions(ledger: &Arc<MemoryLedger>, storage: &Storage) -> Self {
        let process = Self::start(ledger, storage).await;
        for number in 0..9 {
            add(&process.store, &format!("s{number}")).await;
        }
        process
    }

    async fn start(ledger: &Arc<MemoryLedger>, storage: &Storage) -> Self {
        let store = shared(ledger);
        let sharing = tokio::spawn(Arc::clone(&store).run());
        let source = open(&store).await;
        let options = Options { interval: Duration::from_secs(30), bytes: 1 << 20 };
        Self { store, sharing, archive: archiver(storage.clone(), source, options).spawn() }
    }

    fn kill(self) {
        self.sharing.abort();
        self.archive.kill();
    }
}

/// The archive reads a path again when it is written.
#[tokio::test(start_paused = true)]
async fn reward_of_another_process_is_read() {
    let ledger = Arc::new(MemoryLedger::new());
    let (store, other) = (shared(&ledger), shared(&ledger));
    add(&store, "s").await;
    let source = open(&store).await;
    let partition = u32::from(ledger::partition_of("s"));
    source.changed(partition, &source.start()).await;
    let reward = async || match &source.next(partition, &source.start(), 1).await.unwrap()[0].content {
        Content::Path(path) => path.reward.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(reward().await, None);
    let value = serde_json::json!(0.5);
    other.reward("s", RewardTarget::default(), value.clone()).await.unwrap();
    assert_eq!(reward().await, Some(Arc::new(value)));
}

async fn sessions(storage: &Storage) -> Vec<String> {
    let mut found: Vec<String> = contents(storage).await.0;
    found.sort();
    found
}

#[tokio::test(start_paused = true)]
async fn fleet_archives_each_row_once_whichever_process_ends() {
    let (inner, ledger) = (Arc::new(InMemory::new()), Arc::new(MemoryLedger::new()));
    let storage = storage(&inner);
    let first = Process::start(&ledger, &storage).await;
    let second = Process::start(&ledger, &storage).await;
    for number in 0..40 {
        add(&[&first, &second][number % 2].store, &format!("s{number}")).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let found = sessions(&storage).await;
    assert_eq!(found.len(), 40, "{found:?}");
    let owners: BTreeSet<Uid> = ledger.state().claims.values().map(|(owner, _)| *owner).collect();
    assert_eq!(owners.len(), 2, "both have partitions");
    first.kill();
    for number in 40..80 {
        add(&second.store, &format!("s{number}")).await;
    }
    tokio::time::sleep(Duration::from_secs(90)).await;
    let found = sessions(&storage).await;
    assert_eq!(found.len(), 80, "the other process has taken the partitions over");
    let report = verify(&storage, |_| ()).await.unwrap();
    assert_eq!((report.rows, report.problems), (80, Vec::new()));
    assert!(second.archive.finish(HOUR).await);
}

#[tokio::test(start_paused = true)]
async fn end_does_not_wait_for_a_ledger_that_cannot_be_read() {
    let (ledger, storage) = (Arc::new(MemoryLedger::new()), storage(&Arc::new(InMemory::new())));
    let process = Process::with_nine_sessions(&ledger, &storage).await;
    // they are read, and the interval is not over
    tokio::time::sleep(Duration::from_secs(15)).await;
    let down = || ledger::LedgerError::Unavailable("it is down".into());
    ledger.failing.lock().extend((0..ledger::PARTITIONS).map(|partition| (partition, down())));
    let begun = tokio::time::Instant::now();
    assert!(!process.archive.finish(HOUR).await, "nothing is archived");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    process.sharing.abort();

    // the ledger has the paths, and the next process archives them
    ledger.failing.lock().clear();
    let next = Process::start(&ledger, &storage).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(sessions(&storage).await.len(), 9);
    assert!(next.archive.finish(HOUR).await);
}

#[tokio::test(start_paused = true)]
async fn end_waits_for_a_ledger_that_fails_for_a_moment() {
    let (ledger, storage) = (Arc::new(MemoryLedger::new()), storage(&Arc::new(InMemory::new())));
    let process = Process::with_nine_sessions(&ledger, &storage).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let down = || ledger::LedgerError::Unavailable("it is down".into());
    ledger.failing.lock().extend((0..ledger::PARTITIONS).map(|partition| (partition, down())));
    let healing = tokio::spawn({
        let ledger = Arc::clone(&ledger);
        async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            ledger.failing.lock().clear();
        }
    });
    assert!(process.archive.finish(HOUR).await);
    healing.await.unwrap();
    assert_eq!(sessions(&storage).await.len(), 9);
    process.sharing.abort();
}

#[tokio::test(start_paused = true)]
async fn path_that_cannot_be_read_waits_for_another_version() {
    let (inner, memory) = (Arc::new(InMemory::new()), Arc::new(MemoryLedger::new()));
    let storage = storage(&inner);
    let process = Process::start(&memory, &storage).await;
    let uid = Uid::unique();
    let entry = ledger::Entry { uid, body: "of a later version".into() };
    let (session, entries, finished) = ("s0".into(), vec![entry], vec![uid]);
    let append = ledger::Append { session, after: None, entries, finished, in_use: false, begun_ago: Duration::ZERO };
    memory.append(append).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1800)).await;
    assert_eq!(verify(&storage, |_| ()).await.unwrap().manifests, 0, "a process of that version may archive it");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let report = verify(&storage, |_| ()).await.unwrap();
    assert_eq!((report.manifests, report.rows, report.missed), (1, 0, 1), "it does not stop its partition for ever");
    process.kill();
}
