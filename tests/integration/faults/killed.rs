// SPDX-License-Identifier: Apache-2.0
//! tokentap itself is killed: after the last byte of a reply, and within a reply.

use super::doors::{RequestKind, TOKENS};
use super::stage::turns;
use crate::support::binary::Binary;
use crate::support::client::Connection;
use crate::support::manual_upstream::{ManualUpstream, soon};

pub const KILLED: &str = "tokentap is killed";

#[tokio::test(flavor = "multi_thread")]
async fn delivered_reply_survives_a_kill_and_a_cut_reply_is_incomplete() {
    for (streaming, kinds) in RequestKind::ALL {
        let (mut upstream, dir) = (ManualUpstream::streaming(streaming).await, tempfile::tempdir().unwrap());
        let flags = ["--data-dir", dir.path().to_str().unwrap()];
        let mut binary = Binary::with_flags(upstream.addr, &flags).await;
        for kind in kinds {
            binary = kill(&mut upstream, binary, *kind, &flags).await;
        }
    }
}

/// Kills a tokentap while it forwards a reply and after the last byte of another one; returns its successor.
async fn kill(upstream: &mut ManualUpstream, binary: Binary, kind: RequestKind, flags: &[&str]) -> Binary {
    let cut = format!("cut-{kind:?}");
    let mut unfinished = Connection::open(binary.data).await;
    unfinished.send(&kind.request(binary.data, &cut)).await;
    let mut running = upstream.next().await;
    running.send(&kind.prefix(1)).await;
    if kind != RequestKind::Whole {
        // the head and the first piece
        let last: &[u8] = if kind.is_stream() { b"\n\n\r\n" } else { &kind.pieces()[0] };
        assert!(soon("its beginning", unfinished.read_until(|read| read.ends_with(last))).await);
    }
    let whole = format!("whole-{kind:?}");
    let mut finished = Connection::open(binary.data).await;
    finished.send(&kind.request(binary.data, &whole)).await;
    upstream.next().await.reply(&kind.healthy()).await;
    let answer = soon("an answer", finished.answer()).await;
    binary.kill();
    assert!(answer.complete, "{kind:?}");
    let answer = soon("an end", unfinished.answer()).await;
    assert!(!answer.complete, "{kind:?}: a reply that was cut does not look complete: {}", answer.text());
    running.closed().await;
    let binary = Binary::with_flags(upstream.addr, flags).await;
    let expected = if kind == RequestKind::Forward { vec![] } else { vec![(TOKENS, None)] };
    assert_eq!(turns(binary.control, &whole).await, expected, "{kind:?}: its client has the whole reply");
    assert_eq!(turns(binary.control, &cut).await, vec![], "{kind:?}: its client saw an incomplete reply");
    binary
}

/// The size of the log in bytes.
fn log_bytes(dir: &tempfile::TempDir) -> u64 {
    std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_is_logged_before_its_last_byte_is_sent() {
    for (streaming, kinds) in RequestKind::ALL {
        let (mut upstream, dir) = (ManualUpstream::streaming(streaming).await, tempfile::tempdir().unwrap());
        let binary = Binary::with_flags(upstream.addr, &["--data-dir", dir.path().to_str().unwrap()]).await;
        for kind in kinds.iter().filter(|kind| **kind != RequestKind::Forward) {
            let mut client = Connection::open(binary.data).await;
            // often enough that a writer that may be late is late
            for at in 0..100 {
                let before = log_bytes(&dir);
                client.send(&kind.request(binary.data, &format!("{kind:?}-{at}"))).await;
                upstream.next().await.reply(&kind.healthy()).await;
                assert!(soon("an answer", client.answer()).await.complete, "{kind:?}");
                assert!(log_bytes(&dir) > before, "{kind:?}, reply {at}: a kill now would lose a delivered reply");
            }
        }
    }
}
