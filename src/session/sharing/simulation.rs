// SPDX-License-Identifier: Apache-2.0
//! Deterministic simulation of processes that share sessions through a ledger that fails.
//!
//! A history is made from a seed: clients call random processes, while requests and answers are delayed and lost, and the ledger fails
//! over, refuses appends or loses all data. The clock is virtual. When the faults have ended, `check` compares the replies to the clients
//! with the ledger, and every process with a store that is not shared.

mod check;
mod clients;
mod faults;
mod history;
mod local_log;
mod plain;
mod random;

use faults::Loss;
use history::{History, Settings};

/// Histories of a run of the test suite, for each kind of loss. `HISTORIES` sets another number.
fn histories() -> u64 {
    std::env::var("HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(250)
}

/// Runs histories from these seeds on all processors. Returns the failed seeds with their messages.
fn run_all(seeds: std::ops::Range<u64>, loss: Loss) -> Vec<(u64, String)> {
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let failed = parking_lot::Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(message) = run(seed, loss) {
                        failed.lock().push((seed, message));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner();
    failed.sort();
    failed
}

/// Runs one history. Returns what it violates.
fn run(seed: u64, loss: Loss) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(async {
            let history = History::run(Settings::from_seed(seed, loss)).await;
            check::check(&history).await
        })
    }));
    let panicked = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    };
    outcome.unwrap_or_else(|panic| Err(format!("panic: {}", panicked(panic))))
}

fn assert_none(failed: &[(u64, String)], count: u64) {
    let first: Vec<_> = failed.iter().take(5).map(|(seed, message)| format!("seed {seed}: {message}")).collect();
    assert!(failed.is_empty(), "{} of {count} histories failed:\n{}", failed.len(), first.join("\n"));
}

#[test]
fn ledger_without_data_loss_keeps_every_promise() {
    assert_none(&run_all(0..histories(), Loss::None), histories());
}

#[test]
fn failover_that_loses_unconfirmed_entries_loses_no_acknowledged_turn() {
    assert_none(&run_all(0..histories(), Loss::Unconfirmed), histories());
}

#[test]
fn failover_that_loses_acknowledged_entries_is_healed() {
    assert_none(&run_all(0..histories(), Loss::Acknowledged), histories());
}

#[test]
fn ledger_that_loses_all_data_is_healed() {
    assert_none(&run_all(0..histories(), Loss::All), histories());
}

/// Repeats one history: `SEED=7 LOSS=none cargo test --lib repeat_history -- --ignored`.
#[test]
#[ignore = "repeats a seed"]
fn repeat_history() {
    let seed = std::env::var("SEED").expect("a number").parse().expect("a number");
    let loss = Loss::from_name(&std::env::var("LOSS").unwrap_or_default());
    run(seed, loss).unwrap();
}
