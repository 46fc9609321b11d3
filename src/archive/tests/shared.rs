//! Archivers of several processes that share sessions through a ledger.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;

use super::*;
use crate::archive::SharedSource;
use crate::session::ledger::memory::MemoryLedger;
use crate::session::{Call, Draft, SharingLimits, Store, StoreLimits, Uid};

/// A process that shares its sessions.
struct Process {
    store: Arc<Store>,
    sharing: tokio::task::JoinHandle<()>,
    archive: RunningArchive,
}

impl Process {
    async fn start(ledger: &Arc<MemoryLedger>, storage: &Storage) -> Self {
        let store = Arc::new(Store::new(StoreLimits { bytes: u64::MAX / 4, ttl: HOUR, idle: HOUR }));
        store.share(Arc::clone(ledger) as _, SharingLimits { timeout: Duration::from_secs(2), idle: HOUR });
        let sharing = tokio::spawn(Arc::clone(&store).run_sharing());
        let source = SharedSource::open(&store, store.sharing().unwrap()).await.unwrap();
        let options = Options { interval: Duration::from_secs(30), bytes: 1 << 20 };
        Self { store, sharing, archive: archiver(storage.clone(), source, options).spawn() }
    }

    /// Adds a turn to this session and finishes it.
    async fn add(&self, session: &str) {
        let mut call = Call::new(Arc::clone(&self.store), session.into());
        let draft = Draft {
            prompt: Some([1].into()),
            response: vec![2],
            logprobs: vec![-0.5],
            entropy: Vec::new(),
            about: TurnMetadata { model: "m".into(), ..TurnMetadata::default() },
            supersedes: Vec::new(),
            is_retry: false,
        };
        call.commit(draft).1.await.unwrap();
        drop(call);
        self.store.sharing().unwrap().finish(&self.store, &session.into()).await.unwrap();
    }

    fn kill(self) {
        self.sharing.abort();
        self.archive.kill();
    }
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
        [&first, &second][number % 2].add(&format!("s{number}")).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let found = sessions(&storage).await;
    assert_eq!(found.len(), 40, "{found:?}");
    let owners: BTreeSet<Uid> = ledger.state().claims.values().map(|(owner, _)| *owner).collect();
    assert_eq!(owners.len(), 2, "both have partitions");
    first.kill();
    for number in 40..80 {
        second.add(&format!("s{number}")).await;
    }
    tokio::time::sleep(Duration::from_secs(90)).await;
    let found = sessions(&storage).await;
    assert_eq!(found.len(), 80, "the other process has taken the partitions over");
    let report = verify(&storage).await.unwrap();
    assert_eq!((report.rows, report.problems), (80, Vec::new()));
    assert!(second.archive.finish(HOUR).await);
}
