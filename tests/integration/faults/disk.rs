// SPDX-License-Identifier: Apache-2.0
//! A disk that is full while streams run, and is freed later. The test simulates it without a separate file system: files of the process
//! may not grow (`prlimit`).

use std::process::Command;

use super::doors::{RequestKind, TOKENS};
use super::stage::{metric, read, turns, wait_until_idle};
use crate::support::binary::Binary;
use crate::support::client::{Connection, get};
use crate::support::manual_upstream::{Call, ManualUpstream, soon};

pub const FULL: &str = "the disk is full";

/// Limits the size of the files of a process; the limit can be raised again.
fn limit_files(binary: &Binary, bytes: &str) {
    let args = ["--pid".to_owned(), binary.id().to_string(), format!("--fsize={bytes}:")];
    assert!(Command::new("prlimit").args(args).status().unwrap().success(), "a limit may be lowered and raised");
}

/// Starts a generation of which the engine has sent the first piece.
async fn begin(upstream: &mut ManualUpstream, binary: &Binary, kind: RequestKind, session: &str) -> (Connection, Call) {
    let mut client = Connection::open(binary.data).await;
    client.send(&kind.request(binary.data, session)).await;
    let mut call = upstream.next().await;
    call.send(&kind.prefix(1)).await;
    (client, call)
}

/// Sends the remaining pieces, which must arrive despite a full disk.
async fn finish(kind: RequestKind, client: &mut Connection, call: Call) {
    call.reply(&kind.healthy()[kind.prefix(1).len()..]).await;
    let answer = soon("an answer", client.answer()).await;
    assert_eq!((answer.status, answer.complete), (200, true), "{kind:?}: {}", answer.text());
    assert!(answer.text().contains("output_token_entropy"), "{kind:?}: {}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_loses_the_records_of_running_streams_not_their_replies() {
    let (mut upstream, dir) = (ManualUpstream::start().await, tempfile::tempdir().unwrap());
    let flags = ["--data-dir", dir.path().to_str().unwrap()];
    let binary = Binary::with_flags(upstream.addr, &flags).await;
    let control = binary.control;
    let kinds = [RequestKind::Whole, RequestKind::Cumulative];
    let mut before = Vec::new();
    for kind in kinds {
        let (mut client, call) = begin(&mut upstream, &binary, kind, &format!("before-{kind:?}")).await;
        finish(kind, &mut client, call).await;
        before.push(read(control, &format!("before-{kind:?}")).await);
    }
    // all of them run when the disk fills
    let mut running = Vec::new();
    for kind in kinds {
        running.push((kind, begin(&mut upstream, &binary, kind, &format!("full-{kind:?}")).await));
    }
    limit_files(&binary, "0");
    for (kind, (mut client, call)) in running {
        finish(kind, &mut client, call).await;
        assert_eq!(
            turns(control, &format!("full-{kind:?}")).await,
            [(TOKENS, None)],
            "{kind:?}: the turn is in memory"
        );
    }
    assert_eq!(metric(control, "tokentap_log_degraded", "").await, 1.0);
    assert_eq!(metric(control, "tokentap_log_failures_total", "write").await, 2.0, "each reply that is not on disk");
    assert_eq!(metric(control, "tokentap_log_lost_records_total", "").await, 2.0);
    assert_eq!(get(control, "/readyz").await.status, 200, "agents are served");
    limit_files(&binary, "unlimited");
    let mut after = 0;
    while metric(control, "tokentap_log_degraded", "").await == 1.0 {
        // the log is tried again a second after a failure
        let (mut client, call) = begin(&mut upstream, &binary, RequestKind::Whole, &format!("after-{after}")).await;
        finish(RequestKind::Whole, &mut client, call).await;
        after += 1;
        assert!(after < 5_000, "the log recovers");
    }
    let last = format!("after-{}", after - 1);
    let (lost, written) = (read(control, "full-Whole").await, read(control, &last).await);
    wait_until_idle(control).await;
    binary.kill();

    let binary = Binary::with_flags(upstream.addr, &flags).await;
    for (kind, before) in kinds.iter().zip(before) {
        assert_eq!(read(binary.control, &format!("before-{kind:?}")).await, before, "{kind:?}");
        assert_eq!(
            turns(binary.control, &format!("full-{kind:?}")).await,
            vec![],
            "the records that were counted as lost are lost"
        );
    }
    assert!(lost.contains("\"token_ids\""), "{lost}");
    assert_eq!(read(binary.control, &last).await, written, "the log continues after the disk is freed");
}
