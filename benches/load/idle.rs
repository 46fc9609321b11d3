// SPDX-License-Identifier: Apache-2.0
//! Idle connections: the cost of each, service of other clients, release of their resources, and connections beyond the limit.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::client::Connection;
use crate::engine;
use crate::tap::{Tap, Usage, ask, get, post};
use crate::times::probe_for;

const SMALL: &str = r#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":16,"temperature":1.0}}"#;

pub async fn run(count: usize) {
    let upstream = engine::start().await;
    let most = (count + 1000).to_string();
    used_once(&Tap::start(upstream, &["--max-connections", &most]).await, count).await;
    silent(&Tap::start(upstream, &["--max-connections", &most]).await, count).await;
    above_the_limit(&Tap::start(upstream, &["--max-connections", "1000"]).await).await;
}

/// Connections that were used once.
async fn used_once(tap: &Tap, count: usize) {
    let idle = tap.usage();
    let mut tasks = JoinSet::new();
    let mut open = Vec::new();
    for _ in 0..count {
        if tasks.len() >= 100 {
            open.extend(tasks.join_next().await);
        }
        let port = tap.data.port();
        tasks.spawn(async move {
            let mut connection = Connection::open(port).await.expect("a connection");
            let status = connection.exchange(&get("/model_info"), |_| {}).await.expect("an answer");
            assert_eq!(status, 200, "/model_info");
            connection
        });
    }
    while let Some(connection) = tasks.join_next().await {
        open.push(connection);
    }
    let open: Vec<Connection> =
        open.into_iter().map(|done| done.expect("the connecting task does not panic")).collect();
    let now = tap.usage();
    println!("{count} connections kept after a request: {now}; idle {idle}; {}", each(idle, now, count));
    check_service(tap).await;
    drop(open);
    wait_for_release(tap, "closed", idle).await;
}

/// Connections that sent nothing.
async fn silent(tap: &Tap, count: usize) {
    let idle = tap.usage();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(tap.data).await.expect("a connection");
        tasks.spawn(async move {
            let since = Instant::now();
            // returns when the server closes the connection
            let _ = stream.read(&mut [0]).await;
            since.elapsed()
        });
    }
    println!("{count} silent connections, opened within {:.1} s", began.elapsed().as_secs_f64());
    let limit = Instant::now() + Duration::from_secs(5);
    while tap.usage().descriptors < idle.descriptors + count && Instant::now() < limit {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let now = tap.usage();
    println!("  {now}; idle {idle}; {}", each(idle, now, count));
    check_service(tap).await;
    let ends = async {
        let (mut first, mut last) = (Duration::MAX, Duration::ZERO);
        while let Some(end) = tasks.join_next().await {
            let end = end.expect("the waiting task does not panic");
            (first, last) = (first.min(end), last.max(end));
        }
        (first, last)
    };
    let (first, last) = tokio::time::timeout(Duration::from_secs(120), ends).await.expect("the connections are closed");
    println!("  all were closed, {:.1} to {:.1} s after they opened", first.as_secs_f64(), last.as_secs_f64());
    wait_for_release(tap, "cut", idle).await;
}

/// One connection more than `--max-connections`.
async fn above_the_limit(tap: &Tap) {
    let mut open = Vec::new();
    for _ in 0..1000 {
        let mut connection = Connection::open(tap.data.port()).await.expect("a connection");
        connection.exchange(&get("/model_info"), |_| {}).await.expect("an answer");
        open.push(connection);
    }
    let addr: SocketAddr = tap.data;
    let mut next = tokio::spawn(async move { ask(addr, &post("/generate", &[], SMALL.as_bytes())).await });
    let waited = tokio::time::timeout(Duration::from_secs(2), &mut next).await.is_err();
    let live = probe_for(tap.control, get("/livez"), Duration::from_millis(10), Duration::from_secs(1)).await;
    open.pop();
    let freed = Instant::now();
    let (status, _) = next.await.expect("the requesting task does not panic").expect("an answer");
    println!(
        "1001 connections with --max-connections 1000: the last {}",
        if waited { "waits" } else { "does not wait" }
    );
    println!("  control port meanwhile: {live}");
    println!("  answered {status}, {:.1} ms after another connection closed", freed.elapsed().as_secs_f64() * 1e3);
    assert!(waited && status == 200 && live.failed == 0, "a late connection waits, and probes do not");
}

/// Checks that other clients are served meanwhile.
async fn check_service(tap: &Tap) {
    let time = Duration::from_secs(3);
    let live = probe_for(tap.control, get("/livez"), Duration::from_millis(10), time).await;
    let small = probe_for(tap.data, post("/generate", &[], SMALL.as_bytes()), Duration::from_millis(10), time).await;
    println!("  meanwhile /livez: {live}\n  meanwhile /generate of 16 tokens: {small}");
    assert_eq!(live.failed + small.failed, 0, "other clients are served");
}

/// Waits until the descriptors are closed.
async fn wait_for_release(tap: &Tap, how: &str, idle: Usage) {
    let began = Instant::now();
    // one or two connections to the upstream may stay open
    while tap.usage().descriptors > idle.descriptors + 2 {
        assert!(began.elapsed() < Duration::from_secs(30), "descriptors are still open: {}", tap.usage());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("  {:.1} s after they were {how}: {}", began.elapsed().as_secs_f64(), tap.usage());
}

fn each(idle: Usage, now: Usage, count: usize) -> String {
    format!("{:.1} KB a connection", (now.rss.saturating_sub(idle.rss)) as f64 / 1e3 / count as f64)
}
