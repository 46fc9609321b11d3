// SPDX-License-Identifier: Apache-2.0
//! A session with as many branches as turns is read, exported and finished without blocking the runtime.
//!
//! The tests measure the CPU time of the runtime's one thread between two polls of a heartbeat, so that other load does not count.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokentap::session::ledger::log::{Fsync, Log, Options};
use tokentap::session::ledger::{Change, Record, RecordLog};
use tokentap::session::{Call, Draft, FinishedCursor, Sessions, Turn, TurnMetadata};
use tokio::task::LocalSet;

use crate::support::binary::Binary;
use crate::support::engine;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream};

/// Turns of the trunk, and leaves at its end. The larger numbers take minutes in an unoptimised build.
const TURNS: u32 = if cfg!(debug_assertions) { 300 } else { 4000 };

/// The longest that the runtime's thread may work between two polls of the heartbeat. The system counts in ticks of up to 10 ms.
const HELD: Duration = Duration::from_millis(if cfg!(debug_assertions) { 40 } else { 12 });

fn commit(store: &Arc<Sessions>, prompt: &[u32], response: u32) {
    let about = TurnMetadata { finish: Some("stop".into()), model: "m".into(), ..TurnMetadata::default() };
    let prompt = Some(prompt.into());
    let draft = Draft {
        prompt,
        response: vec![response],
        logprobs: vec![-0.5],
        entropy: vec![0.25],
        about,
        ..Draft::default()
    };
    let (turn, _ack) = Call::new(Arc::clone(store), "branched".into()).commit(draft);
    assert!(turn.is_some(), "the session exists");
}

/// Commits the trunk and, after its end, one leaf for each of its turns.
fn grow(store: &Arc<Sessions>) {
    let mut prompt = Vec::new();
    for turn in 0..TURNS {
        prompt.push(turn);
        commit(store, &prompt, TURNS + turn);
        prompt.push(TURNS + turn);
    }
    for leaf in 0..TURNS {
        prompt.push(leaf);
        commit(store, &prompt, leaf);
        prompt.pop();
    }
}

/// CPU time of the calling thread.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// Runs a task and returns the longest time that the runtime's thread worked between two polls of the heartbeat.
async fn longest_hold<T>(task: impl Future<Output = T>) -> (T, Duration) {
    let longest = Rc::new(Cell::new(Duration::ZERO));
    let beat = {
        let longest = Rc::clone(&longest);
        async move {
            let mut before = thread_time();
            loop {
                tokio::task::yield_now().await;
                let now = thread_time();
                longest.set(longest.get().max(now - before));
                before = now;
            }
        }
    };
    let local = LocalSet::new();
    let beating = local.spawn_local(beat);
    let done = local.run_until(task).await;
    beating.abort();
    (done, longest.get())
}

/// Sends a request from a separate thread; returns the head of the answer, its length in bytes and its last bytes.
async fn ask(addr: SocketAddr, head: &str, body: &str) -> (String, usize, Vec<u8>) {
    let request =
        format!("{head} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let (mut piece, mut head, mut count, mut tail) = (vec![0; 1 << 20], Vec::new(), 0, Vec::new());
        loop {
            let read = stream.read(&mut piece).unwrap();
            if read == 0 {
                break;
            }
            if head.len() < 4096 {
                head.extend_from_slice(&piece[..read.min(4096)]);
            }
            count += read;
            tail.extend_from_slice(&piece[read.saturating_sub(64)..read]);
            tail.drain(..tail.len().saturating_sub(64));
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        (head.split("\r\n\r\n").next().unwrap().to_owned(), count, tail)
    });
    asked.await.unwrap()
}

async fn branched() -> Proxy {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    let store = Arc::clone(&proxy.parts.sessions);
    tokio::task::spawn_blocking(move || grow(&store)).await.unwrap();
    proxy
}

#[tokio::test]
async fn exports_of_a_branched_session_do_not_block_the_runtime() {
    let proxy = branched().await;
    for (format, least) in [("verl", TURNS * TURNS * 2 * 50), ("jsonl", TURNS * TURNS * 2 * 10)] {
        let body = format!(r#"{{"sessions":["branched"],"format":"{format}"}}"#);
        let ((head, count, _), held) = longest_hold(ask(proxy.control, "POST /v1/samples", &body)).await;
        assert!(head.starts_with("HTTP/1.1 200") && head.contains(&format!("tokentap-rows: {TURNS}")), "{head}");
        assert!(count > least as usize, "{format}: {count} bytes");
        assert!(held < HELD, "{format}: the runtime was held for {held:?}");
    }
}

#[tokio::test]
async fn reading_a_branched_session_does_not_block_the_runtime() {
    let proxy = branched().await;
    let last = 2 * TURNS - 1;
    for target in [
        "/v1/sessions/branched/trajectories".to_owned(),
        "/v1/sessions/branched".to_owned(),
        format!("/v1/sessions/branched/paths/{last}"),
        "/v1/sessions".to_owned(),
    ] {
        let ((head, count, _), held) = longest_hold(ask(proxy.control, &format!("GET {target}"), "")).await;
        assert!(head.starts_with("HTTP/1.1 200") && count > 200, "{target}: {head}");
        assert!(held < HELD, "{target}: the runtime was held for {held:?}");
    }
}

/// The position before the last of this many finished paths.
async fn before_last(sessions: &Sessions, paths: u64) -> FinishedCursor {
    let start = sessions.cursor(None).await.unwrap();
    start.at(0, &(paths - 1).to_string()).unwrap()
}

#[tokio::test]
async fn finishing_a_branched_session_does_not_block_the_runtime() {
    let proxy = branched().await;
    let body = r#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":2}}"#;
    let head = "POST /generate HTTP/1.1\r\nx-session-id: branched\r\nx-session-done: true";
    let nearly = before_last(&proxy.parts.sessions, u64::from(TURNS) + 1).await;
    let ends = async {
        let addr = proxy.data;
        let request =
            format!("{head}\r\nhost: {addr}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(addr).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answer = answer.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        proxy.parts.sessions.wait_finished(&nearly, Duration::MAX).await;
    };
    let ((), held) = longest_hold(ends).await;
    assert!(held < HELD, "the runtime was held for {held:?}");
    let ((head, count, _), held) = longest_hold(ask(proxy.control, "GET /v1/trajectories", "")).await;
    assert!(head.starts_with("HTTP/1.1 200") && count > (TURNS * TURNS) as usize, "{head}");
    assert!(held < HELD, "the finished paths held the runtime for {held:?}");
}

/// Sessions of one turn each.
const SESSIONS: u64 = if cfg!(debug_assertions) { 20_000 } else { 200_000 };

#[tokio::test]
async fn many_sessions_do_not_block_the_runtime() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::start(upstream.addr, &["--session-idle", "3s"]).await;
    let store = Arc::clone(&proxy.parts.sessions);
    let filling = Arc::clone(&store);
    let filled = tokio::task::spawn_blocking(move || {
        let about = TurnMetadata { finish: Some("stop".into()), model: "m".into(), ..TurnMetadata::default() };
        let draft = Draft { prompt: Some([1].into()), response: vec![2], about, ..Draft::default() };
        for session in 0..SESSIONS {
            let (turn, _ack) = Call::new(Arc::clone(&filling), format!("s{session}").into()).commit(draft.clone());
            assert_eq!(turn, Some(0));
        }
    });
    filled.await.unwrap();
    let target = "GET /v1/sessions?order=newest&search=nothing";
    let ((head, ..), held) = longest_hold(ask(proxy.control, target, "")).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(held < HELD, "a search held the runtime for {held:?}");
    let nearly = before_last(&store, SESSIONS).await;
    let ((), held) = longest_hold(store.wait_finished(&nearly, Duration::MAX)).await;
    assert!(held < HELD, "sessions that became idle held the runtime for {held:?}");
}

/// Writes a log of the session: the trunk, and the leaves after its end.
async fn log(dir: &Path, turns: u32) {
    let (log, _) = Log::open(&Options { fsync: Fsync::Never, ..Options::new(dir) }, |_| ()).unwrap();
    let mut last = None;
    for id in 0..2 * turns {
        let uid = format!("{id:032x}").parse().unwrap();
        let about = TurnMetadata { uid, finish: Some("stop".into()), model: "m".into(), ..TurnMetadata::default() };
        let turn = Turn {
            id,
            parent: id.checked_sub(1).map(|before| before.min(turns - 1)),
            prompt: [id].into(),
            response: [1].into(),
            logprobs: [-0.5].into(),
            entropy: [0.25].into(),
            about,
        };
        let record =
            Record::new("branched", "000000000000000000000000000000b1".parse().unwrap(), Change::Turn(Arc::new(turn)));
        last = Some(log.append(record.into()));
    }
    last.unwrap().await.unwrap();
}

/// The peak resident memory of a process, in bytes.
fn peak(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The lists of turns of all paths together would take 64 MB each time they are copied.
#[tokio::test]
async fn export_does_not_keep_all_paths_in_memory() {
    const TURNS: u32 = 2000;
    let dir = tempfile::tempdir().unwrap();
    log(dir.path(), TURNS).await;
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let binary = Binary::with_flags(upstream.addr, &["--data-dir", dir.path().to_str().unwrap()]).await;
    let before = peak(binary.id());
    let body = r#"{"sessions":["branched"],"format":"verl"}"#;
    let request = async {
        let addr = binary.control;
        tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(addr).unwrap();
            let head =
                format!("POST /v1/samples HTTP/1.1\r\nhost: {addr}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(head.as_bytes()).unwrap();
            // the head and the first rows suffice: tokentap has visited all rows by then
            let mut read = vec![0; 64 << 10];
            stream.read_exact(&mut read).unwrap();
            String::from_utf8_lossy(&read[..4096]).into_owned()
        })
        .await
        .unwrap()
    };
    let answer = request.await;
    assert!(answer.contains(&format!("tokentap-rows: {TURNS}")), "{answer}");
    let growth = peak(binary.id()) - before;
    assert!(growth < 40 << 20, "{growth} bytes");
}
