// SPDX-License-Identifier: Apache-2.0
//! A tokentap in a separate process, pinned to a core.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::Connection;
use crate::process::{PROXY_CORE, Process};

/// The folder of the demo's tokenizer.
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/demo/assets");

/// A running tokentap, ended when dropped.
pub struct Tap {
    pub process: Process,
    pub port: u16,
    pub control: u16,
}

impl Tap {
    /// Starts it in front of an engine, and waits until it renders chats and has probed the engine.
    pub async fn start(binary: &str, upstream: u16) -> Self {
        Self::start_on(&PROXY_CORE.to_string(), binary, upstream).await
    }

    /// The same on these cores, after which variables of the environment may follow.
    pub async fn start_on(cores: &str, binary: &str, upstream: u16) -> Self {
        let [port, control] = [free_port(), free_port()];
        let tokenizer = std::env::var("TOKENIZER").unwrap_or_else(|_| DEMO.to_owned());
        let arguments = format!(
            "serve --upstream http://127.0.0.1:{upstream} --listen 127.0.0.1:{port} --control-listen 127.0.0.1:{control} --log warn --session-bytes 2GiB"
        );
        let (cores, variables) = cores.split_once(' ').unwrap_or((cores, ""));
        // each of these programs becomes the next one, so the process id is that of tokentap
        let start = ["-c", cores, "env"].into_iter().chain(variables.split_whitespace()).chain([binary]);
        let mut arguments: Vec<String> = start.chain(arguments.split(' ')).map(str::to_owned).collect();
        arguments.extend(["--tokenizer".to_owned(), tokenizer]);
        let process = Process::start("taskset", &arguments, PROXY_CORE, Stdio::null());
        let mut tap = Self { process, port, control };
        let limit = Instant::now() + Duration::from_secs(20);
        while !tap.is_ready().await {
            assert!(tap.process.is_alive(), "tokentap has ended");
            assert!(Instant::now() < limit, "tokentap does not become ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tap
    }

    async fn is_ready(&self) -> bool {
        let chat = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":16,"return_entropy":true}"#;
        let Ok((200, body)) = ask(self.port, &post("/v1/chat/completions", chat.as_bytes())).await else {
            return false;
        };
        let has = |text: &str| memchr::memmem::find(&body, text.as_bytes()).is_some();
        has("\"vocab_size\":") && has("\"estimator\":\"estimate\"")
    }

    /// The metrics as text.
    pub async fn metrics(&self) -> String {
        let (status, body) = ask(self.control, &get("/metrics")).await.unwrap();
        assert_eq!(status, 200, "/metrics");
        String::from_utf8(body).unwrap()
    }
}

/// Sends one request on a new connection; returns the status and the body.
pub async fn ask(port: u16, request: &[u8]) -> std::io::Result<(u16, Vec<u8>)> {
    let mut connection = Connection::open(port).await?;
    let mut body = Vec::new();
    let status = connection.exchange(request, |data| body.extend_from_slice(data)).await?;
    Ok((status, body))
}

pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

pub fn post(path: &str, body: &[u8]) -> Vec<u8> {
    [&head(path, body.len())[..], body].concat()
}

/// The head of a POST.
pub fn head(path: &str, length: usize) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n")
        .into_bytes()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
