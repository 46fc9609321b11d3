// SPDX-License-Identifier: Apache-2.0
//! The content of a full store: many short sessions, one session with many turns, and one with many samples of a prompt.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokentap::session::ledger::log::{Fsync, Log, Options};
use tokentap::session::ledger::{Change, Record, RecordLog};
use tokentap::session::{Draft, EntropyMethod, Span, Turn, TurnMetadata};

/// The session with many turns, each of which continues the one before.
pub const LONG: &str = "long";
/// The session with many samples of one prompt.
pub const SAMPLED: &str = "sampled";
/// Sampled tokens of a turn.
pub const TOKENS: usize = 16;
/// The prompt of the samples; other prompts differ in the first token.
pub const PROMPT: [u32; 32] = [1000; 32];

/// The sizes of a full store.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub sessions: usize,
    pub turns: usize,
    pub siblings: usize,
    /// Requests of each kind to each server.
    pub requests: usize,
}

impl Sizes {
    pub fn of(scale: f64) -> Self {
        let scaled = |size: usize| ((size as f64 * scale) as usize).max(100);
        Self {
            sessions: scaled(200_000),
            turns: scaled(20_000),
            siblings: scaled(5_000),
            requests: scaled(10_000).max(500),
        }
    }
}

/// The metadata of a turn.
pub fn metadata(tokens: usize) -> TurnMetadata {
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
    let measured = EntropyMethod {
        source: "top_k".into(),
        estimator: "estimate".into(),
        temperature: Some(1.0),
        top_k: Some(20),
        reason: None,
    };
    TurnMetadata {
        rid: Some("0123456789abcdef0123456789abcdef".into()),
        finish: Some("stop".into()),
        policy: vec![span],
        measured: Some(measured.into()),
        sampling: Some(r#"{"max_new_tokens":16,"temperature":1.0}"#.into()),
        model: "qwen".into(),
        started_ms: 1_753_000_000_000,
        elapsed_ms: 8_123,
        ..TurnMetadata::default()
    }
}

/// Sampled tokens that differ for each seed, with the spread of a model's tokens.
pub fn tokens(seed: u32, count: usize) -> Vec<u32> {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    // a few ids are frequent and most are rare
    (0..count).map(|_| 150_000_f32.powf(next()) as u32).collect()
}

/// A turn that samples `response` after `parent`.
pub fn turn(id: u32, parent: Option<u32>, prompt: &[u32], response: Vec<u32>) -> Arc<Turn> {
    let about =
        TurnMetadata { uid: format!("{id:032x}").parse().expect("hexadecimal digits"), ..metadata(response.len()) };
    let (logprobs, entropy) = floats(&response);
    Arc::new(Turn {
        id,
        parent,
        prompt: prompt.into(),
        response: response.into(),
        logprobs: logprobs.into(),
        entropy: entropy.into(),
        about,
    })
}

/// A draft of a turn with this whole prompt.
pub fn draft(prompt: Arc<[u32]>, response: Vec<u32>) -> Draft {
    let about = metadata(response.len());
    let (logprobs, entropy) = floats(&response);
    Draft { prompt: Some(prompt), response, logprobs, entropy, about, ..Draft::default() }
}

fn floats(response: &[u32]) -> (Vec<f32>, Vec<f32>) {
    let scaled = |scale: f32| response.iter().map(|id| (*id as f32 + 1.0).ln() * scale).collect();
    (scaled(-0.1), scaled(0.05))
}

/// The turns of a full store, with the names of their sessions. The sessions with many turns are last, so that they were used last.
pub fn turns(sizes: Sizes) -> impl Iterator<Item = (Arc<str>, Arc<Turn>)> {
    let short = (0..sizes.sessions as u32).map(|session| {
        let mut prompt = PROMPT;
        prompt[0] = session;
        (format!("session-{session:06}").into(), turn(0, None, &prompt, tokens(session, TOKENS)))
    });
    let (long, sampled): (Arc<str>, Arc<str>) = (LONG.into(), SAMPLED.into());
    let chain = (0..sizes.turns as u32)
        .map(move |id| (Arc::clone(&long), turn(id, id.checked_sub(1), &tokens(!id, TOKENS), tokens(id, TOKENS))));
    let samples = (0..sizes.siblings as u32)
        .map(move |id| (Arc::clone(&sampled), turn(id, None, &PROMPT, tokens(id + 1_000_000, TOKENS))));
    short.chain(chain).chain(samples)
}

/// The record of a turn.
pub fn record(session: Arc<str>, turn: Arc<Turn>) -> Record {
    Record::new(session, "000000000000000000000000000000b1".parse().unwrap(), Change::Turn(turn))
}

/// Writes turns to a log in `directory`. Returns the bytes that they take in a store.
pub fn write_log(directory: &Path, turns: impl Iterator<Item = (Arc<str>, Arc<Turn>)>) -> u64 {
    let options = Options { fsync: Fsync::Never, ..Options::new(directory) };
    let (log, _) = Log::open(&options, |_| {}).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (mut bytes, mut waiting) = (0, 0);
    for (session, turn) in turns {
        bytes += turn.bytes();
        waiting += turn.bytes();
        drop(log.append(record(session, turn).into()));
        // the queue is bounded in records and bytes
        if waiting > 4 << 20 {
            runtime.block_on(log.written()).unwrap();
            waiting = 0;
        }
    }
    runtime.block_on(log.written()).unwrap();
    assert_eq!(log.stats().lost, 0, "every record is written");
    bytes
}

/// A directory that is removed when dropped.
pub struct Scratch(pub std::path::PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tokentap-pauses-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Limits that nothing reaches.
pub const BOUNDLESS: Duration = Duration::from_secs(86_400);
