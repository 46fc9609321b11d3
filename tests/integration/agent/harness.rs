// SPDX-License-Identifier: Apache-2.0
//! A demo engine with its journal, a tokentap in front of it, and scripted agents.

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokentap::demo::{Dialect, EngineOptions, JournalEntry, Streaming};
use tokio::task::JoinSet;

use crate::support::client::{Answer, get, request};
use crate::support::demo::{Demo, ids};
use crate::support::manual_upstream::soon;

/// Sets k to the whole vocabulary, so that entropies are exact.
pub const EXACT: [&str; 2] = ["--top-logprobs", "1024"];

/// One sequence of a reply, as its client received it.
#[derive(Debug, Clone)]
pub struct SequenceReply {
    pub session: String,
    /// The request's body.
    pub body: Value,
    pub rid: String,
    /// The tokens, those of all events together.
    pub output: Vec<u32>,
    /// The last `meta_info`; in an incremental stream its lists cover the last event only.
    pub meta: Value,
    /// `meta_info` of each event; a non-streaming reply has one.
    pub metas: Vec<Value>,
}

/// A demo engine, a tokentap in front of it, and the replies that clients received.
pub struct Harness {
    pub demo: Demo,
    pub exact: bool,
    replies: Mutex<Vec<SequenceReply>>,
}

impl Harness {
    /// Starts a harness in which entropies are exact.
    pub async fn exact(options: EngineOptions) -> Self {
        Self { exact: true, ..Self::start(options, &EXACT).await }
    }

    pub async fn start(options: EngineOptions, flags: &[&str]) -> Self {
        let demo = Demo::start(EngineOptions { journal: true, ..options }, flags).await;
        Self { demo, exact: false, replies: Mutex::default() }
    }

    /// The engine's journal without the probe's requests, whose prompts have at most three tokens.
    pub fn journal(&self) -> Vec<JournalEntry> {
        self.demo.engine.journal().into_iter().filter(|entry| entry.prompt.len() > 3).collect()
    }

    /// The engine's entry of a sequence.
    pub fn entry(&self, rid: &str) -> JournalEntry {
        let mut found: Vec<JournalEntry> = self.journal().into_iter().filter(|entry| entry.rid == rid).collect();
        assert_eq!(found.len(), 1, "{rid} was generated once");
        found.remove(0)
    }

    /// The replies that the clients of a session received.
    pub fn replies(&self, session: &str) -> Vec<SequenceReply> {
        let replies = self.replies.lock();
        replies.iter().filter(|reply| reply.session == session).cloned().collect()
    }

    /// Sends one generation of a session and returns the reply of each of its sequences.
    pub async fn call(&self, session: &str, body: &Value) -> Vec<SequenceReply> {
        self.call_all(session, vec![body.clone()]).await.remove(0)
    }

    /// Sends a generation of one sequence and returns its reply.
    pub async fn ask(&self, session: &str, body: &Value) -> SequenceReply {
        let mut replies = self.call(session, body).await;
        assert_eq!(replies.len(), 1, "{body} is one sequence");
        replies.remove(0)
    }

    /// Sends generations concurrently; returns their replies in the order of `bodies`.
    pub async fn call_all(&self, session: &str, bodies: Vec<Value>) -> Vec<Vec<SequenceReply>> {
        let mut running = JoinSet::new();
        for (at, body) in bodies.iter().enumerate() {
            let (addr, session, body) = (self.demo.proxy.data, session.to_owned(), body.to_string());
            running.spawn(async move {
                (at, request(addr, "POST", "/generate", &[("x-session-id", &session)], body.as_bytes()).await)
            });
        }
        let mut answers = running.join_all().await;
        answers.sort_by_key(|(at, _)| *at);
        answers.iter().map(|(at, answer)| self.record(session, &bodies[*at], answer)).collect()
    }

    /// Polls the control port until the session satisfies `holds`.
    pub async fn until(&self, session: &str, what: &str, holds: impl Fn(&Value) -> bool) {
        let path = format!("/v1/sessions/{session}");
        let ask = async {
            loop {
                let answer = get(self.demo.proxy.control, &path).await;
                if answer.status == 200 && holds(&answer.json()) {
                    return;
                }
            }
        };
        soon(what, ask).await;
    }

    /// Checks an answer, and records and returns the reply of each sequence.
    pub fn record(&self, session: &str, body: &Value, answer: &Answer) -> Vec<SequenceReply> {
        assert_eq!(answer.status, 200, "{body} was answered {}", answer.text());
        assert!(answer.complete, "the answer to {body} is complete");
        assert_eq!(answer.header("x-tokentap-session"), Some(session), "the reply names its session");
        let sequences = match body["stream"] == true {
            true => self.streamed(&answer.events()),
            false => match answer.json() {
                Value::Array(objects) => objects.iter().map(|object| (ids(object), vec![object.clone()])).collect(),
                object => vec![(ids(&object), vec![object])],
            },
        };
        let replies = sequences.into_iter().map(|(output, events)| {
            let metas: Vec<Value> = events.iter().map(|event| event["meta_info"].clone()).collect();
            let meta = metas.last().unwrap().clone();
            let (session, body) = (session.to_owned(), body.clone());
            SequenceReply { session, body, rid: meta["id"].as_str().unwrap().to_owned(), output, meta, metas }
        });
        let replies: Vec<SequenceReply> = replies.collect();
        self.replies.lock().extend(replies.iter().cloned());
        replies
    }

    /// The tokens and the events of each sequence of a stream.
    fn streamed(&self, events: &[Value]) -> Vec<(Vec<u32>, Vec<Value>)> {
        let options = self.demo.engine.options();
        let deltas = options.streaming == Streaming::Incremental && options.dialect == Dialect::Sglang0523;
        let mut sequences: Vec<(Vec<u32>, Vec<Value>)> = Vec::new();
        for event in events {
            let index = event["index"].as_u64().unwrap_or(0) as usize;
            sequences.resize_with(sequences.len().max(index + 1), Default::default);
            let (output, seen) = &mut sequences[index];
            if !deltas {
                output.clear();
            }
            output.extend(ids(event));
            seen.push(event.clone());
        }
        sequences
    }
}

/// An agent that keeps its own list of tokens, so that no text is tokenised twice.
pub struct Agent<'a> {
    pub harness: &'a Harness,
    pub session: String,
    pub tokens: Vec<u32>,
    pub stream: bool,
    end_of_turn: u32,
}

impl<'a> Agent<'a> {
    /// An agent with an empty context.
    pub fn blank(harness: &'a Harness, session: &str) -> Self {
        let end_of_turn = harness.demo.engine.model().eos();
        Self { harness, session: session.to_owned(), tokens: Vec::new(), stream: false, end_of_turn }
    }

    /// An agent with a task.
    pub fn new(harness: &'a Harness, session: &str, task: &str) -> Self {
        let mut agent = Self::blank(harness, session);
        agent.read(&format!("<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n"));
        agent
    }

    /// Appends text to the context.
    pub fn read(&mut self, text: &str) {
        self.tokens.extend(self.harness.demo.encode(text));
    }

    /// Appends a tool's result; ends the turn first if the policy did not.
    pub fn observe(&mut self, result: &str) {
        if self.tokens.last() != Some(&self.end_of_turn) {
            self.tokens.push(self.end_of_turn);
        }
        self.read(&format!("\n<|im_start|>tool\n{result}<|im_end|>\n<|im_start|>assistant\n"));
    }

    /// The body of the next request.
    pub fn body(&self, sampling: &Value) -> Value {
        json!({"input_ids": self.tokens, "stream": self.stream, "sampling_params": sampling})
    }

    /// Sends the next request and appends the reply to the context.
    pub async fn act(&mut self, sampling: &Value) -> SequenceReply {
        let reply = self.harness.ask(&self.session, &self.body(sampling)).await;
        self.tokens.extend_from_slice(&reply.output);
        reply
    }

    /// Sampling parameters with which a turn ends by a stop token after `tokens` tokens.
    pub fn stops(&self, tokens: usize) -> Value {
        let certain = json!({self.end_of_turn.to_string(): 30.0});
        json!({"min_new_tokens": tokens, "max_new_tokens": tokens + 4, "logit_bias": certain})
    }
}

/// Sampling parameters with which a turn ends by its length, `tokens`.
pub fn length(tokens: usize) -> Value {
    json!({"max_new_tokens": tokens, "ignore_eos": true})
}
