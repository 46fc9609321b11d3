// SPDX-License-Identifier: Apache-2.0
//! An agent of the soak: conversations that end, and replies that are read, abandoned, truncated, refused and retried.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memchr::memmem;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::client::Connection;
use crate::rude::FAULT;
use crate::tap::post;

/// Counts of the agents' actions, by kind.
#[derive(Debug, Default)]
pub struct ActionCounts {
    pub whole: AtomicU64,
    pub streams: AtomicU64,
    pub left: AtomicU64,
    pub slow: AtomicU64,
    pub refused: AtomicU64,
    pub cut: AtomicU64,
    pub retried: AtomicU64,
    /// Wrong replies; the first of them are printed.
    pub wrong: AtomicU64,
}

impl ActionCounts {
    pub fn all(&self) -> u64 {
        let parts = [&self.whole, &self.streams, &self.left, &self.slow, &self.refused, &self.cut, &self.retried];
        parts.into_iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }
}

/// An agent.
pub struct Agent {
    pub name: u64,
    pub data: SocketAddr,
    pub done: Arc<ActionCounts>,
    pub dice: u64,
}

impl Agent {
    /// A number below `bound`.
    fn roll(&mut self, bound: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) % bound
    }

    /// Works until `stop` is set.
    pub async fn work(mut self, stop: Arc<AtomicBool>) {
        let mut sessions = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            sessions += 1;
            let session = format!("soak-{}-{sessions}", self.name);
            // some prompts are long, so that the log begins a new segment before the second half
            let length = if self.roll(2) == 0 { 8 + self.roll(64) } else { 1000 + self.roll(1000) };
            let mut tokens: Vec<u64> = (0..length).map(|_| self.roll(400)).collect();
            for turn in 0..1 + self.roll(8) {
                self.turn(&session, turn, &mut tokens).await;
                let pause = Duration::from_millis(self.roll(40));
                tokio::time::sleep(pause).await;
            }
        }
    }

    async fn turn(&mut self, session: &str, turn: u64, tokens: &mut Vec<u64>) {
        let kind = self.roll(100);
        let stream = (35..85).contains(&kind);
        let most = if kind >= 70 { 200 } else { 4 + self.roll(60) };
        let mut body = json!({
            "input_ids": tokens, "stream": stream,
            "sampling_params": {"max_new_tokens": most, "temperature": 1.0, "ignore_eos": true},
        });
        let headers = [("x-session-id", session)];
        match kind {
            0..70 => {
                let Some(output) = self.read(&headers, &body, 200).await else { return };
                let count = if stream { &self.done.streams } else { &self.done.whole };
                count.fetch_add(1, Ordering::Relaxed);
                tokens.extend(output);
                // a tool result
                tokens.extend((0..self.roll(16)).map(|at| at + turn));
            }
            70..78 => {
                self.leave(&headers, &body).await;
                self.done.left.fetch_add(1, Ordering::Relaxed);
            }
            78..82 => {
                self.read_slowly(&headers, &body).await;
                self.done.slow.fetch_add(1, Ordering::Relaxed);
            }
            82..86 => {
                let events = self.roll(20).to_string();
                let headers = [headers[0], (FAULT, &*events)];
                body["stream"] = json!(true);
                let _ = self.bytes(&headers, &body).await;
                self.done.cut.fetch_add(1, Ordering::Relaxed);
            }
            86..95 => {
                let status = [400_u16, 404, 429, 500, 503][self.roll(5) as usize];
                let text = status.to_string();
                self.read(&[headers[0], (FAULT, &text)], &body, status).await;
                self.done.refused.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                body["rid"] = json!(format!("{session}-{turn}"));
                self.leave(&headers, &body).await;
                let output = self.read(&[headers[0], ("x-stainless-retry-count", "1")], &body, 200).await;
                self.done.retried.fetch_add(1, Ordering::Relaxed);
                tokens.extend(output.into_iter().flatten());
            }
        }
    }

    /// Sends a request and reads the whole reply.
    async fn bytes(&self, headers: &[(&str, &str)], body: &Value) -> std::io::Result<(u16, Vec<u8>)> {
        let mut connection = Connection::open(self.data.port()).await?;
        let mut read = Vec::new();
        let request = post("/generate", headers, body.to_string().as_bytes());
        let reading = connection.exchange(&request, |data| read.extend_from_slice(data));
        let status = tokio::time::timeout(Duration::from_secs(60), reading)
            .await
            .map_err(|_| std::io::ErrorKind::TimedOut)??;
        Ok((status, read))
    }

    /// The sampled tokens of a reply; a reply without `status` is counted as wrong.
    async fn read(&self, headers: &[(&str, &str)], body: &Value, status: u16) -> Option<Vec<u64>> {
        let answer = self.bytes(headers, body).await;
        let output = match &answer {
            Ok((200, read)) if status == 200 => output(read),
            Ok((other, _)) if *other == status => return None,
            _ => None,
        };
        if output.is_none() && self.done.wrong.fetch_add(1, Ordering::Relaxed) < 5 {
            let reply = answer.map(|(status, read)| {
                (status, String::from_utf8_lossy(&read[read.len().saturating_sub(1500)..]).into_owned())
            });
            println!("{status} was expected of {headers:?} {body}: {reply:?}");
        }
        output
    }

    /// Disconnects after some events, or before the first.
    async fn leave(&mut self, headers: &[(&str, &str)], body: &Value) {
        let patience = Duration::from_millis(self.roll(60));
        let _ = tokio::time::timeout(patience, self.bytes(headers, body)).await;
    }

    /// Reads slowly for a while, then disconnects.
    async fn read_slowly(&mut self, headers: &[(&str, &str)], body: &Value) {
        let request = post("/generate", headers, body.to_string().as_bytes());
        let reads = 1 + self.roll(20);
        let slowly = async {
            let socket = TcpSocket::new_v4()?;
            socket.set_recv_buffer_size(4096)?;
            let mut stream = socket.connect(self.data).await?;
            stream.write_all(&request).await?;
            for _ in 0..reads {
                // the bytes are not checked
                let _ = stream.read(&mut [0; 512]).await?;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            std::io::Result::Ok(())
        };
        let _ = slowly.await;
    }
}

/// The ids of a reply, or of a stream that ends with `[DONE]`, if every token has an entropy.
fn output(read: &[u8]) -> Option<Vec<u64>> {
    let objects: Vec<Value> = if read.starts_with(b"data:") {
        memmem::rfind(read, b"data: [DONE]")?;
        let text = std::str::from_utf8(read).ok()?;
        let events = text.split_terminator("\n\n").filter_map(|event| event.strip_prefix("data: {"));
        events.map(|event| serde_json::from_str(&format!("{{{event}")).ok()).collect::<Option<_>>()?
    } else {
        vec![serde_json::from_slice(read).ok()?]
    };
    let mut ids = Vec::new();
    for object in &objects {
        let new = object["output_ids"].as_array()?;
        let nats = object["meta_info"]["output_token_entropy"].as_array()?;
        if nats.len() != new.len() || !nats.iter().all(Value::is_number) {
            return None;
        }
        ids.extend(new.iter().filter_map(Value::as_u64));
    }
    Some(ids)
}
