// SPDX-License-Identifier: Apache-2.0
//! Counts what tokentap allocates for a request: a tokentap and a canned engine in this process, each with its own thread.
//!
//! Allocations are counted on the threads of tokentap's runtime only, so the engine and the client have no effect.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc;

use tokentap::app::App;
use tokentap::config;
use tokentap::serve::connection::Phase;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::upstream::{self, Server};

/// Requests before counting starts: buffers, tables and the store have their final sizes then.
const WARM_UP: usize = 400;

/// Requests that are counted together.
const BATCH: u64 = 20;

/// Batches. The smallest count is reported, because a task of tokentap that is not a request may run during a batch.
const BATCHES: usize = 20;

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Counts the allocations of tokentap's threads. A growing allocation counts as one more.
pub struct CountingAllocator;

fn count(bytes: usize) {
    if IS_COUNTED.with(Cell::get) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The bytes that all threads of the process have allocated and not freed.
pub fn live_bytes() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

/// A layout has at most `isize::MAX` bytes.
fn keep(allocated: usize, freed: usize) {
    LIVE.fetch_add(allocated as i64 - freed as i64, Ordering::Relaxed);
}

// SAFETY: every method passes its arguments on to the system's allocator and returns what that returns.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        keep(layout.size(), 0);
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        keep(0, layout.size());
        // SAFETY: `memory` came from the system's allocator with this layout.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        keep(size, layout.size());
        // SAFETY: `memory` came from the system's allocator with this layout, and the caller guarantees the rest.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// The costs of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    pub allocations: f64,
    pub bytes: f64,
}

/// A tokentap in front of a canned engine. Both run until the process ends.
pub struct Subject {
    data: SocketAddr,
    /// The number of tokentap's runtime thread.
    pub thread: i32,
}

/// A body of `/generate` for a prompt of 32 ids. `rest` has further members, with a comma before each.
pub fn body(tokens: usize, rest: &str) -> String {
    body_of(32, tokens, rest)
}

/// The same for a prompt of this many ids.
pub fn body_of(prompt: u32, tokens: usize, rest: &str) -> String {
    let ids: Vec<String> = (0..prompt).map(|at| (1000 + 37 * at % 150_000).to_string()).collect();
    let sampling = format!("{{\"max_new_tokens\":{tokens},\"temperature\":1.0,\"sampling_seed\":1}}");
    format!("{{\"input_ids\":[{}],\"sampling_params\":{sampling}{rest}}}", ids.join(","))
}

/// Starts the canned engine on a thread of this process.
pub fn start_engine() -> SocketAddr {
    let (engine_up, engine) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            engine_up.send(listener.local_addr().unwrap()).unwrap();
            upstream::accept(listener, Server::Flat, upstream::ReplyCache::default()).await;
        });
    });
    engine.recv().unwrap()
}

impl Subject {
    /// Starts both with these flags of `tokentap serve`, and waits until tokentap has probed the engine.
    pub fn start(flags: &[&str]) -> Self {
        let upstream = format!("http://{}", start_engine());
        let fixed = ["tokentap", "serve", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--upstream"];
        // a full store of sessions, as after some time in production
        let sizes = [&*upstream, "--vocab-size", "151936", "--session-bytes", "1MiB"];
        let args = fixed.iter().chain(&sizes).chain(flags).map(OsString::from);
        let Ok(cli) = config::load(args) else { panic!("the flags are not valid: {flags:?}") };
        let config = cli.command.config().unwrap().clone();
        let (ready, address) = mpsc::channel();
        std::thread::spawn(move || run(config, &ready));
        let (data, thread) = address.recv().unwrap();
        Self { data, thread }
    }

    /// Connects to the data port.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.data).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// What one request costs on a connection that is kept.
    pub fn costs(&self, body: &str) -> Costs {
        self.costs_with(body, String::new)
    }

    /// What one request costs if it also has the header lines that `headers` returns.
    pub fn costs_with(&self, body: &str, mut headers: impl FnMut() -> String) -> Costs {
        let mut client = self.connect();
        for _ in 0..WARM_UP {
            send_with(&mut client, &headers(), body);
        }
        let mut batch = |client: &mut TcpStream| {
            let before = (ALLOCATIONS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
            for _ in 0..BATCH {
                send_with(client, &headers(), body);
            }
            let after = (ALLOCATIONS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
            (after.0 - before.0, after.1 - before.1)
        };
        let (allocations, bytes) = (0..BATCHES).map(|_| batch(&mut client)).min().unwrap();
        Costs { allocations: allocations as f64 / BATCH as f64, bytes: bytes as f64 / BATCH as f64 }
    }
}

/// Runs tokentap on one counted thread.
fn run(config: config::Config, ready: &mpsc::Sender<(SocketAddr, i32)>) {
    static THREAD: AtomicI32 = AtomicI32::new(0);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .on_thread_start(|| {
            IS_COUNTED.with(|counted| counted.set(true));
            // the first thread is the worker, later ones are blocking threads
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            let _ = THREAD.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed);
        })
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_phase, watched) = watch::channel(Phase::Serving);
        let app = App::bind(config, watched).await.unwrap();
        let data = app.data_addr().unwrap();
        let mut probed = app.proxy().upstream.clone();
        let running = tokio::spawn(app.run());
        probed.wait_for(|found| found.original_logprobs.is_some()).await.unwrap();
        ready.send((data, THREAD.load(Ordering::Relaxed))).unwrap();
        running.await.unwrap().unwrap();
    });
}

/// Sends a request and reads its whole reply, which must have entropies.
pub fn send(client: &mut TcpStream, body: &str) {
    send_with(client, "", body);
}

fn send_with(client: &mut TcpStream, headers: &str, body: &str) {
    let reply = exchange(client, headers, body).unwrap();
    assert!(reply.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&reply));
    assert!(memchr::memmem::find(&reply, b"\"output_token_entropy\":[").is_some(), "a reply without entropies");
}

/// Sends a request and reads its whole reply.
pub fn exchange(client: &mut TcpStream, headers: &str, body: &str) -> std::io::Result<Vec<u8>> {
    let length = body.len();
    let head = format!(
        "POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n"
    );
    client.write_all(format!("{head}{body}").as_bytes())?;
    let mut reply = Vec::new();
    let mut piece = [0; 64 * 1024];
    while !is_whole(&reply) {
        match client.read(&mut piece)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => reply.extend_from_slice(&piece[..read]),
        }
    }
    Ok(reply)
}

fn is_whole(reply: &[u8]) -> bool {
    let Some(head) = memchr::memmem::find(reply, b"\r\n\r\n") else { return false };
    let text = String::from_utf8_lossy(&reply[..head]).to_ascii_lowercase();
    match text.split("content-length: ").nth(1) {
        Some(length) => reply.len() - head - 4 == length.lines().next().unwrap().parse::<usize>().unwrap(),
        None => reply.ends_with(b"\r\n0\r\n\r\n"),
    }
}
