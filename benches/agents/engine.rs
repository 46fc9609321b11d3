// SPDX-License-Identifier: Apache-2.0
//! The canned engine: a separate process that answers each turn with one of a few replies that call a tool.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;
use std::sync::Arc;

use memchr::memmem;
use tokentap::demo::Dialect;
use tokentap::demo::wire::{
    DONE, Finish, Form, LogprobRow, LogprobTable, Logprobs, Meta, Reply, SideLogprobs, Span, Timing, Wire,
};
use tokentap::tokenizer::Renderer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::process::{HARNESS_CORE, Process};
use crate::script;
use crate::upstream::{self, Canned, ReplyCache, Server};

/// `max_tokens` of a turn. Other requests, such as those of the probe, get the replies of the proxy bench.
pub const TURN_TOKENS: usize = 1024;

/// The engine's process.
pub struct Engine {
    pub process: Process,
    pub port: u16,
}

impl Engine {
    pub fn start() -> Self {
        let program = std::env::current_exe().unwrap();
        let role = [upstream::ROLE.to_owned()];
        let mut process = Process::start(program.to_str().unwrap(), &role, HARNESS_CORE, Stdio::piped());
        let mut line = String::new();
        BufReader::new(process.stdout()).read_line(&mut line).unwrap();
        Self { process, port: line.trim().parse().unwrap() }
    }
}

/// Serves until standard input ends, when the benchmark ends.
pub fn main() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let renderer = script::tokenizer();
        let replies =
            Arc::new((0..script::REPLIES).map(|number| TurnReply::new(&renderer, number)).collect::<Vec<_>>());
        let cache = ReplyCache::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        std::io::stdout().flush().unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (replies, cache) = (Arc::clone(&replies), Arc::clone(&cache));
            // an error means that the client has disconnected
            tokio::spawn(async move { serve(stream, &replies, &cache).await.ok() });
        }
    });
}

async fn serve(mut stream: TcpStream, replies: &[TurnReply], cache: &ReplyCache) -> std::io::Result<()> {
    let mut buffer = Vec::with_capacity(1 << 20);
    loop {
        let length = loop {
            // a request that is not complete is cheap to see: its head is short
            if let Some(length) = upstream::request_length(&buffer) {
                break length;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        match TurnRequest::parse(&buffer[..length]) {
            Some(request) => replies[request.prompt_tokens % replies.len()].send(&mut stream, request).await?,
            None => match &*upstream::answer(&buffer[..length], Server::Flat, cache).0 {
                Canned::Whole(bytes) => stream.write_all(bytes).await?,
                Canned::Events(events) => stream.write_all(&events.concat()).await?,
            },
        }
        buffer.drain(..length);
    }
}

/// The members of a turn's request that its reply depends on.
#[derive(Debug, Clone, Copy)]
struct TurnRequest {
    prompt_tokens: usize,
    streams: bool,
    logprobs: bool,
}

impl TurnRequest {
    /// `None` if the request is not that of a turn.
    fn parse(request: &[u8]) -> Option<Self> {
        const IDS: &[u8] = b"\"input_ids\":[";
        if !request.starts_with(b"POST /generate ") {
            return None;
        }
        let ids = memmem::find(request, IDS)? + IDS.len();
        let end = ids + memchr::memchr(b']', &request[ids..])?;
        let rest = &request[end..];
        let has = |text: &str| memmem::find(rest, text.as_bytes()).is_some();
        has(&format!("\"max_new_tokens\":{TURN_TOKENS}")).then(|| Self {
            prompt_tokens: 1 + memchr::memchr_iter(b',', &request[ids..end]).count(),
            streams: has("\"stream\":true"),
            logprobs: has("\"return_logprob\":true"),
        })
    }
}

/// A part of a reply around the number of prompt tokens.
type Piece = (Vec<u8>, Vec<u8>);

/// A reply, written once; only the number of prompt tokens differs.
struct TurnReply {
    /// Without and with logprobs.
    whole: [Piece; 2],
    /// Without and with logprobs, an event for each token.
    events: [Vec<Piece>; 2],
}

impl TurnReply {
    fn new(renderer: &Renderer, number: usize) -> Self {
        let sequence = Sequence::new(renderer, number);
        Self {
            whole: [false, true].map(|logprobs| sequence.whole(logprobs)),
            events: [false, true].map(|logprobs| sequence.events(logprobs)),
        }
    }

    async fn send(&self, stream: &mut TcpStream, request: TurnRequest) -> std::io::Result<()> {
        let tokens = request.prompt_tokens.to_string();
        let mut out = Vec::with_capacity(64 * 1024);
        if !request.streams {
            let (before, after) = &self.whole[usize::from(request.logprobs)];
            let length = before.len() + tokens.len() + after.len();
            out.extend_from_slice(format!("HTTP/1.1 200 OK\r\ndate: Fri, 21 Nov 2025 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n").as_bytes());
            out.extend_from_slice(before);
            out.extend_from_slice(tokens.as_bytes());
            out.extend_from_slice(after);
            return stream.write_all(&out).await;
        }
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\ndate: Fri, 21 Nov 2025 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
        for (before, after) in &self.events[usize::from(request.logprobs)] {
            out.extend_from_slice(format!("{:x}\r\n", before.len() + tokens.len() + after.len()).as_bytes());
            out.extend_from_slice(before);
            out.extend_from_slice(tokens.as_bytes());
            out.extend_from_slice(after);
            out.extend_from_slice(b"\r\n");
            stream.write_all(&out).await?;
            out.clear();
        }
        out.extend_from_slice(format!("{:x}\r\n", DONE.len()).as_bytes());
        out.extend_from_slice(DONE);
        out.extend_from_slice(b"\r\n0\r\n\r\n");
        stream.write_all(&out).await
    }
}

/// Logprobs of a token.
const K: usize = 20;

/// The sampled tokens of a reply.
struct Sequence {
    ids: Vec<u32>,
    texts: Vec<String>,
    chosen: Vec<LogprobRow>,
    top: Vec<LogprobRow>,
    finish: Finish,
    spans: [Span; 1],
}

impl Sequence {
    fn new(renderer: &Renderer, number: usize) -> Self {
        let ids = script::reply_tokens(renderer, number);
        let last = *ids.last().unwrap();
        let text =
            |id: &u32| if *id == last { String::new() } else { renderer.tokenizer().decode(&[*id], false).unwrap() };
        // the sampled token is the likeliest; the probabilities of a row sum to less than 1
        let logprob = |token: usize, rank: usize| -0.5 - (1.0 + 0.17 * (token % 7) as f32) * rank as f32;
        let row = |token: usize, rank: usize| {
            let id = if rank == 0 { ids[token] } else { 100 + (token * 31 + rank * 7) as u32 % 800 };
            LogprobRow { logprob: Some(logprob(token, rank)), id }
        };
        Self {
            texts: ids.iter().map(text).collect(),
            chosen: (0..ids.len()).map(|token| row(token, 0)).collect(),
            top: (0..ids.len() * K).map(|at| row(at / K, at % K)).collect(),
            finish: Finish::StopToken(last),
            spans: [Span { version: "default".to_owned(), start: 0, end: ids.len() }],
            ids,
        }
    }

    fn whole(&self, logprobs: bool) -> Piece {
        let mut out = Vec::new();
        WIRE.object(&mut out, &self.reply(0..self.ids.len(), logprobs, Form::FlatBase64, &self.texts.concat()));
        split(&out)
    }

    fn events(&self, logprobs: bool) -> Vec<Piece> {
        let event = |at: usize| {
            let mut out = Vec::new();
            WIRE.event(&mut out, &self.reply(at..at + 1, logprobs, Form::Nested, &self.texts[at]));
            split(&out)
        };
        (0..self.ids.len()).map(event).collect()
    }

    fn reply<'a>(&'a self, range: std::ops::Range<usize>, logprobs: bool, form: Form, text: &'a str) -> Reply<'a> {
        let table = |rows| Some(LogprobTable { null_prefix: 0, width: K, rows });
        let (start, end) = (range.start, range.end);
        let logprobs = logprobs.then(|| Logprobs {
            input: SideLogprobs { top: table(&[]), ..SideLogprobs::default() },
            output: SideLogprobs {
                tokens: &self.chosen[range.clone()],
                top: table(&self.top[start * K..end * K]),
                form,
                ids: None,
            },
            output_length: end,
            texts: None,
        });
        Reply {
            text,
            output_ids: &self.ids[range],
            meta: Meta {
                id: "0123456789abcdef0123456789abcdef",
                finish: (end == self.ids.len()).then_some(&self.finish),
                prompt_tokens: PROMPT_TOKENS,
                completion_tokens: end,
                cached_tokens: 16,
                weight_version: "default",
                weight_versions: &self.spans,
                retractions: 0,
                logprobs,
                masks: None,
                masks_length: 0,
                experts: None,
                exact: None,
                timing: Timing::default(),
                first: start == 0,
            },
            prompt_token_ids: None,
            index: None,
        }
    }
}

const WIRE: Wire = Wire { dialect: Dialect::Sglang0523, metrics: false };

/// The place of the number in a written reply.
const PROMPT_TOKENS: usize = 987_654_321;

fn split(bytes: &[u8]) -> Piece {
    let number = PROMPT_TOKENS.to_string();
    let at = memmem::find(bytes, number.as_bytes()).unwrap();
    (bytes[..at].to_vec(), bytes[at + number.len()..].to_vec())
}
