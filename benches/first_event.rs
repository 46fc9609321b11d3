// SPDX-License-Identifier: Apache-2.0
//! The time to the first event with sampled text: native, chat, Messages and Responses, of prompts of the same length, in turn.
//!
//! `cargo bench --bench first_event`. A time begins with the last byte of the request. The events before the one with text arrive no later.
//! The canned engine answers at once, so the times are those of tokentap and of two sockets. The load and the engine share core 0, tokentap
//! has core 1. `TOKENTAP=PATH` measures another tokentap binary.
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
#[allow(dead_code, reason = "the bench of the proxy uses the rest")]
#[path = "proxy/client.rs"]
mod client;
#[allow(dead_code, reason = "shared with other benches")]
#[path = "support/corpus.rs"]
mod corpus;
#[allow(dead_code, reason = "the bench of agents uses the rest")]
#[path = "agents/engine.rs"]
mod engine;
#[allow(dead_code, reason = "the bench of the proxy uses the rest")]
#[path = "proxy/process.rs"]
mod process;
#[allow(dead_code, reason = "the bench of agents uses the rest")]
#[path = "agents/script.rs"]
mod script;
#[allow(dead_code, reason = "the bench of agents uses the rest")]
#[path = "agents/tap.rs"]
mod tap;
#[allow(dead_code, reason = "the bench of the proxy runs it as a process")]
#[path = "proxy/upstream.rs"]
mod upstream;

use std::time::{Duration, Instant};

use client::Connection;
use engine::{Engine, TURN_TOKENS};
use serde_json::{Value, json};
use tap::{Tap, ask, post};

/// Requests of each API and kind of prompt.
const REQUESTS: usize = 600;
const WARM_UP: usize = 60;

fn main() {
    if std::env::args().any(|word| word == upstream::ROLE) {
        return engine::main();
    }
    process::pin_self(process::HARNESS_CORE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let binary = std::env::var("TOKENTAP").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tokentap").to_owned());
        let engine = Engine::start();
        let tap = Tap::start(&binary, engine.port).await;
        let texts = Texts(corpus::corpus().chars().collect());
        for (name, characters) in [("short", 2_000), ("long", 60_000)] {
            for in_session in [false, true] {
                let measured = measure(&tap, &texts, characters, in_session.then_some(name));
                tokio::time::timeout(Duration::from_secs(300), measured).await.expect("a measurement ends");
            }
        }
    });
}

/// The texts of the first messages: parts of the project's code and prose.
struct Texts(Vec<char>);

impl Texts {
    /// A text, another one for each number.
    fn text(&self, number: usize, characters: usize) -> String {
        let start = number * 7919 % (self.0.len() - characters);
        self.0[start..start + characters].iter().collect()
    }
}

/// How tokens are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    Native,
    Chat,
    Messages,
    Responses,
}

impl Api {
    const ALL: [Self; 4] = [Self::Native, Self::Chat, Self::Messages, Self::Responses];

    fn path(self) -> &'static str {
        match self {
            Self::Native => "/generate",
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }

    /// The bytes in the first event that has sampled text.
    fn text_marker(self) -> &'static str {
        match self {
            Self::Native => "\"output_ids\":",
            Self::Chat => "\"finish_reason\":null,\"matched_stop\":null}]}\n\ndata:",
            Self::Messages => "content_block_delta",
            Self::Responses => "response.output_text.delta",
        }
    }

    fn body(self, messages: &Value, stream: bool) -> Value {
        match self {
            Self::Native => unreachable!("a native request has ids"),
            Self::Chat | Self::Messages => {
                json!({"model": "m", "messages": messages, "max_tokens": TURN_TOKENS, "temperature": 1.0, "stream": stream})
            }
            Self::Responses => {
                json!({"model": "m", "input": messages, "max_output_tokens": TURN_TOKENS, "temperature": 1.0, "stream": stream})
            }
        }
    }

    /// The items of a reply, as the client returns them.
    fn returned(self, reply: &Value) -> Vec<Value> {
        match self {
            Self::Native => Vec::new(),
            Self::Chat => vec![json!({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})],
            Self::Messages => vec![json!({"role": "assistant", "content": reply["content"]})],
            Self::Responses => reply["output"].as_array().unwrap().clone(),
        }
    }
}

/// A client of an API: its connection, and the start of its conversation.
struct Client {
    api: Api,
    connection: Connection,
    path: String,
    messages: Vec<Value>,
    /// Microseconds to the first event with sampled text.
    times: Vec<f64>,
}

impl Client {
    /// With a session, the first turn of the conversation has been recorded.
    async fn new(api: Api, port: u16, text: &str, session: Option<&str>) -> Self {
        let prefix = session.map_or(String::new(), |name| format!("/sessions/{name}-{api:?}"));
        let path = format!("{prefix}{}", api.path());
        let mut messages = vec![json!({"role": "user", "content": text})];
        if session.is_some() && api != Api::Native {
            let body = api.body(&json!(messages), false).to_string();
            let (status, reply) = ask(port, &post(&path, body.as_bytes())).await.unwrap();
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&reply));
            messages.extend(api.returned(&serde_json::from_slice(&reply).unwrap()));
        }
        let connection = Connection::open(port).await.unwrap();
        Self { api, connection, path, messages, times: Vec::new() }
    }

    /// The request with this number. A new conversation begins with `text`. A native prompt has `prompt_tokens` ids.
    fn request(&self, number: usize, text: Option<&str>, prompt_tokens: usize) -> Vec<u8> {
        let body = if self.api == Api::Native {
            let mut ids: Vec<usize> = (0..prompt_tokens).map(|at| 100 + at * 7919 % 800).collect();
            // no two prompts are equal
            *ids.last_mut().unwrap() = 100 + number % 800;
            let params = json!({"max_new_tokens": TURN_TOKENS, "temperature": 1.0});
            json!({"input_ids": ids, "sampling_params": params, "stream": true})
        } else {
            let mut messages = self.messages.clone();
            match text {
                Some(text) => messages[0]["content"] = json!(text),
                None => messages.push(json!({"role": "user", "content": format!("And {}?", 10_000 + number)})),
            }
            self.api.body(&json!(messages), true)
        };
        post(&self.path, body.to_string().as_bytes())
    }

    async fn send(&mut self, request: &[u8]) {
        let (mut text, mut received) = (None, Vec::new());
        let marker = self.api.text_marker().as_bytes();
        let status = self.connection.exchange(request, |data| {
            if text.is_none() {
                let now = Instant::now();
                received.extend_from_slice(data);
                text = memchr::memmem::find(&received, marker).map(|_| now);
            }
        });
        assert_eq!(status.await.unwrap(), 200);
        self.times.push((text.unwrap() - self.connection.sent).as_secs_f64() * 1e6);
    }
}

/// Measures prompts: of new conversations without a session, or of the next turn of a conversation in a session.
async fn measure(tap: &Tap, texts: &Texts, characters: usize, session: Option<&str>) {
    let mut clients = Vec::new();
    for api in Api::ALL {
        clients.push(Client::new(api, tap.port, &texts.text(0, characters), session).await);
    }
    let tokens = prompt_tokens(tap.port, &clients[2]).await;
    let extended_before = extended_prompts(tap).await;
    for number in 0..WARM_UP + REQUESTS {
        // another order each time
        for turn in 0..clients.len() {
            let text = session.is_none().then(|| texts.text(number * clients.len() + turn, characters));
            let client = &mut clients[(turn + number) % Api::ALL.len()];
            let request = client.request(number, text.as_deref(), tokens);
            client.send(&request).await;
        }
    }
    println!(
        "\nprompt of {tokens} tokens, {}",
        if session.is_some() { "next turn of a session" } else { "new conversations" }
    );
    let mut native = None;
    for client in &mut clients {
        let times = client.times.get_mut(WARM_UP..).unwrap();
        times.sort_by(f64::total_cmp);
        let [p50, p99] = [times[REQUESTS / 2], times[REQUESTS * 99 / 100]];
        let added = p50 - *native.get_or_insert(p50);
        println!(
            "{:10} p50 {p50:6.0} us, p99 {p99:6.0} us, p50 after the native one {added:6.0} us",
            format!("{:?}", client.api)
        );
    }
    if session.is_some() {
        let extended = extended_prompts(tap).await - extended_before;
        assert_eq!(extended, 3 * (WARM_UP + REQUESTS), "prompts that continue a recorded turn");
    }
}

/// The number of tokens of the prompt of a Messages request.
async fn prompt_tokens(port: u16, client: &Client) -> usize {
    assert_eq!(client.api, Api::Messages);
    let mut messages = client.messages.clone();
    if messages.len() > 1 {
        messages.push(json!({"role": "user", "content": "And 10000?"}));
    }
    let body = json!({"model": "m", "messages": messages}).to_string();
    let (status, reply) = ask(port, &post("/v1/messages/count_tokens", body.as_bytes())).await.unwrap();
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&reply));
    serde_json::from_slice::<Value>(&reply).unwrap()["input_tokens"].as_u64().unwrap() as usize
}

/// The number of chat prompts so far that continue a recorded turn.
async fn extended_prompts(tap: &Tap) -> usize {
    let metrics = tap.metrics().await;
    let counts = metrics.lines().find_map(|line| line.strip_prefix("tokentap_chat_prompts_total{how=\"extended\"} "));
    counts.unwrap().parse().unwrap()
}
