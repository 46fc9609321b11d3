// SPDX-License-Identifier: Apache-2.0
//! Memory and service of tokentap under load and attack. tokentap is a separate process; the engine and the clients run in this one.
//!
//! `cargo bench --bench load -- NAME [NUMBER]`: `idle` (connections), `streams` (at once), `control` (requests of h2load), `slow`
//! (seconds of slowhttptest), `flood` (clients), `soak` (seconds). `tests/load/run.sh` runs all except the soak, and finds the tools.
//! Loads are bounded in time and count, and loopback only. A failed check ends the program with an error.
#![allow(clippy::print_stdout, reason = "a bench reports to its terminal")]
#![allow(unreachable_pub, missing_docs, missing_debug_implementations, reason = "a bench exports nothing")]

#[path = "proxy/canned.rs"]
mod canned;
#[path = "load/churn.rs"]
mod churn;
#[path = "proxy/client.rs"]
mod client;
#[path = "load/control.rs"]
mod control;
#[path = "load/engine.rs"]
mod engine;
#[path = "load/flood.rs"]
mod flood;
#[path = "load/idle.rs"]
mod idle;
#[path = "load/rude.rs"]
mod rude;
#[path = "load/slope.rs"]
mod slope;
#[path = "load/slow.rs"]
mod slow;
#[path = "load/soak.rs"]
mod soak;
#[path = "load/streams.rs"]
mod streams;
#[path = "load/system.rs"]
mod system;
#[path = "load/tap.rs"]
#[allow(dead_code, reason = "the bench of pauses uses all of it")]
mod tap;
#[path = "load/times.rs"]
mod times;
#[allow(dead_code, clippy::unwrap_used, reason = "the bench of the proxy runs it as a process, and fails loudly")]
#[path = "proxy/upstream.rs"]
mod upstream;

use std::time::{Duration, Instant};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let name = words.first().map_or("", String::as_str);
    let number = |usual: u64| words.get(1).map_or(usual, |word| word.parse().expect("a number"));
    let size = |usual: u64| number(usual) as usize;
    // a load that takes longer has hung
    let limit = Duration::from_secs(number(0).max(1200) + 600);
    let load = async {
        match name {
            "idle" => idle::run(size(10_000)).await,
            "streams" => streams::run(size(2000)).await,
            "control" => control::run(size(50_000)).await,
            "slow" => slow::run(number(60)).await,
            "flood" => flood::run(size(512)).await,
            "soak" => soak::run(number(1200)).await,
            _ => panic!("idle, streams, control, slow, flood or soak"),
        }
    };
    let began = Instant::now();
    let others = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{name}: load of the machine before {}", others.trim());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(limit, load).await.expect("a load ends") });
    println!("{name}: passed, {:.0} s\n", began.elapsed().as_secs_f64());
}
