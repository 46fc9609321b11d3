// SPDX-License-Identifier: Apache-2.0
//! The speed of the archive: finished paths of a store, encoded as Parquet files of up to 64 MiB of turns and stored in a folder or in memory.
//!
//! `cargo bench --bench archive`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports to its terminal, and fails loudly")]

#[path = "support/turns.rs"]
mod turns;

use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::memory::InMemory;
use object_store::path::Path as Location;
use tokentap::archive::{Archiver, CurrentAnnotate, Options, SessionSource, Storage, verify};
use tokentap::generation::log_wait::LogWait;
use tokentap::metrics::Metrics;
use tokentap::rl::{HIGH_ENTROPY, thinking};
use tokentap::session::{Call, Path, Sessions, StoreLimits};
use turns::{TOKENS, Turns};

/// A store with finished sessions of this number of turns.
fn store(sessions: usize, turns: usize) -> Arc<Sessions> {
    let long = Duration::from_secs(3600);
    let store = Arc::new(Sessions::new(StoreLimits { bytes: u64::MAX / 4, ttl: long, idle: long }));
    for session in 0..sessions {
        let id: Arc<str> = format!("s{session}").into();
        for (turn, draft) in Turns::new(session as u64 + 1).take(turns).enumerate() {
            let mut call = Call::new(Arc::clone(&store), Arc::clone(&id));
            drop(call.commit(draft));
            if turn + 1 == turns {
                call.mark_last();
            }
        }
    }
    store
}

/// Archives a store and prints the speed.
async fn measure(name: &str, storage: Storage, store: &Arc<Sessions>, tokens: usize) {
    let metrics = Arc::new(Metrics::new("none"));
    let log_wait = Arc::new(LogWait::new(Arc::clone(&metrics), Duration::from_secs(2), false));
    let source = SessionSource::open(store, &log_wait).await.unwrap();
    let options = Options { interval: Duration::from_secs(30), bytes: 64 << 20 };
    let annotate: CurrentAnnotate = Arc::new(|| Arc::new(|path: &Path| thinking(path, None, HIGH_ENTROPY)));
    let archiver = Archiver::new(storage.clone(), source, options, annotate, Arc::clone(&metrics));
    let begin = Instant::now();
    assert!(archiver.spawn().finish(Duration::from_secs(600)).await, "it ends");
    let seconds = begin.elapsed().as_secs_f64();
    let found = verify(&storage, |_| ()).await.unwrap();
    assert!(found.problems.is_empty() && found.rows == metrics.archive.rows.get(), "{found:?}");
    let (memory, written) = (store.size().1 as f64 / 1e6, found.bytes as f64 / 1e6);
    println!(
        "{name:<34} {:>6} rows {:>3} files {memory:>6.1} MB in memory {written:>6.1} MB written {seconds:>5.2} s {:>6.1} MB/s of memory {:>6.1} MB/s written {:>6.2} M tokens/s",
        found.rows,
        found.files,
        memory / seconds,
        written / seconds,
        tokens as f64 / 1e6 / seconds,
    );
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for (sessions, turns) in [(8_000, 1), (800, 10)] {
            let store = store(sessions, turns);
            let tokens = sessions * turns * 2 * TOKENS;
            for round in 1..=3 {
                let shape = format!("{turns} turns");
                let memory = Storage::new(Arc::new(InMemory::new()), Location::from("a"));
                measure(&format!("{shape}, in memory, round {round}"), memory, &store, tokens).await;
                let folder = tempfile::tempdir().unwrap();
                let storage = Storage::open(&format!("file://{}", folder.path().display())).unwrap();
                measure(&format!("{shape}, folder, round {round}"), storage, &store, tokens).await;
            }
        }
    });
}
