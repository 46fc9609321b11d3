// SPDX-License-Identifier: Apache-2.0
//! Replays sessions: each client runs one session after the other, and sends the next turn after the reply to the previous one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Extent;
use crate::check::Prompts;
use crate::client::Connection;
use crate::engine::{Engine, TURN_TOKENS};
use crate::script::{Reply, Script};
use crate::tap::{Tap, head};
use crate::usage::Usage;

/// Whether replies are streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Whole,
    Stream,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "not streaming",
            Self::Stream => "streaming",
        }
    }
}

/// The measurements of a replay.
pub struct Outcome {
    /// From sending a request to the last byte of its reply, in ms, sorted.
    pub latencies: Vec<f64>,
    pub elapsed: Duration,
    /// CPU time of tokentap.
    pub cpu: Option<Duration>,
    /// The busy share of the core of load and engine.
    pub core_busy: f64,
    /// Work of other processes, in cores.
    pub others: f64,
}

impl Outcome {
    pub fn quantile(&self, part: f64) -> f64 {
        let at = (self.latencies.len() as f64 * part) as usize;
        self.latencies[at.min(self.latencies.len() - 1)]
    }
}

/// Replays chats through tokentap. The sessions are named `PREFIX-0`, `PREFIX-1` and so on.
pub async fn chats(
    script: &Arc<Script>,
    mode: Mode,
    prefix: &'static str,
    extent: Extent,
    tap: &Tap,
    engine: &Engine,
) -> Outcome {
    let port = tap.port;
    measure(extent, (Some(tap.process.id()), engine), |next| {
        let script = Arc::clone(script);
        async move {
            let mut connection = Connection::open(port).await.unwrap();
            let mut latencies = Vec::new();
            while let Some(session) = next.take() {
                let path = format!("/sessions/{prefix}-{session}/v1/chat/completions");
                let mut request = Request::new(script.begin(session, mode == Mode::Stream), b"]}");
                for turn in 0..extent.turns {
                    let (time, reply) = exchange(&mut connection, request.bytes(&path)).await;
                    latencies.push(time);
                    script.continue_after(request.body(), (session, turn), &Reply::parse(&reply));
                }
            }
            latencies
        }
    })
    .await
}

/// Sends the prompts of a session to the engine as token ids, as often as there are sessions.
pub async fn plain(prompts: &Prompts, mode: Mode, extent: Extent, engine: &Engine) -> Outcome {
    let port = engine.port;
    let flat = if mode == Mode::Whole {
        r#","return_flat_raw_output_top_logprobs":true,"return_flat_raw_top_logprobs_b64":true"#
    } else {
        ""
    };
    let end = format!(
        r#"],"sampling_params":{{"max_new_tokens":{TURN_TOKENS},"temperature":1.0}},"stream":{},"return_logprob":true,"top_logprobs_num":20{flat}}}"#,
        mode == Mode::Stream
    );
    let end: Arc<[u8]> = end.into_bytes().into();
    let texts = Arc::new(prompts.texts());
    measure(extent, (None, engine), |next| {
        let (texts, end) = (Arc::clone(&texts), Arc::clone(&end));
        async move {
            let mut connection = Connection::open(port).await.unwrap();
            let mut latencies = Vec::new();
            while next.take().is_some() {
                let mut request = Request::new(b"{\"input_ids\":[".to_vec(), &end);
                for text in texts.iter() {
                    request.body().extend_from_slice(text);
                    latencies.push(exchange(&mut connection, request.bytes("/generate")).await.0);
                }
            }
            latencies
        }
    })
    .await
}

/// The numbers of the sessions that no client has taken.
#[derive(Clone)]
struct Next {
    taken: Arc<AtomicUsize>,
    sessions: usize,
}

impl Next {
    fn take(&self) -> Option<usize> {
        Some(self.taken.fetch_add(1, Ordering::Relaxed)).filter(|session| *session < self.sessions)
    }
}

async fn measure<F: Future<Output = Vec<f64>> + Send + 'static>(
    extent: Extent,
    (tap, engine): (Option<u32>, &Engine),
    client: impl Fn(Next) -> F,
) -> Outcome {
    let harness = [std::process::id(), engine.process.id()];
    let next = Next { taken: Arc::default(), sessions: extent.sessions };
    let before = Usage::now(tap, harness);
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..extent.clients {
        tasks.spawn(client(next.clone()));
    }
    let mut latencies = tasks.join_all().await.concat();
    let elapsed = start.elapsed();
    let used = Usage::now(tap, harness).since(&before);
    latencies.sort_by(f64::total_cmp);
    let cpu = tap.map(|_| used.proxy);
    Outcome { latencies, elapsed, cpu, core_busy: used.core_busy, others: used.others }
}

/// Sends a request; returns the time until the last byte, in ms, and the body of the reply.
async fn exchange(connection: &mut Connection, request: &[u8]) -> (f64, Vec<u8>) {
    let start = Instant::now();
    let mut body = Vec::new();
    let status = connection.exchange(request, |data| body.extend_from_slice(data)).await.unwrap();
    let time = start.elapsed().as_secs_f64() * 1e3;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    (time, body)
}

/// The requests of a session, whose body grows; only the new part is written for each turn.
struct Request<'a> {
    /// Room for the head, the body without its end, and the end.
    bytes: Vec<u8>,
    end: &'a [u8],
    /// Whether the end is written.
    is_complete: bool,
}

impl<'a> Request<'a> {
    /// Room for the head.
    const HEAD: usize = 512;

    fn new(body: Vec<u8>, end: &'a [u8]) -> Self {
        let mut bytes = vec![0; Self::HEAD];
        bytes.extend(body);
        Self { bytes, end, is_complete: false }
    }

    /// The body without its end.
    fn body(&mut self) -> &mut Vec<u8> {
        if std::mem::take(&mut self.is_complete) {
            self.bytes.truncate(self.bytes.len() - self.end.len());
        }
        &mut self.bytes
    }

    /// The whole request.
    fn bytes(&mut self, path: &str) -> &[u8] {
        let end = self.end;
        self.body().extend_from_slice(end);
        self.is_complete = true;
        let head = head(path, self.bytes.len() - Self::HEAD);
        let start = Self::HEAD - head.len();
        self.bytes[start..Self::HEAD].copy_from_slice(&head);
        &self.bytes[start..]
    }
}
