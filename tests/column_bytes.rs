// SPDX-License-Identifier: Apache-2.0
//! Measures the bytes that token columns take: in memory by the allocator, and the files of the log and of the archive.
//!
//! `cargo test --test column_bytes -- --nocapture` prints them. docs/reference/token-columns.md has the table.

#![expect(clippy::print_stdout, reason = "the test prints what it measured")]
#![expect(clippy::unwrap_used, reason = "a test that cannot start its servers has failed")]
#![allow(unreachable_pub, missing_docs, missing_debug_implementations, dead_code, reason = "shared with a bench")]
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

#[path = "../benches/proxy/canned.rs"]
mod canned;
#[path = "../benches/costs/measured.rs"]
mod measured;
#[path = "column_bytes/sizes.rs"]
mod sizes;
#[path = "../benches/proxy/upstream.rs"]
mod upstream;

use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc;

use measured::{CountingAllocator, exchange, live_bytes};
use sizes::MEASURED;
use tokentap::app::App;
use tokentap::config;
use tokentap::serve::connection::Phase;
use tokio::sync::watch;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PROMPT: usize = 32;

/// Sampled tokens of the session that is measured. It is the only one: the random numbers of the canned engine repeat in its other replies, which
/// an archive compresses.
const SAMPLED: usize = 2048;

/// Sessions before it, after which the engine keeps its reply and the buffers of connections do not grow any more.
const EARLIER: usize = 8;

/// Sampled tokens of a request after whose reply nothing of the one before is in use.
const FEW: usize = 2;

/// The bytes of a session and of a request with few tokens. The archive lacks the latter, and the log has those before as well.
#[derive(Debug, Clone, Copy)]
struct StoredBytes {
    memory: i64,
    counted: i64,
    log: i64,
    archive: i64,
}

/// The addresses of the data port and of the control port.
type Ports = (SocketAddr, SocketAddr);

/// Runs tokentap until `phase` ends.
fn run(config: config::Config, phase: watch::Receiver<Phase>, ready: &mpsc::Sender<Ports>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let app = App::bind(config, phase).await.unwrap();
        let ports = (app.data_addr().unwrap(), app.control_addr().unwrap());
        let mut probed = app.proxy().upstream.clone();
        let running = tokio::spawn(app.run());
        probed.wait_for(|found| found.original_logprobs.is_some()).await.unwrap();
        ready.send(ports).unwrap();
        running.await.unwrap().unwrap();
    });
}

fn generate(client: &mut TcpStream, session: &str, tokens: usize) {
    let ids: Vec<String> = (0..PROMPT).map(|at| (1000 + at).to_string()).collect();
    let sampling = format!(r#"{{"max_new_tokens":{tokens},"temperature":1.0,"top_k":20}}"#);
    let body = format!(r#"{{"input_ids":[{}],"sampling_params":{sampling}}}"#, ids.join(","));
    let headers = format!("x-session-id: {session}\r\nx-session-done: {}\r\n", session == "done");
    let reply = exchange(client, &headers, &body).unwrap();
    assert!(reply.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&reply));
}

/// The bytes of the sessions, as tokentap counts them.
fn counted_bytes(control: SocketAddr) -> i64 {
    use std::io::{Read as _, Write as _};
    let mut client = TcpStream::connect(control).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("tokentap_sessions_bytes "));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

fn bytes_of_files(folder: &Path) -> i64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let bytes = entries.map(|entry| match entry.metadata().unwrap() {
        folder if folder.is_dir() => bytes_of_files(&entry.path()),
        file => i64::try_from(file.len()).unwrap(),
    });
    bytes.sum()
}

fn measure(columns: &[&str]) -> StoredBytes {
    let upstream = format!("http://{}", measured::start_engine());
    let (log, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let uri = format!("file://{}", archive.path().display());
    let fixed = ["tokentap", "serve", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log", "error"];
    let stores = ["--upstream", &upstream, "--data-dir", log.path().to_str().unwrap(), "--archive", &uri];
    let engine = ["--vocab-size", "151936", "--moe-shape", "48x8x128"];
    let args = fixed.iter().chain(&stores).chain(&engine).chain(columns).map(OsString::from);
    let Ok(cli) = config::load(args) else { panic!("the flags are not valid: {columns:?}") };
    let config = cli.command.config().unwrap().clone();
    let (ready, ports) = mpsc::channel();
    let (phase, watched) = watch::channel(Phase::Serving);
    let server = std::thread::spawn(move || run(config, watched, &ready));
    let (data, control) = ports.recv().unwrap();
    let mut client = TcpStream::connect(data).unwrap();
    client.set_nodelay(true).unwrap();
    for at in 0..EARLIER {
        generate(&mut client, &format!("earlier-{at}"), SAMPLED);
    }
    generate(&mut client, "few", FEW);
    let before = (live_bytes(), counted_bytes(control));
    generate(&mut client, "done", SAMPLED);
    generate(&mut client, "few", FEW);
    let after = (live_bytes(), counted_bytes(control));
    drop(client);
    phase.send(Phase::Draining).unwrap();
    server.join().unwrap();
    StoredBytes {
        memory: after.0 - before.0,
        counted: after.1 - before.1,
        log: bytes_of_files(log.path()),
        archive: bytes_of_files(archive.path()),
    }
}

#[test]
fn columns_take_the_documented_bytes() {
    let without = measure(&[]);
    println!("| column | memory | counted | log | archive |\n|---|---|---|---|---|");
    let mut found = Vec::new();
    for (name, size) in MEASURED {
        let with = measure(&["--columns", name]);
        let covered = |sampled| if name == "routed_experts" { PROMPT + sampled - 1 } else { sampled };
        let archived = covered(SAMPLED);
        let tokens = archived + covered(FEW);
        let each = |of: fn(&StoredBytes) -> i64, tokens: usize| (of(&with) - of(&without)) as f64 / tokens as f64;
        let memory = each(|bytes| bytes.memory, tokens);
        let counted = each(|bytes| bytes.counted, tokens);
        let log = each(|bytes| bytes.log, EARLIER * archived + 2 * covered(FEW) + archived);
        let archive = each(|bytes| bytes.archive, archived);
        println!("| {name} | {memory:.1} | {counted:.1} | {log:.1} | {archive:.1} |");
        found.push((name, size, [memory, counted, log], archive));
    }
    for (name, size, stored, archive) in found {
        let is_near = |bytes: f64, documented: u64| (bytes / documented as f64 - 1.0).abs() < 0.02;
        assert!(
            stored.iter().all(|bytes| is_near(*bytes, size.stored)),
            "{name}: {stored:?}, documented {}",
            size.stored
        );
        let documented = size.archived.unwrap();
        assert!(is_near(archive, documented), "{name}: {archive} in the archive, documented {documented}");
    }
}
