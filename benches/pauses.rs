// SPDX-License-Identifier: Apache-2.0
//! Pauses with a full store, compared with an empty one, and the time of a restart.
//!
//! `cargo bench --bench pauses` runs all parts, `-- NAME` one of them: `operations` (CPU time of single operations of the store),
//! `requests` (latency of requests to two servers, one with a full store), `restart` (time to read a log). `SCALE=0.01` divides all sizes
//! by 100, for a short run. `TOKENTAP=PATH` measures another binary in the parts that start a server.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports to its terminal, and fails loudly")]
#![allow(unreachable_pub, missing_docs, missing_debug_implementations, reason = "a bench exports nothing")]

#[path = "proxy/canned.rs"]
#[allow(dead_code, reason = "the bench of the proxy uses all of it")]
mod canned;
#[path = "proxy/client.rs"]
mod client;
#[path = "load/engine.rs"]
mod engine;
#[path = "pauses/fill.rs"]
mod fill;
#[path = "pauses/operations.rs"]
mod operations;
#[path = "pauses/requests.rs"]
mod requests;
#[path = "pauses/restart.rs"]
mod restart;
#[path = "load/tap.rs"]
#[allow(dead_code, reason = "the bench of the load uses all of it")]
mod tap;
#[path = "pauses/times.rs"]
mod times;
#[path = "proxy/upstream.rs"]
#[allow(dead_code, reason = "the bench of the proxy runs it as a process")]
mod upstream;

use fill::Sizes;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let is_asked = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let scale = std::env::var("SCALE").map_or(1.0, |scale| scale.parse().expect("SCALE is a number"));
    let sizes = Sizes::of(scale);
    println!(
        "{} sessions, one of {} turns, one with {} samples of a prompt\n",
        sizes.sessions, sizes.turns, sizes.siblings
    );
    if is_asked("operations") {
        operations::run(sizes);
    }
    if is_asked("requests") {
        requests::run(sizes);
    }
    if is_asked("restart") {
        restart::run(scale);
    }
}
