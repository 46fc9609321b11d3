// SPDX-License-Identifier: Apache-2.0
//! The memory of tokentap while agents send screenshots: sessions of 20 turns, each with a new picture of 300 KB after all earlier ones,
//! under `--session-bytes 1GiB`. The sessions have 6 GB of pictures together. Checks that the memory stays below 1.5 times the limit, and
//! that each row that is exported has all its pictures, byte for byte.
//!
//! `cargo bench --bench pictures`, or `-- MODE`:
//! `rounds` runs all sessions at once, a turn of each in turn, in memory only: 84 GB of requests.
//! `log` runs sixteen sessions at once, with `--data-dir`, and exports all sessions from the log: 8 GB of disk below the temporary folder.
//! `SESSIONS=NUMBER` instead of 1,000. `TOKENTAP=PATH` measures another tokentap binary.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports to its terminal, and fails loudly")]
#![allow(unreachable_pub, missing_docs, missing_debug_implementations, reason = "a bench exports nothing")]

#[allow(dead_code, reason = "the bench of the proxy uses the rest")]
#[path = "proxy/process.rs"]
mod process;
#[allow(dead_code, reason = "the bench of the proxy uses the rest")]
#[path = "proxy/usage.rs"]
mod usage;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memchr::memmem;
use process::{PROXY_CORE, Process};
use serde_json::{Value, json};
use usage::Memory;

const TURNS: usize = 20;
const PICTURE_BYTES: usize = 300_000;
const LIMIT: f64 = (1 << 30) as f64;
/// The most memory, in multiples of the limit.
const MOST: f64 = 1.5;
/// Connections of clients.
const CLIENTS: usize = 16;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let is_chosen = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let sessions = std::env::var("SESSIONS").map_or(1000, |number| number.parse().unwrap());
    let engine = engine();
    if is_chosen("rounds") {
        rounds(engine, sessions);
    }
    if is_chosen("log") {
        log(engine, sessions);
    }
}

/// All sessions at once, in memory only.
fn rounds(engine: u16, sessions: usize) {
    let tap = Tap::start(engine, &[]);
    let start = Instant::now();
    for turn in 0..TURNS {
        each(sessions, |connection, session| connection.turn(session, turn));
    }
    let memory = tap.report("rounds", sessions, start);
    let in_memory = export(["--control", &format!("http://127.0.0.1:{}", tap.control)]);
    let evicted = tap.counter("tokentap_sessions_evicted_total");
    println!("rounds: {} rows exported with {TURNS} pictures each; {evicted:.0} evictions counted", in_memory.len());
    assert!(!in_memory.is_empty() && evicted > 0.0 && memory <= MOST * LIMIT);
}

/// Sixteen sessions at once, which are also in a log.
fn log(engine: u16, sessions: usize) {
    let folder = tempfile::tempdir().unwrap();
    let tap = Tap::start(engine, &["--data-dir", folder.path().to_str().unwrap()]);
    let start = Instant::now();
    each(sessions, |connection, session| (0..TURNS).for_each(|turn| connection.turn(session, turn)));
    let memory = tap.report("log", sessions, start);
    let lost = tap.counter("tokentap_log_lost_records_total");
    drop(tap);
    let start = Instant::now();
    let rows = export(["--data-dir", folder.path().to_str().unwrap()]);
    println!(
        "log: {} of {sessions} sessions exported from the log with {TURNS} pictures each, in {:.0} s; {lost:.0} records lost",
        rows.len(),
        start.elapsed().as_secs_f64()
    );
    assert!(rows.len() == sessions && lost == 0.0 && memory <= MOST * LIMIT);
}

/// Does something for each session, on some connections.
fn each(sessions: usize, work: impl Fn(&mut Connection, usize) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut connection = Connection::open(PORT.load(Ordering::Relaxed));
                while let Some(session) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < sessions) {
                    work(&mut connection, session);
                }
            });
        }
    });
}

/// The port of the tokentap that runs.
static PORT: AtomicUsize = AtomicUsize::new(0);

/// Checks that a row has all pictures of its session, and returns the session.
fn check(line: &str) -> String {
    let row: Value = serde_json::from_str(line).unwrap();
    let session = row["session"].as_str().unwrap().to_owned();
    let number: usize = session.trim_start_matches("s-").parse().unwrap();
    let data = row["image_data"].as_array().unwrap();
    assert_eq!(data.len(), TURNS, "{session}");
    for (at, data) in data.iter().enumerate() {
        assert!(data.as_str().unwrap().as_bytes() == picture(number, at), "{session}: picture {at}");
    }
    session
}

/// The base64 text of a picture, which no other session or turn has. It is noise after the signature of a PNG.
fn picture(session: usize, turn: usize) -> Vec<u8> {
    const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
    let mut state = ((session * TURNS + turn + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = SIGNATURE.to_vec();
    while bytes.len() < PICTURE_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    base64_simd::STANDARD.encode_to_string(bytes).into_bytes()
}

/// The placeholder of pictures, and its neighbours.
const START: u32 = 151_652;
const PAD: u32 = 151_655;
const END: u32 = 151_653;
/// Tokens of a picture.
const RUN: usize = 64;
/// The tokens that the engine samples.
const SAMPLED: [u32; 16] = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];

/// The ids of a turn's prompt: those of all messages so far, each with a placeholder.
fn ids(session: usize, turn: usize) -> Vec<u32> {
    let message = |at: usize| [100 + session as u32, 200 + at as u32, START, PAD, END, 99];
    (0..=turn)
        .flat_map(|at| if at == 0 { message(at).to_vec() } else { [&SAMPLED[..], &message(at)].concat() })
        .collect()
}

/// A keep-alive connection to tokentap.
struct Connection {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Connection {
    fn open(port: usize) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), request: Vec::new(), reply: Vec::new() }
    }

    /// Sends a turn with the pictures of all turns so far, and checks the reply.
    fn turn(&mut self, session: usize, turn: usize) {
        self.request.clear();
        let ids = json!(ids(session, turn)).to_string();
        write!(
            self.request,
            r#"{{"input_ids":{ids},"sampling_params":{{"max_new_tokens":16,"temperature":1.0}},"image_data":["#
        )
        .unwrap();
        for at in 0..=turn {
            self.request.extend_from_slice(if at > 0 {
                b",\"data:image/png;base64,"
            } else {
                b"\"data:image/png;base64,"
            });
            self.request.extend_from_slice(&picture(session, at));
            self.request.push(b'"');
        }
        self.request.extend_from_slice(b"]}");
        let head = format!(
            "POST /sessions/s-{session}/generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.request.len()
        );
        let mut stream = self.stream.get_ref();
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&self.request).unwrap();
        let head = read_message(&mut self.stream, &mut self.reply).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}{}", String::from_utf8_lossy(&self.reply));
        let reply: Value = serde_json::from_slice(&self.reply).unwrap();
        assert_eq!(reply["output_ids"], json!(SAMPLED));
        assert!(reply["meta_info"]["entropy_info"].is_object(), "{reply}");
    }
}

/// Reads a message with a length into `body`, and returns its head. `None` at the end of the connection.
fn read_message(stream: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    });
    body.clear();
    stream.take(length.unwrap_or(0)).read_to_end(body).ok()?;
    Some(head)
}

/// Exports all sessions of a source, checks their rows, and returns their names.
fn export(source: [&str; 2]) -> BTreeSet<String> {
    let arguments = ["export", "--format", "jsonl", "--images", "embed", "--out", "-"];
    let mut export = Command::new(binary()).args(arguments).args(source).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = BufReader::with_capacity(1 << 20, export.stdout.take().unwrap());
    let (mut sessions, mut line) = (BTreeSet::new(), String::new());
    while text.read_line(&mut line).unwrap() > 0 {
        assert!(sessions.insert(check(&line)), "one row for each session");
        line.clear();
    }
    assert!(export.wait().unwrap().success());
    sessions
}

/// A tokentap in a separate process.
struct Tap {
    process: Process,
    control: u16,
}

impl Tap {
    /// Starts it in front of an engine, and waits until it has probed the engine.
    fn start(upstream: u16, flags: &[&str]) -> Self {
        let [port, control] = [free_port(), free_port()];
        let arguments = format!(
            "serve --upstream http://127.0.0.1:{upstream} --listen 127.0.0.1:{port} --control-listen 127.0.0.1:{control} --log warn --session-bytes 1GiB"
        );
        let arguments: Vec<String> = arguments.split(' ').chain(flags.iter().copied()).map(str::to_owned).collect();
        let mut tap = Self { process: Process::start(&binary(), &arguments, PROXY_CORE, Stdio::null()), control };
        PORT.store(port.into(), Ordering::Relaxed);
        let limit = Instant::now() + Duration::from_secs(60);
        while tap.get("/readyz").is_none_or(|(head, _)| !head.starts_with("HTTP/1.0 200")) {
            assert!(tap.process.is_alive() && Instant::now() < limit, "tokentap does not become ready");
            thread::sleep(Duration::from_millis(50));
        }
        tap
    }

    fn get(&self, path: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.control)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).ok()?;
        reply.split_once("\r\n\r\n").map(|(head, body)| (head.to_owned(), body.to_owned()))
    }

    /// The sum of a counter or gauge over its labels.
    fn counter(&self, name: &str) -> f64 {
        let (_, metrics) = self.get("/metrics").unwrap();
        let of =
            metrics.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        of.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Prints its memory and CPU time after all sessions, and returns the peak.
    fn report(&self, mode: &str, sessions: usize, start: Instant) -> f64 {
        let time = start.elapsed().as_secs_f64();
        let memory = Memory::of(self.process.id());
        let calls = (sessions * TURNS) as f64;
        let sent = calls * (TURNS + 1) as f64 / 2.0 * (PICTURE_BYTES / 3 * 4) as f64;
        println!(
            "{mode}: {sessions} sessions of {TURNS} turns, {:.0} GB sent in {time:.0} s; peak {:.0} MB, {:.2} x the limit; {:.0} MB counted now",
            sent / 1e9,
            memory.peak as f64 / 1e6,
            memory.peak as f64 / LIMIT,
            self.counter("tokentap_sessions_bytes") / 1e6,
        );
        memory.peak as f64
    }
}

/// The binary that is measured.
fn binary() -> String {
    std::env::var("TOKENTAP").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tokentap").to_owned())
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts the engine, which expands the pictures of prompts as SGLang does, and returns its port.
fn engine() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || serve(stream));
        }
    });
    port
}

fn serve(stream: TcpStream) {
    let mut stream = BufReader::with_capacity(256 * 1024, stream);
    let mut body = Vec::new();
    while let Some(head) = read_message(&mut stream, &mut body) {
        let reply = match head.split(' ').nth(1).unwrap() {
            "/generate" => Some(generate(&body)),
            "/model_info" => Some(json!({"model_path": "vl", "is_generation": true, "weight_version": "default"})),
            "/server_info" => {
                Some(json!({"version": "0.5.23", "context_length": 40_960, "sampling_defaults": "openai"}))
            }
            _ => None,
        };
        let status = if reply.is_some() { "200 OK" } else { "404 Not Found" };
        let reply = reply.unwrap_or_else(|| json!({"detail": "Not Found"})).to_string();
        let reply = format!(
            "HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{reply}",
            reply.len()
        );
        if stream.get_mut().write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// The reply to a request. It has as many pictures as placeholders.
fn generate(body: &[u8]) -> Value {
    const PICTURES: &[u8] = b"\"image_data\":[";
    // only the rest is read as JSON
    let pictures = memmem::find(body, PICTURES);
    let rest = pictures.map(|start| {
        let end = start + memchr::memchr(b']', &body[start..]).unwrap();
        (
            memmem::find_iter(&body[start..end], b"\"data:").count(),
            [&body[..start + PICTURES.len()], &body[end..]].concat(),
        )
    });
    let (pictures, rest) = rest.unwrap_or_else(|| (0, body.to_vec()));
    let request: Value = serde_json::from_slice(&rest).unwrap();
    let sent: Vec<u32> = serde_json::from_value(request["input_ids"].clone()).unwrap();
    let prompt: Vec<u32> = sent.iter().flat_map(|id| vec![*id; if *id == PAD { RUN } else { 1 }]).collect();
    assert_eq!(sent.iter().filter(|id| **id == PAD).count(), pictures);
    let tokens = request["sampling_params"]["max_new_tokens"].as_u64().unwrap().min(16) as usize;
    let row = |id: u32, rank: u64| json!([-0.5 - rank as f64, u64::from(id) + rank, null]);
    let k = request["top_logprobs_num"].as_u64().unwrap_or(0);
    let sampled = &SAMPLED[..tokens];
    let mut reply = json!({"text": "", "output_ids": sampled, "prompt_token_ids": prompt, "meta_info": {
        "id": request["rid"].as_str().unwrap_or("engine"), "finish_reason": {"type": "length", "length": tokens},
        "prompt_tokens": prompt.len(), "completion_tokens": tokens, "cached_tokens": 0, "weight_version": "default",
        "output_token_logprobs": sampled.iter().map(|id| row(*id, 0)).collect::<Vec<_>>(),
        "output_top_logprobs": sampled.iter().map(|id| (0..k).map(|rank| row(*id, rank)).collect()).collect::<Vec<Vec<_>>>(),
    }});
    if pictures > 0 {
        reply["meta_info"]["image_tokens"] = json!(pictures * RUN);
    }
    reply
}
