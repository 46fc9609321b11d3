// SPDX-License-Identifier: Apache-2.0
//! slowhttptest, and very slow readers of streams: service of other clients, cost, and when connections are closed.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::engine;
use crate::tap::{Tap, Usage, metric, post};
use crate::times::{probe, probe_for};

const SMALL: &str = r#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":16,"temperature":1.0}}"#;
const CONNECTIONS: usize = 1000;

/// An attack of `slowhttptest`: its name, its options and the request.
type Attack = (&'static str, &'static [&'static str], &'static str);

const ATTACKS: [Attack; 3] = [
    ("slow headers", &["-H", "-i", "5"], "/generate"),
    ("slow bodies", &["-B", "-i", "5", "-s", "8192", "-x", "10"], "/generate"),
    ("slow readers of 16 MiB", &["-X", "-n", "5", "-z", "32", "-w", "512", "-y", "1024"], "/big"),
];

pub async fn run(seconds: u64) {
    let upstream = engine::start().await;
    for attack in ATTACKS {
        let tap = Tap::start(upstream, &[]).await;
        attack_with_normal_client(&tap, attack, seconds).await;
    }
    readers(&Tap::start(upstream, &[]).await, seconds).await;
}

/// Runs one attack, with a normal client before, during and after it.
async fn attack_with_normal_client(tap: &Tap, (name, options, path): Attack, seconds: u64) {
    let request = post("/generate", &[], SMALL.as_bytes());
    let pause = Duration::from_millis(20);
    let before = probe_for(tap.data, request.clone(), pause, Duration::from_secs(5)).await;
    let idle = tap.usage();
    let folder = std::env::temp_dir().join(format!("tokentap-slow-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (count, length) = (CONNECTIONS.to_string(), seconds.to_string());
    let mut command = Command::new("timeout");
    command.args([&(seconds + 60).to_string(), "slowhttptest"]).args(options);
    command.args(["-c", &count, "-r", "250", "-l", &length, "-p", "5", "-g", "-v", "0", "-o"]).arg(folder.join("slow"));
    command.args(["-u", &format!("http://{}{path}", tap.data)]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = child.expect("slowhttptest is installed");
    let stop = Arc::new(AtomicBool::new(false));
    let probing = tokio::spawn(probe(tap.data, request.clone(), pause, Arc::clone(&stop)));
    let mut most = Usage::default();
    while matches!(child.try_wait(), Ok(None)) {
        let now = tap.usage();
        most = Usage { rss: most.rss.max(now.rss), peak: now.peak, descriptors: most.descriptors.max(now.descriptors) };
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let during = probing.await.expect("a probe does not panic");
    println!("{name}: {CONNECTIONS} connections, {seconds} s (slowhttptest {})", options.join(" "));
    println!("  /generate before: {before}\n  /generate during: {during}");
    println!("  before {idle}; at most {most}");
    history(&std::fs::read_to_string(folder.join("slow.csv")).unwrap_or_default());
    let left = std::fs::remove_dir_all(&folder);
    left.expect("the folder exists");
    let active = wait_for_release(tap, idle).await;
    println!("  after {}; {active} requests active", tap.usage());
    assert_eq!(
        (during.failed, active),
        (0, 0.0),
        "{name}: other clients are served, and all request slots are released"
    );
}

/// The numbers of open and closed connections at every large change.
fn history(csv: &str) {
    // Seconds, Error(s), Closed, Pending, Connected, Service Available
    let rows = csv.lines().skip(1).filter_map(|line| {
        let fields: Vec<f64> =
            line.split(',').filter_map(|field| field.trim().trim_matches('"').parse().ok()).collect();
        (fields.len() >= 4).then_some(fields)
    });
    let rows: Vec<Vec<f64>> = rows.collect();
    let header = csv.lines().next().unwrap_or_default();
    let column = |name: &str| header.split(',').position(|field| field.trim().trim_matches('"').starts_with(name));
    let (Some(closed), Some(connected)) = (column("Closed"), column("Connected")) else {
        return println!("  slowhttptest left no statistics: {header}");
    };
    let mut shown = f64::NEG_INFINITY;
    let mut line = String::new();
    for (at, row) in rows.iter().enumerate() {
        let changed = (row[closed] - shown).abs() >= 100.0 || at + 1 == rows.len();
        if changed {
            shown = row[closed];
            line += &format!(" {:.0} s: {:.0} open, {:.0} closed;", row[0], row[connected], row[closed]);
        }
    }
    println!("  {}", line.trim().trim_end_matches(';'));
}

/// Streams whose clients read a few bytes a second; the remaining bytes stay in the engine.
async fn readers(tap: &Tap, seconds: u64) {
    let idle = tap.usage();
    // 4 MiB of events without pauses
    let body = r#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":6000,"temperature":1.0},"stream":true}"#;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (addr, stop) = (tap.data, Arc::clone(&stop));
        tasks.spawn(async move {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_recv_buffer_size(4096).expect("a small buffer");
            let mut stream = socket.connect(addr).await.expect("a connection");
            stream.write_all(&post("/generate", &[], body.as_bytes())).await.expect("the request is sent");
            let mut read = 0;
            while !stop.load(Ordering::Relaxed) {
                read += stream.read(&mut [0; 32]).await.unwrap_or(0);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            read
        });
    }
    let request = post("/generate", &[], SMALL.as_bytes());
    let probing = tokio::spawn(probe(tap.data, request, Duration::from_millis(20), Arc::clone(&stop)));
    let began = Instant::now();
    let mut seen = Vec::new();
    while began.elapsed() < Duration::from_secs(seconds) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        seen.push(tap.usage());
    }
    let active = metric(&tap.metrics().await, "tokentap_http_requests_active", "");
    stop.store(true, Ordering::Relaxed);
    let during = probing.await.expect("a probe does not panic");
    let mut read = 0;
    while let Some(bytes) = tasks.join_next().await {
        read += bytes.expect("a reader does not panic");
    }
    let half = &seen[seen.len() / 2..];
    println!(
        "{CONNECTIONS} slow readers of streams of 6000 events (4 MB for the engine), 32 bytes a second each, {seconds} s"
    );
    println!("  /generate during: {during}");
    println!(
        "  idle {idle}; half-way {}; at the end {}: {:.1} KB a stream",
        half[0],
        half[half.len() - 1],
        (half[half.len() - 1].rss.saturating_sub(idle.rss)) as f64 / 1e3 / CONNECTIONS as f64
    );
    println!("  {active} requests active, {:.0} KB read by all of them", read as f64 / 1e3);
    let active = wait_for_release(tap, idle).await;
    println!("  after {}; {active} requests active", tap.usage());
    assert_eq!((during.failed, active), (0, 0.0), "other clients are served, and all request slots are released");
}

/// Waits up to 20 s until active requests and descriptors are released. Returns the number of requests that are still active.
async fn wait_for_release(tap: &Tap, idle: Usage) -> f64 {
    let began = Instant::now();
    loop {
        let active = metric(&tap.metrics().await, "tokentap_http_requests_active", "endpoint=\"/generate\"");
        if (tap.usage().descriptors <= idle.descriptors + 4 && active == 0.0)
            || began.elapsed() > Duration::from_secs(20)
        {
            return active;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
