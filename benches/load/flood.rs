// SPDX-License-Identifier: Apache-2.0
//! Large requests and replies of many concurrent clients: the peak of memory, and which requests are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use memchr::memmem;
use tokio::task::JoinSet;

use crate::client::Connection;
use crate::engine;
use crate::system::Counters;
use crate::tap::{Tap, Usage, metric, post};

const MB: f64 = (1 << 20) as f64;
const BUDGET: f64 = 256.0 * MB;
const FLAGS: &str = "--max-bytes-in-flight 256MiB --max-request-bytes 16MiB --session-bytes 16MiB";

/// Bytes that a process may use for each byte of the budget: one-digit ids take twice the bytes of their text, the allocator keeps freed
/// memory, and forwarded replies have buffers.
const MOST: f64 = 3.0;

#[derive(Default)]
struct Count {
    all: AtomicUsize,
    shed: AtomicUsize,
    failed: AtomicUsize,
    /// Replies with 200 and without entropies.
    bare: AtomicUsize,
}

pub async fn run(clients: usize) {
    let upstream = engine::start().await;
    println!("{clients} clients, {FLAGS}");
    // the engine's reply of 15,000 tokens has 4 MiB
    let (small, large) = (16, 15_000);
    for (name, id, request, reply, stream) in [
        ("requests of 1 MiB, small replies", "12345,", MB, small, false),
        ("requests of 1 MiB of one-digit ids, small replies", "1,", MB, small, false),
        ("small requests, replies of 4 MiB", "12345,", 200.0, large, false),
        ("requests of 1 MiB, replies of 4 MiB", "12345,", MB, large, false),
    ] {
        let tap = Tap::start(upstream, &FLAGS.split(' ').collect::<Vec<_>>()).await;
        let ids = id.repeat(request as usize / id.len());
        // every reply takes a second, so that requests accumulate
        let body = format!(
            r#"{{"sampling_params":{{"max_new_tokens":{reply},"temperature":1.0,"custom_params":{{"delay_ms":1000}}}},"stream":{stream},"input_ids":[{}]}}"#,
            ids.trim_end_matches(',')
        );
        measure(&tap, name, &post("/generate", &[], body.as_bytes()), clients).await;
    }
}

async fn measure(tap: &Tap, name: &str, request: &[u8], clients: usize) {
    let idle = tap.usage();
    let system = Arc::new(Counters::now());
    let (request, stop, count) =
        (Arc::new(request.to_vec()), Arc::new(AtomicBool::new(false)), Arc::new(Count::default()));
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (request, stop, count, system, port) =
            (Arc::clone(&request), Arc::clone(&stop), Arc::clone(&count), Arc::clone(&system), tap.data.port());
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let mut measured = false;
                let once = async {
                    let mut connection = Connection::open(port).await?;
                    connection
                        .exchange(&request, |data| measured |= memmem::find(data, b"output_token_entropy").is_some())
                        .await
                };
                let status = tokio::time::timeout(Duration::from_secs(60), once).await;
                count.all.fetch_add(1, Ordering::Relaxed);
                match status {
                    Ok(Ok(200)) if measured => {}
                    Ok(Ok(200)) => _ = count.bare.fetch_add(1, Ordering::Relaxed),
                    Ok(Ok(503)) => {
                        count.shed.fetch_add(1, Ordering::Relaxed);
                        // the delay of Retry-After
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                    other => {
                        if count.failed.fetch_add(1, Ordering::Relaxed) < 5 {
                            println!("  failed: {other:?}; the system's counters rose by: {}", system.rise());
                        }
                    }
                }
            }
        });
    }
    let mut held: f64 = 0.0;
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        held = held.max(metric(&tap.metrics().await, "tokentap_bytes_in_flight", ""));
    }
    stop.store(true, Ordering::Relaxed);
    while tasks.join_next().await.is_some() {}
    let (peak, text) = (tap.usage(), tap.metrics().await);
    let part = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let share = |of: &AtomicUsize| 100.0 * part(of) as f64 / part(&count.all).max(1) as f64;
    println!("{name}: {} requests in 20 s", part(&count.all));
    println!(
        "  at most {:.0} MiB above idle: {:.2} x the budget (buffered bytes by tokentap's count: {:.0} MiB)",
        (peak.peak - idle.rss) as f64 / MB,
        (peak.peak - idle.rss) as f64 / BUDGET,
        held / MB
    );
    println!(
        "  503: {:.1} %, 200 without entropies: {:.1} %, failed: {:.1} %; tokentap counts {} without room",
        share(&count.shed),
        share(&count.bare),
        share(&count.failed),
        metric(&text, "tokentap_entropy_skipped_total", "no_room")
    );
    println!("  the system's counters rose by: {}", system.rise());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = metric(&tap.metrics().await, "tokentap_bytes_in_flight", "");
    println!("  idle {idle}; two seconds after {}, {after} bytes in flight", Usage { ..tap.usage() });
    let times = (peak.peak - idle.rss) as f64 / BUDGET;
    assert!(times < MOST, "memory is {times} times the budget");
    assert_eq!((part(&count.failed), after), (0, 0.0), "every request is answered, and all memory is released");
}
