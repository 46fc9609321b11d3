// SPDX-License-Identifier: Apache-2.0
//! Replies that clients have read, compared with the recorded turns.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use parking_lot::Mutex;
use serde_json::Value;
use tokentap::demo::{Engine, Position, SamplingParams};
use tokio::sync::watch;

use crate::support::client::get;
use crate::support::manual_upstream::soon;

/// A turn, as a client read it or as tokentap recorded it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// The ids of the calls it continues, from the root on, and its own.
    pub chain: Vec<String>,
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub entropy: Vec<f32>,
}

/// Turns by session and the id of their call.
type Turns = HashMap<String, HashMap<String, Turn>>;

/// The prompts that were sent, and the turns whose replies were read to the last byte.
#[derive(Default)]
pub struct Ledger {
    asked: Mutex<HashMap<String, HashMap<String, Vec<u32>>>>,
    read: Mutex<Turns>,
    replies: watch::Sender<usize>,
}

impl Ledger {
    pub fn record_request(&self, session: &str, rid: &str, prompt: &[u32]) {
        let mut asked = self.asked.lock();
        let before = asked.entry(session.to_owned()).or_default().insert(rid.to_owned(), prompt.to_vec());
        assert!(before.is_none(), "every call has its own id");
    }

    pub fn record_reply(&self, session: &str, turn: Turn) {
        let rid = turn.chain.last().unwrap().clone();
        self.read.lock().entry(session.to_owned()).or_default().insert(rid, turn);
        self.replies.send_modify(|replies| *replies += 1);
    }

    /// Counts replies.
    pub fn replies(&self) -> watch::Receiver<usize> {
        self.replies.subscribe()
    }

    /// Wakes the tasks that wait for replies.
    pub fn nudge(&self) {
        self.replies.send_modify(|_| ());
    }

    /// Waits until `replies` more replies have been read.
    pub async fn wait_for(&self, replies: usize) {
        let mut read = self.replies();
        let goal = *read.borrow() + replies;
        soon("replies are read", read.wait_for(|read| *read >= goal)).await.unwrap();
    }

    /// The turns that were read.
    pub fn turns(&self) -> Turns {
        self.read.lock().clone()
    }

    /// Compares the turns that a tokentap has recorded with the ledger; returns their number.
    pub async fn check(&self, control: SocketAddr, engine: &Engine) -> usize {
        let (asked, read) = (self.asked.lock().clone(), self.turns());
        let mut turns = 0;
        for (session, asked) in &asked {
            let none = HashMap::new();
            let read = read.get(session).unwrap_or(&none);
            let recorded = stored(control, session, read.is_empty()).await;
            for (rid, turn) in read {
                let found =
                    recorded.get(rid).unwrap_or_else(|| panic!("{session}: {rid} was read and is not recorded"));
                assert_eq!(found, turn, "{session}: {rid}");
            }
            for (rid, turn) in recorded.iter().filter(|(rid, _)| !read.contains_key(*rid)) {
                assert_eq!(asked.get(rid), Some(&turn.prompt), "{session}: {rid} was sent");
                assert_sampled(engine, turn);
            }
            turns += recorded.len();
        }
        turns
    }
}

/// Asserts that the engine can have sampled the turn: each logprob is that of its token.
fn assert_sampled(engine: &Engine, turn: &Turn) {
    assert_eq!(turn.output.len(), turn.logprobs.len());
    for (at, (id, logprob)) in turn.output.iter().zip(&turn.logprobs).enumerate() {
        let position = Position { prompt: &turn.prompt, output: &turn.output[..at] };
        let truth = engine.distribution(position, &SamplingParams::default(), 0)[*id as usize].ln();
        assert!((truth - f64::from(*logprob)).abs() < 1e-4, "{:?}: token {at}", turn.chain);
    }
}

fn floats(list: &Value, start: usize, end: usize) -> Vec<f32> {
    list.as_array().unwrap()[start..end].iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

/// Reads a session's turns by rid; each must be listed once and trained once.
pub async fn stored(control: SocketAddr, session: &str, may_lack: bool) -> HashMap<String, Turn> {
    let answer = get(control, &format!("/v1/sessions/{session}/trajectories")).await;
    if may_lack && answer.status == 404 {
        return HashMap::new();
    }
    assert_eq!(answer.status, 200, "{session}: {}", answer.text());
    let export = answer.json();
    let mut trained: HashSet<String> = HashSet::new();
    let mut found: HashMap<String, Turn> = HashMap::new();
    for row in export["trajectories"].as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(row["token_ids"].clone()).unwrap();
        let masks: Vec<u8> = serde_json::from_value(row["loss_mask"].clone()).unwrap();
        let mut chain = Vec::new();
        for turn in row["turns"].as_array().unwrap() {
            assert_eq!(turn["fault"], Value::Null, "{session}: {turn}");
            let rid = turn["rid"].as_str().unwrap().to_owned();
            chain.push(rid.clone());
            let of_turn = |segment: &&Value| segment["turn"] == turn["id"] && segment["kind"] == "response";
            let segment = row["segments"].as_array().unwrap().iter().find(of_turn).unwrap();
            let place = |key: &str| segment[key].as_u64().unwrap() as usize;
            let (start, end) = (place("start"), place("end"));
            let mask = u8::from(turn["trained"] == true);
            assert_eq!(masks[start..end], vec![mask; end - start], "{session}: {rid}");
            assert!(mask == 0 || trained.insert(rid.clone()), "{session}: {rid} is trained once");
            let turn = Turn {
                chain: chain.clone(),
                prompt: ids[..start].to_vec(),
                output: ids[start..end].to_vec(),
                logprobs: floats(&row["logprobs"], start, end),
                entropy: floats(&row["entropy"], start, end),
            };
            let known = found.entry(rid.clone()).or_insert_with(|| turn.clone());
            assert_eq!(*known, turn, "{session}: {rid} is the same in every row");
        }
    }
    assert_eq!(trained.len(), found.len(), "{session}: every turn is trained");
    let shown = get(control, &format!("/v1/sessions/{session}")).await.json();
    let listed: Vec<&str> =
        shown["list"].as_array().unwrap().iter().map(|turn| turn["rid"].as_str().unwrap()).collect();
    assert_eq!(listed.len(), found.len(), "{session}: no turn is listed twice: {listed:?}");
    found
}
