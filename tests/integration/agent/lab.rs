//! The engine with its journal, the tokentap in front of it, and the agents that speak to both.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tokentap::demo::{Dialect, EngineOptions, Entry, Streaming};
use tokio::task::JoinSet;

use crate::support::client::{Answer, get, request};
use crate::support::demo::{Demo, ids};
use crate::support::hand::soon;

/// k is the whole vocabulary, so that entropies are exact.
pub const EXACT: [&str; 4] = ["--top-logprobs", "1024", "--max-top-logprobs", "1024"];

/// What a client heard of one sequence.
#[derive(Debug, Clone)]
pub struct Said {
    pub session: String,
    /// What it had asked.
    pub body: Value,
    pub rid: String,
    /// The tokens, those of all events together.
    pub output: Vec<u32>,
    /// The last `meta_info`; of an incremental stream its lists are the last event's.
    pub meta: Value,
    /// `meta_info` of each event, of a reply that came whole its own.
    pub metas: Vec<Value>,
}

/// An engine, a tokentap, and what was heard.
pub struct Lab {
    pub demo: Demo,
    pub exact: bool,
    heard: Mutex<Vec<Said>>,
}

impl Lab {
    /// Entropies are exact.
    pub async fn exact(options: EngineOptions) -> Self {
        Self { exact: true, ..Self::start(options, &EXACT).await }
    }

    pub async fn start(options: EngineOptions, flags: &[&str]) -> Self {
        let demo = Demo::start(EngineOptions { journal: true, ..options }, flags).await;
        Self { demo, exact: false, heard: Mutex::default() }
    }

    /// What the engine says it was asked; the probe's questions, of three tokens each, left out.
    pub fn journal(&self) -> Vec<Entry> {
        self.demo.engine.journal().into_iter().filter(|entry| entry.prompt.len() > 3).collect()
    }

    /// The engine's entry of a sequence.
    pub fn entry(&self, rid: &str) -> Entry {
        let mut found: Vec<Entry> = self.journal().into_iter().filter(|entry| entry.rid == rid).collect();
        assert_eq!(found.len(), 1, "{rid} was generated once");
        found.remove(0)
    }

    /// What the clients of a session heard.
    pub fn heard(&self, session: &str) -> Vec<Said> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.iter().filter(|said| said.session == session).cloned().collect()
    }

    /// A generation of a session: what came of each of its sequences.
    pub async fn call(&self, session: &str, body: &Value) -> Vec<Said> {
        self.all(session, vec![body.clone()]).await.remove(0)
    }

    /// The same of one sequence.
    pub async fn ask(&self, session: &str, body: &Value) -> Said {
        let mut said = self.call(session, body).await;
        assert_eq!(said.len(), 1, "{body} is one sequence");
        said.remove(0)
    }

    /// Generations at once, in their order.
    pub async fn all(&self, session: &str, bodies: Vec<Value>) -> Vec<Vec<Said>> {
        let mut running = JoinSet::new();
        for (at, body) in bodies.iter().enumerate() {
            let (addr, session, body) = (self.demo.proxy.data, session.to_owned(), body.to_string());
            running.spawn(async move {
                (at, request(addr, "POST", "/generate", &[("x-session-id", &session)], body.as_bytes()).await)
            });
        }
        let mut answers = running.join_all().await;
        answers.sort_by_key(|(at, _)| *at);
        answers.iter().map(|(at, answer)| self.hear(session, &bodies[*at], answer)).collect()
    }

    /// Asks the control port about a session until this holds.
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

    /// Takes note of an answer.
    pub fn hear(&self, session: &str, body: &Value, answer: &Answer) -> Vec<Said> {
        assert_eq!(answer.status, 200, "{body} was answered {}", answer.text());
        assert!(answer.complete, "the answer to {body} ended as it should");
        assert_eq!(answer.header("x-tokentap-session"), Some(session), "the reply names its session");
        let said = match body["stream"] == true {
            true => self.streamed(&answer.events()),
            false => match answer.json() {
                Value::Array(objects) => objects.iter().map(|object| (ids(object), vec![object.clone()])).collect(),
                object => vec![(ids(&object), vec![object])],
            },
        };
        let said = said.into_iter().map(|(output, events)| {
            let metas: Vec<Value> = events.iter().map(|event| event["meta_info"].clone()).collect();
            let meta = metas.last().unwrap().clone();
            let (session, body) = (session.to_owned(), body.clone());
            Said { session, body, rid: meta["id"].as_str().unwrap().to_owned(), output, meta, metas }
        });
        let said: Vec<Said> = said.collect();
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).extend(said.iter().cloned());
        said
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

/// An agent that keeps its own list of tokens, as one must that wants no text to be tokenised twice.
pub struct Agent<'a> {
    pub lab: &'a Lab,
    pub session: String,
    pub tokens: Vec<u32>,
    pub stream: bool,
    end_of_turn: u32,
}

impl<'a> Agent<'a> {
    /// An agent with nothing in mind.
    pub fn blank(lab: &'a Lab, session: &str) -> Self {
        let end_of_turn = lab.demo.engine.model().eos();
        Self { lab, session: session.to_owned(), tokens: Vec::new(), stream: false, end_of_turn }
    }

    /// An agent with a task.
    pub fn new(lab: &'a Lab, session: &str, task: &str) -> Self {
        let mut agent = Self::blank(lab, session);
        agent.read(&format!("<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n"));
        agent
    }

    /// Adds text to what it has in mind.
    pub fn read(&mut self, text: &str) {
        self.tokens.extend(self.lab.demo.encode(text));
    }

    /// A tool has answered; where the policy did not end its turn, its agent does.
    pub fn observe(&mut self, result: &str) {
        if self.tokens.last() != Some(&self.end_of_turn) {
            self.tokens.push(self.end_of_turn);
        }
        self.read(&format!("\n<|im_start|>tool\n{result}<|im_end|>\n<|im_start|>assistant\n"));
    }

    /// What it asks next.
    pub fn body(&self, sampling: &Value) -> Value {
        json!({"input_ids": self.tokens, "stream": self.stream, "sampling_params": sampling})
    }

    /// Asks, and takes the answer to mind.
    pub async fn act(&mut self, sampling: &Value) -> Said {
        let said = self.lab.ask(&self.session, &self.body(sampling)).await;
        self.tokens.extend_from_slice(&said.output);
        said
    }

    /// Ends by itself behind so many tokens.
    pub fn stops(&self, tokens: usize) -> Value {
        let certain = json!({self.end_of_turn.to_string(): 30.0});
        json!({"min_new_tokens": tokens, "max_new_tokens": tokens + 4, "logit_bias": certain})
    }
}

/// Ends by its length.
pub fn length(tokens: usize) -> Value {
    json!({"max_new_tokens": tokens, "ignore_eos": true})
}
