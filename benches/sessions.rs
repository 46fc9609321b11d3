// SPDX-License-Identifier: Apache-2.0
//! The cost of sessions: bytes for each small session and for each token in memory, the time of the table and of the steps of 200,000 sessions, and
//! the time to export a thousand of them as a batch for verl.
//!
//! `cargo bench --bench sessions`. Memory is the resident memory of the process, with the program's allocator.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports to its terminal, and fails loudly")]
#![allow(missing_docs, reason = "a bench exports nothing")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokentap::export::{Batch, Format};
use tokentap::session::{
    Call, Conditions, Draft, EntropyMethod, RewardTarget, Sessions, Span, StepKey, StepQuery, StoreLimits, TableQuery,
    Tags, ThinkTokens, TurnMetadata,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The size that the goal names.
const SESSIONS: usize = 10_000;
const TURNS: usize = 8;
const TOKENS: usize = 512;
/// Tokens of a tool result between two turns.
const OBSERVED: usize = 16;

fn main() {
    small();
    let limits = StoreLimits { bytes: 1 << 30, ttl: Duration::from_secs(86_400), idle: Duration::from_secs(300) };
    let store = Arc::new(Sessions::new(limits));
    let idle = resident();
    let started = Instant::now();
    for session in 0..SESSIONS {
        record_session(&store, session, TURNS, TOKENS);
    }
    let took = started.elapsed();
    let tokens = SESSIONS * TURNS * TOKENS;
    let (sessions, bytes) = store.size();
    assert_eq!((sessions, store.evicted().len()), (SESSIONS, 0), "nothing was evicted");
    let held = resident() - idle;
    println!("{SESSIONS} sessions x {TURNS} turns x {TOKENS} tokens, {OBSERVED} observed tokens between the turns");
    println!("| number | measured | at most |\n|---|---|---|");
    println!("| memory a sampled token, as the system counts | {:.1} bytes | 24 bytes |", held as f64 / tokens as f64);
    println!("| memory a sampled token, as the store counts | {:.1} bytes | |", bytes as f64 / tokens as f64);
    println!(
        "| committing a turn of {TOKENS} tokens | {:.1} us | |",
        took.as_secs_f64() * 1e6 / (SESSIONS * TURNS) as f64
    );
    for format in Format::all() {
        export(&store, *format);
    }
    drop(store);
    overview();
}

/// Sessions with one turn of 64 + 16 tokens, as the system and the store count them.
fn small() {
    const SMALL: usize = 50_000;
    let limits = StoreLimits { bytes: 1 << 30, ttl: Duration::from_secs(86_400), idle: Duration::from_secs(300) };
    let store = Arc::new(Sessions::new(limits));
    record_session(&store, SMALL, 1, 16);
    let (idle, before) = (resident(), store.size());
    (0..SMALL).for_each(|session| record_session(&store, session, 1, 16));
    let (sessions, bytes) = store.size();
    assert_eq!(sessions - before.0, SMALL);
    let (held, counted) = ((resident() - idle) as f64 / SMALL as f64, (bytes - before.1) as f64 / SMALL as f64);
    println!("{SMALL} sessions of 64 + 16 tokens: {held:.0} bytes each, {counted:.0} as the store counts");
}

/// The table and the steps of 200,000 sessions with one turn of 64 + 16 tokens, a tag and a reward.
fn overview() {
    const MANY: usize = 200_000;
    let limits = StoreLimits { bytes: 8 << 30, ttl: Duration::from_secs(86_400), idle: Duration::from_secs(300) };
    let store = Arc::new(Sessions::new(limits));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for session in 0..MANY {
        record_session(&store, session, 1, 16);
        let name = format!("session-{session:05}");
        let tags = Tags::parse_list(format!("step={}", session / 1000).as_bytes()).unwrap();
        drop(runtime.block_on(store.set_tags(&name, &tags)).unwrap());
        drop(runtime.block_on(store.reward(&name, RewardTarget::default(), (session % 7).into())).unwrap());
    }
    println!("{MANY} sessions of 64 + 16 tokens with a tag and a reward, best of 9\n| request | time |\n|---|---|");
    let best = |name: &str, work: &dyn Fn()| {
        let time = || {
            let started = Instant::now();
            work();
            started.elapsed()
        };
        println!("| {name} | {:.1} ms |", (0..9).map(|_| time()).min().unwrap().as_secs_f64() * 1e3);
    };
    let table = |sort: &str, conditions: Option<&str>| {
        let query = TableQuery {
            order: sort.parse().unwrap(),
            conditions: conditions.map(|text| Conditions::parse(text).unwrap()),
            same_prompt: None,
            part: String::new(),
            after: None,
            limit: 100,
        };
        assert_eq!(store.table(&query).sessions.len(), 100);
    };
    let first = Instant::now();
    table("-reward", None);
    println!("| table by reward, which is read for the first time | {:.1} ms |", first.elapsed().as_secs_f64() * 1e3);
    best("table by creation", &|| table("created_ms", None));
    best("table by falling reward", &|| table("-reward", None));
    best("table by mean entropy", &|| table("mean_entropy", None));
    best("table by falling reward, `reward<3,step=17`", &|| table("-reward", Some("reward<3,step=17")));
    let steps = |think: Option<ThinkTokens>| {
        let key = StepKey::parse("step").unwrap();
        let query = StepQuery { key, conditions: None, think, teacher: None };
        assert_eq!(store.steps(&query).unwrap().steps.len(), MANY / 1000);
    };
    let first = Instant::now();
    steps(None);
    println!(
        "| steps, whose first prompts are read for the first time | {:.1} ms |",
        first.elapsed().as_secs_f64() * 1e3
    );
    best("steps", &|| steps(None));
    let think = Some(ThinkTokens { start: 1, end: 2 });
    let first = Instant::now();
    steps(think);
    println!("| steps, whose thinking is read for the first time | {:.1} ms |", first.elapsed().as_secs_f64() * 1e3);
    best("steps with thinking", &|| steps(think));
}

/// Records the turns of an agent: each continues the one before, and samples this many tokens.
fn record_session(store: &Arc<Sessions>, session: usize, turns: usize, tokens: usize) {
    let id: Arc<str> = format!("session-{session:05}").into();
    let mut context: Vec<u32> = (0..64).map(|at| (session * 7 + at) as u32 % 150_000).collect();
    for turn in 0..turns {
        let mut call = Call::new(Arc::clone(store), Arc::clone(&id));
        let seed = (session * turns + turn) as u32;
        let response: Vec<u32> =
            (0..tokens as u32).map(|at| seed.wrapping_mul(2_654_435_761).wrapping_add(at * 40_503) % 150_000).collect();
        let floats = |scale: f32| response.iter().map(|id| (*id as f32 + 1.0).ln() * scale).collect::<Vec<f32>>();
        let span = Span {
            start: 0,
            end: tokens as u32,
            epoch: 1,
            until: 1,
            weight_version: Some("default".into()),
            version: None,
            process: None,
            adapter: None,
        };
        let about = TurnMetadata {
            rid: Some("0123456789abcdef0123456789abcdef".into()),
            finish: Some("stop".into()),
            policy: vec![span],
            measured: Some(Arc::new(EntropyMethod {
                source: "top_k".into(),
                estimator: "estimate".into(),
                temperature: Some(1.0),
                top_k: Some(20),
                reason: None,
            })),
            sampling: Some(r#"{"max_new_tokens":512,"temperature":1.0,"top_p":0.95}"#.into()),
            model: "model".into(),
            ..TurnMetadata::default()
        };
        let draft = Draft {
            prompt: Some(context.as_slice().into()),
            response: response.clone(),
            logprobs: floats(-0.1),
            entropy: floats(0.05),
            about,
            ..Draft::default()
        };
        drop(call.commit(draft));
        context.extend(response);
        context.extend((0..OBSERVED as u32).map(|at| at + seed % 1000));
    }
}

/// Exports a thousand sessions as one batch, and discards its chunks.
fn export(store: &Arc<Sessions>, format: Format) {
    let (mut bytes, mut best, mut growth) = (0, Duration::MAX, 0);
    for _ in 0..3 {
        let before = reset_peak();
        let started = Instant::now();
        let mut batch = Batch::default();
        for session in 0..1000 {
            let session = store.session(&format!("session-{session:05}")).unwrap();
            let (mut rows, mut refused) = session.snapshot(None).unwrap().rows(true);
            batch.rows.append(&mut rows);
            batch.refused.append(&mut refused);
        }
        let export = format.export(batch);
        bytes = export.chunks.map(|chunk| black_box(chunk).len()).sum();
        best = best.min(started.elapsed());
        growth = growth.max(peak().saturating_sub(before));
    }
    let goal = if format == Format::Verl { "500 MB/s, 64 MB" } else { "" };
    println!(
        "| 1,000 sessions to {}: {:.0} MB | {:.0} MB/s, {:.1} MB of growth | {goal} |",
        format,
        bytes as f64 / 1e6,
        bytes as f64 / 1e6 / best.as_secs_f64(),
        growth as f64 / 1e6
    );
}

/// The value of a line of /proc/self/status, in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn resident() -> u64 {
    status("VmRSS:")
}

fn peak() -> u64 {
    status("VmHWM:")
}

/// Resets the peak to the current resident memory, and returns it.
fn reset_peak() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    resident()
}
