// SPDX-License-Identifier: Apache-2.0
//! Replays sessions of an agent through tokentap and a canned engine, and directly to the engine with prompts that are already tokens.
//!
//! `cargo bench --bench agents` replays 48 sessions of 40 turns, `-- full` 391, `-- sessions=N turns=N clients=N` others. Each turn is a
//! chat completion whose messages repeat the whole conversation; the reply calls a tool, and the result of the tool has 2,000 characters.
//! The last prompt of a session has about 60,000 tokens. `TOKENIZER=FOLDER` is a model's tokenizer and chat template; without it they are
//! those of the demo engine. The load and the engine share core 0, tokentap has core 1. `BASELINE=PATH` measures another tokentap
//! binary beside this one. A check that fails ends the program with an error.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a bench reports to its terminal, and fails loudly"
)]
#![allow(unreachable_pub, missing_docs, missing_debug_implementations, reason = "a bench exports nothing")]

#[allow(dead_code, reason = "the bench of the proxy uses the rest")]
#[path = "proxy/canned.rs"]
mod canned;
#[path = "agents/check.rs"]
mod check;
#[path = "proxy/client.rs"]
mod client;
#[allow(dead_code, reason = "shared with other benches")]
#[path = "support/corpus.rs"]
mod corpus;
#[path = "agents/engine.rs"]
mod engine;
#[allow(dead_code, reason = "the bench of the proxy uses the rest")]
#[path = "proxy/process.rs"]
mod process;
#[path = "agents/replay.rs"]
mod replay;
#[path = "agents/script.rs"]
mod script;
#[path = "agents/tap.rs"]
mod tap;
#[allow(dead_code, reason = "the bench of the proxy runs it as a process")]
#[path = "proxy/upstream.rs"]
mod upstream;
#[allow(dead_code, reason = "the bench of the proxy uses the rest")]
#[path = "proxy/usage.rs"]
mod usage;

use std::sync::Arc;
use std::time::Duration;

use engine::Engine;
use replay::{Mode, Outcome};
use script::Script;
use tap::Tap;

/// The size of a run.
#[derive(Debug, Clone, Copy)]
struct Extent {
    sessions: usize,
    turns: usize,
    /// Sessions that run at a time.
    clients: usize,
}

impl Extent {
    fn parse(words: &[String]) -> Self {
        let mut extent = Self { sessions: 48, turns: 40, clients: 16 };
        for word in words {
            match word.split_once('=') {
                Some(("sessions", number)) => extent.sessions = number.parse().unwrap(),
                Some(("turns", number)) => extent.turns = number.parse().unwrap(),
                Some(("clients", number)) => extent.clients = number.parse().unwrap(),
                _ if word == "full" => extent.sessions = 391,
                _ => panic!("full, sessions=N, turns=N or clients=N, not {word:?}"),
            }
        }
        extent
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if words.first().is_some_and(|word| word == upstream::ROLE) {
        return engine::main();
    }
    let extent = Extent::parse(&words);
    process::pin_self(process::HARNESS_CORE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limit = Duration::from_secs(1800);
    runtime.block_on(async { tokio::time::timeout(limit, run(extent)).await.expect("a run ends within half an hour") });
}

async fn run(extent: Extent) {
    let engine = Engine::start();
    let script = Arc::new(Script::new(&script::tokenizer(), extent.turns));
    let Extent { sessions, turns, clients } = extent;
    println!("{sessions} sessions x {turns} turns, {clients} at a time; a reply has {} tokens\n", script.reply_tokens);
    println!(
        "| | turns/s | CPU of tokentap a turn | turns/s a core by CPU | p50 | p99 | core of load and engine busy | cores of others |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut recorded = None;
    let baseline = std::env::var("BASELINE").ok().map(|binary| ("baseline", binary));
    let targets = baseline.into_iter().chain([("tokentap", env!("CARGO_BIN_EXE_tokentap").to_owned())]);
    for (name, binary) in targets {
        for mode in [Mode::Whole, Mode::Stream] {
            let tap = Tap::start(&binary, engine.port).await;
            let warm_up = Extent { sessions: clients.min(4), ..extent };
            replay::chats(&script, mode, "warm", warm_up, &tap, &engine).await;
            let before = tap.metrics().await;
            let outcome = replay::chats(&script, mode, "run", extent, &tap, &engine).await;
            outcome.print(&format!("{name}, {}", mode.name()));
            check::prompts(&before, &tap.metrics().await, extent);
            recorded = Some(check::trajectory(&tap, "run-0", &script, turns).await);
        }
    }
    let prompts = recorded.expect("a target ran");
    println!("\nA last prompt has {} tokens, the mean prompt {}.", prompts.last(), prompts.mean());
    for mode in [Mode::Whole, Mode::Stream] {
        let outcome = replay::plain(&prompts, mode, extent, &engine).await;
        outcome.print(&format!("plain client, {}", mode.name()));
    }
}

impl Outcome {
    fn print(&self, name: &str) {
        let cpu = self.cpu.map(|cpu| cpu.as_secs_f64() * 1e3 / self.latencies.len() as f64);
        let of_cpu = |text: fn(f64) -> String| cpu.map_or(String::new(), text);
        println!(
            "| {name} | {:.0} | {} | {} | {:.2} ms | {:.2} ms | {:.0} % | {:.2} |",
            self.latencies.len() as f64 / self.elapsed.as_secs_f64(),
            of_cpu(|cpu| format!("{cpu:.3} ms")),
            of_cpu(|cpu| format!("{:.0}", 1e3 / cpu)),
            self.quantile(0.5),
            self.quantile(0.99),
            self.core_busy * 100.0,
            self.others,
        );
    }
}
