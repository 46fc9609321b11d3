//! The soak: agents that come and go for a long time, and whether memory and descriptors stay as they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memchr::memmem;
use tokio::task::JoinSet;

use crate::churn::{Agent, Done};
use crate::rude;
use crate::slope::{self, Slope};
use crate::tap::{Tap, Usage, ask, get, metric, post};
use crate::times::probe;

const AGENTS: u64 = 24;

/// Small stores, so that sessions, entropies and segments of the log leave all the while.
const FLAGS: &str = "--session-bytes 8MiB --session-ttl 60s --session-idle 5s --entropy-entries 512 --entropy-ttl 20s --data-bytes 64MiB";

/// The allocator gives back at once what is free, so that what the system counts is what is held. Left alone it keeps some tens of MB
/// from one export to the next, for minutes, which looks like growth in any ten of them.
const AT_ONCE: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "0");

/// MB an hour that a steady process may seem to grow by: an allocator's pages settle for hours. At a hundred requests a second it is
/// 14 bytes a request, less than anything that could be forgotten.
const BOUND: f64 = 5.0;

/// Half an interval, in MB an hour, beyond which nothing has been shown: a tenth of what is held, in the time of the soak.
const WIDEST: f64 = 25.0;

const SMALL: &str =
    r#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":16,"temperature":1.0,"ignore_eos":true}}"#;

pub async fn run(seconds: u64) {
    slope::check();
    let upstream = rude::start(Duration::from_millis(1)).await;
    let folder = std::env::temp_dir().join(format!("tokentap-soak-{}", std::process::id()));
    let data_dir = folder.to_str().expect("a plain path").to_owned();
    let flags: Vec<&str> = FLAGS.split(' ').chain(["--data-dir", &data_dir]).collect();
    let tap = Tap::start_with(upstream, &flags, &[AT_ONCE]).await;
    let idle = tap.usage();
    println!("{AGENTS} agents for {seconds} s, {FLAGS} --data-dir, {}={}", AT_ONCE.0, AT_ONCE.1);
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(Done::default()));
    let mut tasks = JoinSet::new();
    for name in 0..AGENTS {
        tasks.spawn(Agent { name, data: tap.data, done: Arc::clone(&done), dice: name }.work(Arc::clone(&stop)));
    }
    let trainer = tokio::spawn(trainer(tap.control, Arc::clone(&stop)));
    let small = || post("/generate", &[], SMALL.as_bytes());
    let pause = Duration::from_millis(100);
    let direct = tokio::spawn(probe(upstream, small(), pause, Arc::clone(&stop)));
    let through = tokio::spawn(probe(tap.data, small(), pause, Arc::clone(&stop)));
    let seen = watch(&tap, &done, seconds).await;
    stop.store(true, Ordering::Relaxed);
    let [direct, through] = [direct.await, through.await].map(|times| times.expect("a probe does not panic"));
    while let Some(ended) = tasks.join_next().await {
        ended.expect("who works does not panic");
    }
    let taken = trainer.await.expect("the trainer does not panic");
    println!("{done:?}\nthe trainer has {taken:?}");
    println!("16 tokens at 1 ms each, directly: {direct}\n16 tokens at 1 ms each, through tokentap: {through}");
    overhead(&tap.metrics().await);
    let quiet = settled(&tap, idle).await;
    let second = &seen[seen.len() / 2..];
    let column = |of: fn(&Usage) -> f64| second.iter().map(of).collect::<Vec<f64>>();
    let memory = Slope::of(&column(|usage| usage.rss as f64 / 1e6), 20);
    let descriptors = Slope::of(&column(|usage| usage.descriptors as f64), 20);
    println!(
        "idle {idle}; half-way {}; at the end {}; then quiet {}",
        second[0],
        second[second.len() - 1],
        tap.usage()
    );
    println!("memory in the second half: {memory} MB an hour (at most {BOUND} more than chance explains)");
    println!("descriptors in the second half: {descriptors} an hour");
    assert!(taken.shown.min(taken.samples).min(taken.finished).min(taken.deleted) > 0, "the trainer has some of each");
    assert!(!memory.exceeds(BOUND), "memory grows");
    assert!(!descriptors.exceeds(20.0), "descriptors grow");
    assert!(
        memory.spread < WIDEST,
        "the machine was too restless to tell whether memory grows: run it again, or for longer"
    );
    assert!(quiet, "something is held when nothing runs");
    assert_eq!(through.failed + done.wrong.load(Ordering::Relaxed) as usize, 0, "every answer is what was asked for");
    let _ = std::fs::remove_dir_all(&folder);
}

/// What the system counts, each second; a line a minute.
async fn watch(tap: &Tap, done: &Done, seconds: u64) -> Vec<Usage> {
    let mut seen = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        ticks.tick().await;
        seen.push(tap.usage());
        if seen.len() % 60 == 0 {
            let text = tap.metrics().await;
            let value = |name| metric(&text, name, "");
            println!(
                "{:5} s: {}, {} sessions, {:.0} evicted, {:.0} turns, log {:.1} MB, {} requests",
                seen.len(),
                seen[seen.len() - 1],
                value("tokentap_sessions"),
                value("tokentap_sessions_evicted_total"),
                value("tokentap_turns_total"),
                value("tokentap_log_bytes") / 1e6,
                done.all()
            );
        }
    }
    seen
}

/// What the trainer has got.
#[derive(Debug, Default)]
struct Taken {
    shown: u64,
    samples: u64,
    finished: u64,
    deleted: u64,
}

/// Reads what there is on the control port, and deletes a little of it.
async fn trainer(control: std::net::SocketAddr, stop: Arc<AtomicBool>) -> Taken {
    let mut taken = Taken::default();
    let mut cursor = String::new();
    let mut round = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        for path in ["/metrics", "/livez", "/readyz", "/v1/requests", "/v1/policy"] {
            told(control, &get(path), &[200]).await;
        }
        let page = told(control, &get("/v1/sessions?limit=300&order=newest"), &[200]).await;
        let page: serde_json::Value = serde_json::from_slice(&page).expect("sessions are JSON");
        let sessions = page["sessions"].as_array().expect("a list of sessions");
        // a session of the list may have left when it is asked for
        let names: Vec<&str> = sessions.iter().map(|said| said["session"].as_str().expect("its name")).collect();
        for name in names.iter().take(3) {
            for path in ["", "/trajectories"] {
                let said = told(control, &get(&format!("/v1/sessions/{name}{path}")), &[200, 404, 410]).await;
                taken.shown += u64::from(memmem::find(&said, name.as_bytes()).is_some());
            }
        }
        for format in ["verl", "jsonl", "parquet"] {
            let body = serde_json::json!({"sessions": names, "format": format}).to_string();
            let said = told(control, &post("/v1/samples", &[], body.as_bytes()), &[200, 404, 410]).await;
            if format == "jsonl" {
                taken.samples += memmem::find_iter(&said, b"\"session\"").count() as u64;
            }
        }
        let lines = told(control, &get(&format!("/v1/trajectories?limit=20&since={cursor}")), &[200]).await;
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: serde_json::Value = serde_json::from_slice(line).expect("a line is JSON");
            line["cursor"].as_str().unwrap_or_default().clone_into(&mut cursor);
            taken.finished += 1;
        }
        if let Some(name) = names.last().filter(|_| round.is_multiple_of(5)) {
            told(control, &post(&format!("/v1/sessions/{name}/freeze"), &[], b""), &[200, 404, 410]).await;
            let delete = format!("DELETE /v1/sessions/{name} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            let said = told(control, delete.as_bytes(), &[200, 404, 410]).await;
            taken.deleted += u64::from(memmem::find(&said, b"deleted").is_some());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    taken
}

/// The body of an answer that has one of these statuses.
async fn told(control: std::net::SocketAddr, request: &[u8], statuses: &[u16]) -> Vec<u8> {
    let (status, body) = ask(control, request).await.expect("the control port answers");
    let asked = String::from_utf8_lossy(&request[..request.len().min(200)]);
    assert!(statuses.contains(&status), "{status} for {asked}: {}", String::from_utf8_lossy(&body));
    body
}

/// Between which bounds the 99th percentile of tokentap's own work lies.
fn overhead(text: &str) {
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for line in text
        .lines()
        .filter(|line| line.starts_with("tokentap_overhead_seconds_bucket") && line.contains("\"/generate\""))
    {
        let bound = line.split("le=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let count = line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0.0);
        buckets.push((bound.parse().unwrap_or(f64::INFINITY), count));
    }
    let all = buckets.last().map_or(0.0, |(_, count)| *count);
    for part in [0.5, 0.99] {
        let at = buckets.iter().position(|(_, count)| *count >= part * all).unwrap_or(0);
        let below = at.checked_sub(1).map_or(0.0, |at| buckets[at].0);
        println!(
            "tokentap_overhead_seconds of {all} replies, p{:.0}: {:.3} to {:.3} ms",
            part * 100.0,
            below * 1e3,
            buckets[at].0 * 1e3
        );
    }
}

/// Whether everything is let go of once nobody asks any more.
async fn settled(tap: &Tap, idle: Usage) -> bool {
    let began = Instant::now();
    loop {
        let text = tap.metrics().await;
        let active = metric(&text, "tokentap_http_requests_active", "endpoint=\"/generate\"");
        let held = metric(&text, "tokentap_bytes_in_flight", "");
        let (_, running) = ask(tap.control, &get("/v1/requests")).await.expect("running requests are listed");
        let running: serde_json::Value = serde_json::from_slice(&running).expect("they are JSON");
        let running = running["requests"].as_array().map_or(usize::MAX, Vec::len);
        let descriptors = tap.usage().descriptors;
        let quiet = active == 0.0 && held == 0.0 && running == 0 && descriptors <= idle.descriptors + 6;
        if quiet || began.elapsed() > Duration::from_secs(30) {
            println!(
                "then {active} requests active, {held} bytes in flight, {running} sequences running, {descriptors} descriptors"
            );
            return quiet;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
