// SPDX-License-Identifier: Apache-2.0
//! Concurrent streams: each must be complete, in order and measured; prints the latency that tokentap adds to events.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memchr::memmem;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::canned::{Columns, Sequence, Shape, VARIANTS};
use crate::client::Connection;
use crate::engine;
use crate::tap::{Tap, Usage, post};
use crate::times::Times;

const TOKENS: usize = 200;

/// Time between two events of a stream.
const PACE: Duration = Duration::from_millis(200);

pub async fn run(count: usize) {
    let upstream = engine::start().await;
    println!("{count} streams of {TOKENS} events, one every {} ms each, top-k 20", PACE.as_millis());
    let (direct, _) = run_streams(upstream, count, false).await;
    println!("  directly: an event arrives {direct}");
    let tap = Tap::start(upstream, &["--max-requests", "10000", "--max-connections", "10000"]).await;
    let idle = tap.usage();
    let watching = watch(tap.id());
    let (through, took) = run_streams(tap.data, count, true).await;
    let most = watching.await.expect("the watching task does not panic");
    println!("  through tokentap: an event arrives {through}");
    println!(
        "  added: p50 {:.2} ms, p99 {:.2} ms; {:.0} tokens/s, each with its entropy",
        through.quantile(0.5) - direct.quantile(0.5),
        through.quantile(0.99) - direct.quantile(0.99),
        (count * TOKENS) as f64 / took.as_secs_f64()
    );
    println!("  idle {idle}; at most {most}: {:.1} KB a stream", (most.rss - idle.rss) as f64 / 1e3 / count as f64);
}

/// The peak of resources until the streams end.
fn watch(process: u32) -> tokio::task::JoinHandle<Usage> {
    tokio::spawn(async move {
        let mut most = Usage::default();
        let (mut seen, mut ticks) = (false, tokio::time::interval(Duration::from_millis(200)));
        loop {
            ticks.tick().await;
            let now = Usage::of(process);
            most = Usage {
                rss: most.rss.max(now.rss),
                peak: now.peak,
                descriptors: most.descriptors.max(now.descriptors),
            };
            let answering = engine::ANSWERING.load(std::sync::atomic::Ordering::Relaxed) > 0;
            if seen && !answering {
                return most;
            }
            seen |= answering;
        }
    })
}

/// Runs `count` streams concurrently. Returns the delays of their events, and the time from the first start to the last end.
async fn run_streams(addr: SocketAddr, count: usize, measured: bool) -> (Times, Duration) {
    let ready = Arc::new(Barrier::new(count));
    let mut tasks = JoinSet::new();
    let mut bounds = Vec::new();
    for variant in 0..VARIANTS {
        bounds.push(Arc::new(
            Sequence::new(Shape { tokens: TOKENS, k: Some(20), flat: false, columns: Columns::default(), variant })
                .entropy_bounds(),
        ));
    }
    for at in 0..count {
        let (ready, bounds) = (Arc::clone(&ready), Arc::clone(&bounds[at % bounds.len()]));
        tasks.spawn(async move {
            let mut connection = Connection::open(addr.port()).await.expect("a connection");
            ready.wait().await;
            // synchronized streams would delay the engine
            tokio::time::sleep(PACE * at as u32 / count as u32).await;
            let began = Instant::now();
            (run_stream(&mut connection, at, measured, &bounds).await, began, Instant::now())
        });
    }
    let (mut times, mut first, mut last) = (Times::default(), None, Instant::now());
    while let Some(done) = tasks.join_next().await {
        let (stream, began, ended) = done.expect("every stream is correct");
        times.add(stream);
        first = Some(first.map_or(began, |first: Instant| first.min(began)));
        last = last.max(ended);
    }
    (times, last - first.expect("there are streams"))
}

/// Runs one stream. Returns the delay of each event.
///
/// # Panics
/// When a part is missing or wrong.
async fn run_stream(connection: &mut Connection, at: usize, measured: bool, bounds: &[(f64, f64)]) -> Times {
    let prompt: Vec<String> = (0..32).map(|token| (1000 + 37 * token + at).to_string()).collect();
    let body = format!(
        r#"{{"input_ids":[{}],"sampling_params":{{"max_new_tokens":{TOKENS},"temperature":1.0,"sampling_seed":{at},"custom_params":{{"stamped":true,"pace_us":{}}}}},"stream":true}}"#,
        prompt.join(","),
        PACE.as_micros()
    );
    let (mut times, mut pending, mut events, mut done) = (Times::default(), Vec::new(), 0, false);
    let request = post("/generate", &[], body.as_bytes());
    let reading = connection.exchange(&request, |data| {
        let arrived = engine::now();
        pending.extend_from_slice(data);
        while let Some(end) = memmem::find(&pending, b"\n\n") {
            let event: Vec<u8> = pending.drain(..end + 2).collect();
            assert!(!done, "stream {at}: data after [DONE]");
            if event.starts_with(b"data: [DONE]") {
                done = true;
                continue;
            }
            let sent = digits(&event, "\"text\":\"").expect("an event has its time");
            times.served.push((arrived as f64 - sent).max(0.0) / 1e3);
            let so_far = digits(&event, "\"completion_tokens\":").expect("an event counts its tokens");
            assert_eq!(so_far as usize, events + 1, "stream {at}: an event is missing");
            if measured {
                let nats = digits(&event, "\"output_token_entropy\":[").expect("an event has its entropy");
                let (low, high) = bounds[events];
                assert!((low - 1e-3..=high + 1e-3).contains(&nats), "stream {at}: {nats} is not in {low}..{high}");
            }
            events += 1;
            let has_info = memmem::find(&event, b"\"source\":\"top_k\"").is_some();
            assert_eq!(has_info, measured && events == TOKENS, "stream {at}: the last event has entropy_info");
        }
    });
    let status =
        tokio::time::timeout(PACE * 10 * TOKENS as u32, reading).await.expect("a stream ends").expect("a stream");
    assert_eq!((status, events, done, pending.len()), (200, TOKENS, true, 0), "stream {at} is complete");
    times
}

/// The number after `name`.
fn digits(event: &[u8], name: &str) -> Option<f64> {
    let rest = &event[memmem::find(event, name.as_bytes())? + name.len()..];
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit() || b".e-".contains(byte)).count();
    std::str::from_utf8(&rest[..length]).ok()?.parse().ok()
}
