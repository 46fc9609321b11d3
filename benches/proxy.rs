// SPDX-License-Identifier: Apache-2.0
//! Times tokentap between a load generator and a canned engine, compared with nginx and with no proxy, in one interleaved run.
//!
//! `cargo bench --bench proxy` measures everything, `-- quick` a few cells, `-- TEXT...` the workloads whose names hold one of the
//! texts. `-- "stream 512"` compares /generate, chat and gRPC on the same bytes of the engine. The load and the engine share core 0, the
//! proxy has core 1. `BASELINE=PATH` measures another tokentap binary beside this one, `ROUTER=PYTHON` the sglang-router of a Python
//! environment, `VALKEY_SERVER=PATH` a tokentap with a ledger in a Valkey.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a bench reports to its terminal, and fails loudly"
)]
#![allow(unreachable_pub, missing_docs, missing_debug_implementations, reason = "a bench exports nothing")]

#[path = "proxy/api.rs"]
mod api;
#[path = "proxy/canned.rs"]
mod canned;
#[path = "proxy/check.rs"]
mod check;
#[path = "proxy/client.rs"]
mod client;
#[path = "proxy/goals.rs"]
mod goals;
#[path = "proxy/grpc.rs"]
mod grpc;
#[path = "proxy/load.rs"]
mod load;
#[path = "support/nginx.rs"]
mod nginx;
#[path = "proxy/process.rs"]
mod process;
#[path = "proxy/report.rs"]
mod report;
#[path = "proxy/run.rs"]
mod run;
#[path = "proxy/target.rs"]
mod target;
#[path = "proxy/upstream.rs"]
mod upstream;
#[path = "proxy/usage.rs"]
mod usage;
#[path = "proxy/workload.rs"]
mod workload;

use std::time::Duration;

use run::Extent;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if words.first().is_some_and(|word| word == upstream::ROLE) {
        return upstream::main();
    }
    let extent = match words.first().map(String::as_str) {
        Some("quick") => Extent::quick(),
        _ => Extent::full(&words),
    };
    assert!(!extent.workloads.is_empty(), "no workload name contains {words:?}");
    process::raise_file_limit();
    process::pin_self(process::HARNESS_CORE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limit = Duration::from_secs(3600);
        tokio::select! {
            measured = tokio::time::timeout(limit, run::run(&extent)) => {
                let measured = measured.expect("a run ends within an hour");
                report::print(&extent, &measured);
                goals::print(&extent, &measured);
            }
            // the dropped future ends the processes that it started
            () = stop_signal() => eprintln!("stopped"),
        }
    });
}

async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let mut interrupt = signal(SignalKind::interrupt()).unwrap();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
