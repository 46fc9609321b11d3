// SPDX-License-Identifier: Apache-2.0
//! The cost of shared sessions: latency and CPU that a turn takes with and without a ledger, bytes in Valkey, and appends a second of one
//! primary. Starts a Valkey on loopback, with and without a replica.
//!
//! `VALKEY_SERVER=PATH cargo bench --bench ledger`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports to its terminal, and fails loudly")]

#[path = "support/turns.rs"]
mod turns;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokentap::session::ledger::SharedLog;
use tokentap::session::ledger::valkey::{NoValkeyObserver, TlsFiles, Valkey, ValkeyOptions};
use tokentap::session::{Call, Draft, NoObserver, Sessions, SharedLedger, SharingLimits, StoreLimits};
use turns::Turns;

/// That of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Turns of a session.
const TURNS: usize = 10;

const LONG: Duration = Duration::from_secs(3600);

/// A Valkey, which is killed when it is dropped.
struct Server {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start(binary: &str, more: &[&str]) -> Self {
        // the server cannot report the port that the system chose
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let own = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--repl-diskless-sync-delay", "0"];
        let mut child = Command::new(binary)
            .args(own)
            .args(["--appendonly", "yes", "--dir"])
            .arg(folder.path())
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.find(|line| line.as_ref().unwrap().contains("Ready to accept connections")).expect("it starts").unwrap();
        // a full pipe would stop it
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, port, _folder: folder }
    }

    /// The number in a line of INFO.
    fn info(&self, name: &str) -> f64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(b"INFO\r\nQUIT\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("a line of INFO");
        value.trim().parse().unwrap()
    }

    /// The CPU time of its main thread, which runs the commands.
    fn cpu(&self) -> f64 {
        self.info("used_cpu_user_main_thread") + self.info("used_cpu_sys_main_thread")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The drafts of a session.
fn drafts(seed: u64) -> Vec<Draft> {
    Turns::new(seed).take(TURNS).collect()
}

/// A store; with a server its sessions are shared.
fn store(server: Option<(&Server, u32)>) -> Arc<Sessions> {
    let limits = StoreLimits { bytes: u64::MAX / 4, ttl: LONG, idle: LONG };
    let Some((server, replicas)) = server else { return Arc::new(Sessions::new(limits)) };
    let timeout = Duration::from_secs(10);
    let options = ValkeyOptions {
        url: format!("redis://127.0.0.1:{}", server.port).parse().unwrap(),
        password_file: None,
        tls: TlsFiles::default(),
        replicas,
        timeout,
        ttl: LONG,
        image_bytes: 0,
    };
    let ledger = Arc::new(Valkey::new(options, Arc::new(NoValkeyObserver)));
    let ledger = SharedLedger { ledger, limits: SharingLimits { timeout, idle: LONG } };
    Arc::new(Sessions::shared(limits, SharedLog::default(), Arc::new(NoObserver), ledger))
}

/// Adds the turns of a session one after the other. Returns the time of each.
async fn add(store: &Arc<Sessions>, session: &str, drafts: Vec<Draft>) -> Vec<Duration> {
    let mut times = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let mut call = Call::new(Arc::clone(store), session.into());
        let begun = Instant::now();
        call.commit(draft).1.await.unwrap();
        times.push(begun.elapsed());
    }
    times
}

/// The CPU time of all threads of this process.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap()
}

/// The quantile of sorted times, in microseconds.
fn quantile(times: &[Duration], part: f64) -> f64 {
    times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6
}

/// Adds sessions to both stores in turn, and prints what a turn costs in each.
async fn compare(name: &str, stores: [(&str, &Arc<Sessions>); 2], sessions: u64) {
    let mut measured = [(Vec::new(), Duration::ZERO), (Vec::new(), Duration::ZERO)];
    for session in 0..sessions {
        for ((label, store), (times, used)) in stores.iter().zip(&mut measured) {
            let drafts = drafts(session + 1);
            let before = cpu();
            times.extend(add(store, &format!("{name} {label} {session}"), drafts).await);
            *used += cpu() - before;
        }
    }
    for ((label, _), (times, used)) in stores.iter().zip(&mut measured) {
        times.sort_unstable();
        println!(
            "{name:<22} {label:<12} {:>6} turns: p50 {:>7.1} us, p99 {:>7.1} us, CPU {:>6.1} us a turn",
            times.len(),
            quantile(times, 0.5),
            quantile(times, 0.99),
            used.as_secs_f64() * 1e6 / times.len() as f64,
        );
    }
}

/// Adds turns of many sessions at once, and prints what the primary does in a second and for a turn.
async fn fill(name: &str, server: &Server, store: &Arc<Sessions>, sessions: u64, at_once: u64) {
    let mut prepared: Vec<Vec<Vec<Draft>>> = (0..at_once)
        .map(|worker| (0..sessions / at_once).map(|session| drafts(worker << 32 | (session + 1))).collect())
        .collect();
    let turns = (sessions / at_once * at_once * TURNS as u64) as f64;
    let (memory, used, own, begun) = (server.info("used_memory"), server.cpu(), cpu(), Instant::now());
    let workers = prepared.drain(..).enumerate().map(|(worker, sessions)| {
        let (store, name) = (Arc::clone(store), name.to_owned());
        tokio::spawn(async move {
            for (session, drafts) in sessions.into_iter().enumerate() {
                add(&store, &format!("{name} {worker} {session}"), drafts).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{name:<22} {at_once:>3} sessions at once: {:>7.0} appends/s, {:>5.1} us of the primary and {:>5.1} us here a turn, {:>6.0} B in Valkey a turn",
        turns / seconds,
        (server.cpu() - used) * 1e6 / turns,
        (cpu() - own).as_secs_f64() * 1e6 / turns,
        (server.info("used_memory") - memory) / turns,
    );
}

fn main() {
    let Ok(binary) = std::env::var("VALKEY_SERVER") else {
        println!("VALKEY_SERVER is not set: nothing is measured");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for replicas in [0, 1] {
            let primary = Server::start(&binary, &["--maxmemory-policy", "noeviction"]);
            let of = format!("127.0.0.1 {}", primary.port);
            let replica = (replicas > 0).then(|| Server::start(&binary, &["--replicaof", &of]));
            while primary.info("connected_slaves") < f64::from(replicas)
                || replica.as_ref().is_some_and(|replica| replica.info("master_sync_in_progress") > 0.0)
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let (alone, shared) = (store(None), store(Some((&primary, replicas))));
            let sharing = tokio::spawn(Arc::clone(&shared).run());
            // the first turn connects
            add(&shared, "first", drafts(1)).await;
            for round in 1..=3 {
                let name = format!("{replicas} replicas, round {round}");
                compare(&name, [("not shared", &alone), ("shared", &shared)], 200).await;
                for at_once in [8, 64] {
                    fill(&name, &primary, &shared, 512, at_once).await;
                }
            }
            let status = shared.ledger_status().unwrap();
            let detached = status.counts.detached.load(std::sync::atomic::Ordering::Relaxed);
            assert!(detached == 0 && !status.is_down, "{detached} turns were detached");
            sharing.abort();
        }
    });
}
