// SPDX-License-Identifier: Apache-2.0
//! The soak test: agents connect and disconnect for a long time; memory and descriptors must not grow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memchr::memmem;
use tokio::task::JoinSet;

use crate::churn::{ActionCounts, Agent};
use crate::rude;
use crate::slope::{self, Slope};
use crate::tap::{Tap, Usage, ask, get, metric, post};
use crate::times::{Times, probe};

const AGENTS: u64 = 24;

/// Small stores, so that sessions, entropies and log segments are evicted continually.
const FLAGS: &str = "--session-bytes 8MiB --session-ttl 60s --session-idle 5s --data-bytes 64MiB";

/// The allocator returns free memory at once, so that the system's count is the memory in use. By default it keeps some tens of MB from one
/// export to the next, for minutes, which looks like growth.
const AT_ONCE: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "0");

/// The time between two pauses of all agents. Memory is measured in the pauses, because under load it depends on the running requests.
const ROUND: Duration = Duration::from_secs(50);

/// MB an hour that a steady process may appear to grow. At a hundred requests a second it is 14 bytes for each request, less than any
/// leaked object.
const BOUND: f64 = 5.0;

/// The largest half interval, in MB an hour, of a valid result: about a hundred bytes for each request. An allocator can return only whole
/// free pages, so the same load leaves some MB more or less.
const WIDEST: f64 = 40.0;

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
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(ActionCounts::default()));
    let mut times = [Times::default(), Times::default()];
    let finished = Arc::new(AtomicUsize::new(0));
    let trainer = tokio::spawn(trainer(tap.control, Arc::clone(&stop), Arc::clone(&finished)));
    let began = Instant::now();
    let mut seen = Vec::new();
    while began.elapsed() < Duration::from_secs(seconds) {
        let took = round(seen.len() as u64, &done, [upstream, tap.data]).await;
        times.iter_mut().zip(took).for_each(|(all, its)| all.add(its));
        let held = IdleResources::now(&tap, idle, began, finished.load(Ordering::Relaxed)).await;
        println!("{held}, {} requests", done.all());
        seen.push(held);
    }
    stop.store(true, Ordering::Relaxed);
    let counts = trainer.await.expect("the trainer does not panic");
    println!("{done:?}\nthe trainer has {counts:?}");
    let [direct, through] = times;
    println!("16 tokens at 1 ms each, directly: {direct}\n16 tokens at 1 ms each, through tokentap: {through}");
    overhead(&tap.metrics().await);
    let second = &seen[seen.len() / 2..];
    let slope =
        |of: fn(&IdleResources) -> f64| Slope::through(second.iter().map(|held| (held.seconds / 3600.0, of(held))));
    let memory = slope(|held| held.rss - held.expected_growth);
    let descriptors = slope(|held| held.descriptors);
    println!(
        "memory in the second half, without the expected growth: {memory} MB an hour (at most {BOUND} more than noise explains)"
    );
    let hourly = done.all() as f64 / began.elapsed().as_secs_f64() * 3600.0;
    println!("  at most {:.0} bytes per request are leaked", ((memory.hourly + memory.spread) * 1e6 / hourly).max(0.0));
    println!("descriptors in the second half: {descriptors} an hour");
    assert!(
        counts.shown.min(counts.samples).min(counts.deleted) > 0,
        "the trainer has read sessions and samples, and deleted sessions"
    );
    assert!(finished.load(Ordering::Relaxed) > 0, "the trainer has read finished paths");
    assert!(!memory.exceeds(BOUND), "memory grows");
    assert!(!descriptors.exceeds(20.0), "descriptors grow");
    assert!(
        memory.spread < WIDEST,
        "the machine was too noisy to decide whether memory grows: run it again, or for longer"
    );
    assert!(seen.iter().all(|held| held.quiet), "resources are in use while nothing runs");
    assert_eq!(through.failed + done.wrong.load(Ordering::Relaxed) as usize, 0, "every reply is correct");
    let _ = std::fs::remove_dir_all(&folder);
}

/// Runs the agents for a while. Returns the times of two other clients, one of the engine and one of tokentap.
async fn round(number: u64, done: &Arc<ActionCounts>, [direct, through]: [SocketAddr; 2]) -> [Times; 2] {
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for agent in 0..AGENTS {
        let name = number * AGENTS + agent;
        tasks.spawn(Agent { name, data: through, done: Arc::clone(done), dice: name }.work(Arc::clone(&stop)));
    }
    let small = || post("/generate", &[], SMALL.as_bytes());
    let probes =
        [direct, through].map(|addr| tokio::spawn(probe(addr, small(), Duration::from_millis(100), Arc::clone(&stop))));
    tokio::time::sleep(ROUND).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("an agent does not panic");
    }
    let [direct, through] = probes;
    [direct.await, through.await].map(|times| times.expect("a probe does not panic"))
}

/// Resources of tokentap while only the trainer sends requests.
struct IdleResources {
    seconds: f64,
    /// MB.
    rss: f64,
    /// Expected growth, in MB: names of sessions and numbers of finished paths, of which a million are kept.
    expected_growth: f64,
    descriptors: f64,
    quiet: bool,
    line: String,
}

impl IdleResources {
    async fn now(tap: &Tap, idle: Usage, began: Instant, finished: usize) -> Self {
        let quiet = is_released(tap, idle).await;
        let text = tap.metrics().await;
        let value = |name| metric(&text, name, "");
        let (gone, turns) = (value("tokentap_sessions_evicted_total"), value("tokentap_turns_total"));
        // a path has a number and a pointer in a ring that doubles, a session its name with two counts
        let ring = finished.next_power_of_two() * 24;
        let expected_growth = (ring as f64 + gone * 48.0) / 1e6;
        // the trainer exports once a second, and no export runs in between
        let mut usage = tap.usage();
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = tap.usage();
            if now.rss < usage.rss {
                usage = now;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let line = format!(
            "{seconds:5.0} s: {usage}, {expected_growth:.1} MB expected growth, {gone:.0} sessions evicted, {turns:.0} turns, log {:.1} MB",
            value("tokentap_log_bytes") / 1e6
        );
        Self {
            seconds,
            rss: usage.rss as f64 / 1e6,
            expected_growth,
            descriptors: usage.descriptors as f64,
            quiet,
            line,
        }
    }
}

impl std::fmt::Display for IdleResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.line)
    }
}

/// Counts of the trainer's replies.
#[derive(Debug, Default)]
struct TrainerCounts {
    shown: u64,
    samples: u64,
    deleted: u64,
}

/// Reads from the control port, and deletes some sessions.
async fn trainer(control: SocketAddr, stop: Arc<AtomicBool>, finished: Arc<AtomicUsize>) -> TrainerCounts {
    let mut counts = TrainerCounts::default();
    let mut cursor = String::new();
    let mut round = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        for path in ["/metrics", "/livez", "/readyz", "/v1/requests", "/v1/policy"] {
            body_of(control, &get(path), &[200]).await;
        }
        let page = body_of(control, &get("/v1/sessions?limit=300&order=newest"), &[200]).await;
        let page: serde_json::Value = serde_json::from_slice(&page).expect("sessions are JSON");
        let sessions = page["sessions"].as_array().expect("a list of sessions");
        // a session of the list may be evicted before it is requested
        let names: Vec<&str> = sessions.iter().map(|session| session["session"].as_str().expect("its name")).collect();
        for name in names.iter().take(3) {
            for path in ["", "/trajectories"] {
                let body = body_of(control, &get(&format!("/v1/sessions/{name}{path}")), &[200, 404, 410]).await;
                counts.shown += u64::from(memmem::find(&body, name.as_bytes()).is_some());
            }
        }
        for format in ["verl", "jsonl", "parquet"] {
            let body = serde_json::json!({"sessions": names, "format": format}).to_string();
            let export = body_of(control, &post("/v1/samples", &[], body.as_bytes()), &[200, 404, 410]).await;
            if format == "jsonl" {
                counts.samples += memmem::find_iter(&export, b"\"session\"").count() as u64;
            }
        }
        loop {
            let lines = body_of(control, &get(&format!("/v1/trajectories?limit=1000&since={cursor}")), &[200]).await;
            let lines: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
            let Some(last) = lines.last() else { break };
            let last: serde_json::Value = serde_json::from_slice(last).expect("a line is JSON");
            last["cursor"].as_str().expect("a line has a cursor").clone_into(&mut cursor);
            finished.fetch_add(lines.len(), Ordering::Relaxed);
        }
        if let Some(name) = names.last().filter(|_| round.is_multiple_of(5)) {
            body_of(control, &post(&format!("/v1/sessions/{name}/freeze"), &[], b""), &[200, 404, 410]).await;
            let delete = format!("DELETE /v1/sessions/{name} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            let body = body_of(control, delete.as_bytes(), &[200, 404, 410]).await;
            counts.deleted += u64::from(memmem::find(&body, b"deleted").is_some());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    counts
}

/// The body of a reply with one of these statuses.
async fn body_of(control: SocketAddr, request: &[u8], statuses: &[u16]) -> Vec<u8> {
    let (status, body) = ask(control, request).await.expect("the control port answers");
    let asked = String::from_utf8_lossy(&request[..request.len().min(200)]);
    assert!(statuses.contains(&status), "{status} for {asked}: {}", String::from_utf8_lossy(&body));
    body
}

/// The bounds of the 99th percentile of tokentap's own work.
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

/// Waits up to 30 s after the requests end. Returns whether everything is released.
async fn is_released(tap: &Tap, idle: Usage) -> bool {
    let began = Instant::now();
    loop {
        let text = tap.metrics().await;
        let active = metric(&text, "tokentap_http_requests_active", "endpoint=\"/generate\"");
        let held = metric(&text, "tokentap_bytes_in_flight", "");
        let running = body_of(tap.control, &get("/v1/requests"), &[200]).await;
        let running: serde_json::Value = serde_json::from_slice(&running).expect("they are JSON");
        let running = running["requests"].as_array().map_or(usize::MAX, Vec::len);
        let descriptors = tap.usage().descriptors;
        if active == 0.0 && held == 0.0 && running == 0 && descriptors <= idle.descriptors + 6 {
            return true;
        }
        if began.elapsed() > Duration::from_secs(30) {
            println!(
                "{active} requests active, {held} bytes in flight, {running} sequences running, {descriptors} descriptors"
            );
            return false;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
