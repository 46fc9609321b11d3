// SPDX-License-Identifier: Apache-2.0
//! The time to restore a store from its log, compared with reading and keeping the same bytes.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokentap::session::ledger::SharedLog;
use tokentap::session::ledger::log::{Directory, Options};
use tokentap::session::{Policy, Sessions, StoreLimits, Turn};

use crate::engine;
use crate::fill::{self, BOUNDLESS, Scratch};
use crate::tap::{Tap, ask, get};
use crate::times::Times;

/// Bytes of the first line of a file.
const FIRST_LINE: usize = 58;
/// Bytes before the payload of a record: marker, length, checksum, kind.
const ENVELOPE: usize = 17;

pub fn run(scale: f64) {
    println!("restart from a log, with a store of 1 GiB: seconds, MB/s of the files");
    println!("| log | files | read the files | and keep up to 1 GiB | restore | server ready | /livez p99, longest |");
    println!("|---|---|---|---|---|---|---|");
    let scaled = |count: u32| ((f64::from(count) * scale) as u32).max(10);
    let long = (0..scaled(6_800)).map(|session| {
        (
            format!("session-{session}").into(),
            fill::turn(0, None, &fill::tokens(session, 60_000), fill::tokens(!session, 64)),
        )
    });
    measure("one turn with a prompt of 60,000 tokens a session", long);
    let agents = (0..scaled(55_000)).flat_map(|session| {
        let name: Arc<str> = format!("session-{session}").into();
        (0..8).map(move |id| {
            let seed = session * 8 + id;
            (Arc::clone(&name), fill::turn(id, id.checked_sub(1), &fill::tokens(seed, 300), fill::tokens(!seed, 200)))
        })
    });
    measure("8 turns of 300 + 200 tokens a session", agents);
    println!();
}

fn measure(name: &str, turns: impl Iterator<Item = (Arc<str>, Arc<Turn>)>) {
    let scratch = Scratch::new("restart");
    fill::write_log(&scratch.0, turns);
    let bytes: usize = files(&scratch.0).map(|file| file.len()).sum();
    // the files are in the page cache, as after a crash of the process
    let (read, ()) = timed(|| files(&scratch.0).for_each(|file| drop(black_box(file))));
    // what a store needs at least: memory for the records, which the system fills with zeros first
    let mut kept = RetainedRecords::default();
    let (keeping, ()) = timed(|| files(&scratch.0).for_each(|file| payloads(&file, |payload| kept.push(payload))));
    drop(kept);
    let limits = StoreLimits { bytes: 1 << 30, ttl: BOUNDLESS, idle: BOUNDLESS };
    let store = Sessions::new(limits);
    let directory = Directory::lock(&Options::new(&scratch.0)).unwrap();
    let policy = Policy::new(SharedLog::default());
    let (restored, _) = timed(|| store.restore_from(directory, &policy, |_| {}).unwrap());
    drop(store);
    let (ready, probes) = serve(&scratch);
    let speed =
        |time: Duration| format!("{:.2} s, {:.0} MB/s", time.as_secs_f64(), bytes as f64 / 1e6 / time.as_secs_f64());
    println!(
        "| {name} | {:.0} MB | {} | {} | {} | {} | {:.1}, {:.1} ms |",
        bytes as f64 / 1e6,
        speed(read),
        speed(keeping),
        speed(restored),
        speed(ready),
        probes.quantile(0.99) / 1e3,
        probes.longest() / 1e3,
    );
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let began = Instant::now();
    let result = work();
    (began.elapsed(), result)
}

fn files(directory: &Path) -> impl Iterator<Item = Vec<u8>> {
    let mut paths: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap())
}

/// The latest records, up to the size of the store.
#[derive(Default)]
struct RetainedRecords {
    records: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl RetainedRecords {
    fn push(&mut self, record: &[u8]) {
        self.bytes += record.len();
        self.records.push_back(record.into());
        while self.bytes > 1 << 30 {
            self.bytes -= self.records.pop_front().map_or(0, |record| record.len());
        }
    }
}

/// Visits the records of a file.
fn payloads(file: &[u8], mut each: impl FnMut(&[u8])) {
    let mut rest = file.get(FIRST_LINE..).unwrap_or_default();
    while let Some((envelope, after)) = rest.split_first_chunk::<ENVELOPE>() {
        let length = u32::from_le_bytes(*envelope[8..].first_chunk().unwrap()) as usize;
        each(&after[..length]);
        rest = &after[length..];
    }
}

/// Starts a server on the log. Returns the time until it is ready, and the times of `/livez` meanwhile.
fn serve(scratch: &Scratch) -> (Duration, Times) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let upstream = engine::start().await;
        let began = Instant::now();
        let tap = Tap::spawn(upstream, &["--data-dir", scratch.text()]);
        let mut probes = Times::default();
        loop {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let begin = Instant::now();
            let Ok((200, _)) = ask(tap.control, &get("/livez")).await else { continue };
            probes.push(begin.elapsed());
            if let Ok((200, _)) = ask(tap.control, &get("/readyz")).await {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(300), "the server does not become ready");
        }
        (began.elapsed(), probes)
    })
}
