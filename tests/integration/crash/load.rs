// SPDX-License-Identifier: Apache-2.0
//! Agents that generate, and a trainer that reads finished paths.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use super::ledger::{Ledger, Turn};
use crate::support::client::{Answer, try_request};
use crate::support::demo::{all_numbers, ids};

/// A deterministic generator of pseudo-random numbers.
pub struct Dice(pub u64);

impl Dice {
    /// A number below `bound`.
    pub fn roll(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) as usize % bound
    }

    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.roll(400) as u32).collect()
    }
}

/// An agent with sequential conversations, across restarts of tokentap.
pub struct Agent {
    name: usize,
    dice: Dice,
    calls: usize,
    session: String,
    /// The conversation so far, as the agent has read it.
    chain: Vec<String>,
    tokens: Vec<u32>,
}

impl Agent {
    pub fn new(name: usize) -> Self {
        let (session, chain, tokens) = (format!("agent-{name}-0"), Vec::new(), Vec::new());
        Self { name, dice: Dice(name as u64), calls: 0, session, chain, tokens }
    }

    /// Works until tokentap is killed.
    pub async fn work(mut self, ledger: Arc<Ledger>, data: SocketAddr) -> Self {
        while self.turn(&ledger, data).await.is_some() {}
        self
    }

    async fn turn(&mut self, ledger: &Ledger, data: SocketAddr) -> Option<()> {
        self.calls += 1;
        let rid = format!("rid-{}-{}", self.name, self.calls);
        let count = 1 + self.dice.roll(6);
        let prompt = [self.tokens.clone(), self.dice.tokens(count)].concat();
        let (streams, last, by_path) = (self.dice.roll(2) == 0, self.dice.roll(4) == 0, self.dice.roll(2) == 0);
        ledger.record_request(&self.session, &rid, &prompt);
        let sampling = json!({"max_new_tokens": 1 + self.dice.roll(9), "temperature": 1.0, "ignore_eos": true});
        let body = json!({
            "rid": rid, "input_ids": prompt, "stream": streams, "return_logprob": true, "sampling_params": sampling,
        });
        let mut headers = vec![("x-session-done", if last { "1" } else { "0" })];
        let path = format!("/sessions/{}/generate", self.session);
        let path = if by_path { &*path } else { "/generate" };
        if !by_path {
            headers.push(("x-session-id", &self.session));
        }
        let answer = try_request(data, "POST", path, &headers, body.to_string().as_bytes()).await?;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let chain = [self.chain.clone(), vec![rid]].concat();
        let turn = turn(&answer, chain, prompt);
        self.chain.clone_from(&turn.chain);
        self.tokens = [&turn.prompt[..], &turn.output].concat();
        ledger.record_reply(&self.session, turn);
        if last {
            self.session = format!("agent-{}-{}", self.name, self.calls);
            self.chain.clear();
            self.tokens.clear();
        } else if self.dice.roll(5) == 0 {
            // starts another branch at the root
            self.chain.clear();
            self.tokens.clear();
        }
        Some(())
    }
}

/// Parses a complete reply of an engine with incremental streams.
fn turn(answer: &Answer, chain: Vec<String>, prompt: Vec<u32>) -> Turn {
    let objects = if answer.body.starts_with(b"data:") {
        assert!(answer.body.ends_with(b"data: [DONE]\n\n"), "a complete stream ends with [DONE]");
        answer.events()
    } else {
        vec![answer.json()]
    };
    let mut turn = Turn { chain, prompt, ..Turn::default() };
    for object in &objects {
        let meta = &object["meta_info"];
        turn.output.extend(ids(object));
        let rows = meta["output_token_logprobs"].as_array().unwrap();
        turn.logprobs.extend(rows.iter().map(|row| row[0].as_f64().unwrap() as f32));
        turn.entropy.extend(all_numbers(&meta["output_token_entropy"]).iter().map(|nats| *nats as f32));
    }
    turn
}

/// A trainer that reads each finished path once, across restarts of tokentap.
#[derive(Default)]
pub struct Trainer {
    cursor: String,
    paths: HashSet<(String, u64)>,
    /// How often each call's tokens were marked as trained.
    pub trained: HashMap<String, usize>,
}

impl Trainer {
    /// Reads a page of paths after new replies, until tokentap is killed.
    pub async fn work(mut self, ledger: Arc<Ledger>, control: SocketAddr) -> Self {
        let mut replies = ledger.replies();
        while self.take(control).await.is_some() && replies.changed().await.is_ok() {}
        self
    }

    /// Reads one page of finished paths and returns its length.
    pub async fn take(&mut self, control: SocketAddr) -> Option<usize> {
        let path = format!("/v1/trajectories?limit=5&since={}", self.cursor);
        let answer = try_request(control, "GET", &path, &[], b"").await?;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let text = answer.text();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert!(line["missed"].is_null() && line["gone"].is_null(), "{line}");
            let path = (line["session"].as_str().unwrap().to_owned(), line["leaf"].as_u64().unwrap());
            assert!(self.paths.insert(path), "no path is returned twice: {line}");
            for turn in line["turns"].as_array().unwrap().iter().filter(|turn| turn["trained"] == true) {
                *self.trained.entry(turn["rid"].as_str().unwrap().to_owned()).or_default() += 1;
            }
            self.cursor = line["cursor"].as_str().unwrap().to_owned();
        }
        Some(text.lines().count())
    }
}
