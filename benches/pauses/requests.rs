// SPDX-License-Identifier: Apache-2.0
//! The latency of requests to a server with an empty store and to one with a full store.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Connection;
use crate::engine;
use crate::fill::{self, LONG, PROMPT, SAMPLED, Scratch, Sizes, TOKENS};
use crate::tap::{Tap, ask, get, metric, post};
use crate::times::Times;

/// Requests of one kind to one server before the other server's turn.
const BLOCK: usize = 100;
/// Bytes that a session takes besides its turns.
const SESSION: u64 = 512;
/// Messages of a user in a conversation.
const CHAT_TURNS: usize = 8;
const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/demo/assets");

/// The kinds of requests.
const KINDS: [&str; 4] = [
    "/generate without a session",
    "/generate in the session of many turns",
    "/generate in the session of many samples",
    "chat turn in the session of many turns",
];

pub fn run(sizes: Sizes) {
    let full = Scratch::new("full");
    let empty = Scratch::new("empty");
    let bytes = fill::write_log(&full.0, fill::turns(sizes)) + SESSION * (sizes.sessions as u64 + 2);
    // the first requests fill the store, and each later one evicts sessions
    let limit = bytes + 100_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let upstream = engine::start().await;
        let began = Instant::now();
        let mut servers = Vec::new();
        for directory in [&empty, &full] {
            let limit = limit.to_string();
            let flags = [
                "--data-dir",
                directory.text(),
                "--session-bytes",
                &limit,
                "--session-idle",
                // the sweeps publish the paths of all sessions during the run
                "5s",
                "--tokenizer",
                TOKENIZER,
            ];
            servers.push(Server::start(Tap::start(upstream, &flags).await).await);
        }
        println!(
            "both servers are ready after {:.1} s; the limit is {:.0} MB",
            began.elapsed().as_secs_f64(),
            limit as f64 / 1e6
        );
        let mut number = 0;
        // on both servers all the time, so that the machine has the same load while each is measured
        let controls: Vec<SocketAddr> = servers.iter().map(|server| server.tap.control).collect();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let background = std::thread::spawn(move || run_background(&controls, stopped));
        for _ in 0..sizes.requests / BLOCK {
            for server in &mut servers {
                server.block(&mut number).await;
            }
        }
        stop.send(()).expect("the background runs");
        background.join().expect("the background does not panic");
        println!("all requests are sent after {:.0} s", began.elapsed().as_secs_f64());
        report(&servers).await;
    });
}

/// A server, with open connections and the times of its requests.
struct Server {
    tap: Tap,
    connection: Connection,
    messages: Vec<Value>,
    times: [Times; KINDS.len()],
}

impl Server {
    async fn start(tap: Tap) -> Self {
        let connection = Connection::open(tap.data.port()).await.unwrap();
        let mut server = Self { tap, connection, messages: Vec::new(), times: Default::default() };
        // the tokenizer is read, and the replies of the long session are indexed, before the measurement
        let limit = Instant::now() + Duration::from_secs(60);
        while server.chat(0, false).await != 200 {
            assert!(Instant::now() < limit, "chats are not served");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    /// Sends requests of each kind in turn.
    async fn block(&mut self, number: &mut u32) {
        for _ in 0..BLOCK {
            *number += 1;
            let mut prompt = PROMPT;
            prompt[0] = *number % 150_000;
            self.generate(0, "/generate", &prompt).await;
            self.generate(1, &format!("/sessions/{LONG}/generate"), &prompt).await;
            self.generate(2, &format!("/sessions/{SAMPLED}/generate"), &PROMPT).await;
            assert_eq!(self.chat(*number, true).await, 200, "a chat is answered");
        }
    }

    async fn generate(&mut self, kind: usize, path: &str, prompt: &[u32]) {
        let body = json!({"input_ids": prompt, "sampling_params": {"max_new_tokens": TOKENS, "temperature": 1.0, "sampling_seed": 1}});
        let request = post(path, &[], body.to_string().as_bytes());
        let began = Instant::now();
        let status = self.connection.exchange(&request, |_| {}).await.unwrap();
        self.times[kind].push(began.elapsed());
        assert_eq!(status, 200, "{path}");
    }

    /// Continues the conversation, or begins another one.
    async fn chat(&mut self, number: u32, is_timed: bool) -> u16 {
        if self.messages.len() >= 2 * CHAT_TURNS {
            self.messages.clear();
        }
        self.messages.push(json!({"role": "user", "content": format!("How far does light number {number} go?")}));
        let body =
            json!({"model": "qwen", "messages": self.messages, "max_tokens": TOKENS, "temperature": 1.0, "seed": 1});
        let request = post(&format!("/sessions/{LONG}/v1/chat/completions"), &[], body.to_string().as_bytes());
        let mut reply = Vec::new();
        let began = Instant::now();
        let status = self.connection.exchange(&request, |part| reply.extend_from_slice(part)).await.unwrap();
        // only the turns that continue another one
        if is_timed && self.messages.len() > 1 {
            self.times[KINDS.len() - 1].push(began.elapsed());
        }
        if status == 200 {
            let reply: Value = serde_json::from_slice(&reply).unwrap();
            self.messages.push(json!({"role": "assistant", "content": reply["choices"][0]["message"]["content"]}));
        } else {
            self.messages.pop();
        }
        status
    }
}

/// Runs the background of each server on this thread until it is stopped.
fn run_background(controls: &[SocketAddr], stopped: tokio::sync::oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = controls.iter().map(|control| tokio::spawn(background(*control))).collect();
        let _ = stopped.await;
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

/// Scrapes metrics, pages through the sessions and exports the longest one until it is dropped.
async fn background(control: SocketAddr) {
    let scrapes = async {
        loop {
            let (status, _) = ask(control, &get("/metrics")).await.unwrap();
            assert_eq!(status, 200);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let pages = async {
        let mut next = "0".to_owned();
        loop {
            let (_, page) = ask(control, &get(&format!("/v1/sessions?limit=1000&after={next}"))).await.unwrap();
            let end = String::from_utf8_lossy(&page[page.len().saturating_sub(200)..]).into_owned();
            let after = end.rsplit("\"next\":\"").next().and_then(|rest| rest.split('"').next());
            next = after.filter(|after| after.parse::<u64>().is_ok()).unwrap_or("0").to_owned();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let exports = async {
        loop {
            let body = json!({"sessions": [LONG], "format": "jsonl", "include_branches": false});
            let _ = ask(control, &post("/v1/samples", &[], body.to_string().as_bytes())).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::join!(scrapes, pages, exports);
}

async fn report(servers: &[Server]) {
    println!("latency in microseconds, empty / full store, and the ratio");
    println!("| request | number | p50 | | | p99 | | | p99.9 | | | longest | |");
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let [empty, full] = servers else { panic!("there are two servers") };
    for (kind, name) in KINDS.into_iter().enumerate() {
        let [empty, full] = [empty, full].map(|server| &server.times[kind]);
        let cells: String = [0.5, 0.99, 0.999]
            .map(|part| {
                let [empty, full] = [empty, full].map(|times| times.quantile(part));
                format!("{empty:.0} | {full:.0} | {:.2} x | ", full / empty)
            })
            .concat();
        println!("| {name} | {} | {cells}{:.0} | {:.0} |", full.count(), empty.longest(), full.longest());
    }
    for (name, server) in [("empty", empty), ("full", full)] {
        let text = server.tap.metrics().await;
        let all = |name| metric(&text, name, "");
        println!(
            "{name}: {} sessions, {:.0} MB, {} evicted, {} records lost; {}",
            all("tokentap_sessions"),
            all("tokentap_sessions_bytes") / 1e6,
            all("tokentap_sessions_evicted_total"),
            all("tokentap_log_lost_records_total"),
            server.tap.usage(),
        );
    }
    println!();
}
