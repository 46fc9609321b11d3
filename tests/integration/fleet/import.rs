// SPDX-License-Identifier: Apache-2.0
//! The sessions of a single tokentap become those of a fleet.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::Server;
use crate::crash::StandaloneEngine;
use crate::crash::trainers::{generate_turn, post_control};
use crate::support::binary::{Binary, output};
use crate::support::client::{get, post, request};

const SESSIONS: [&str; 4] = ["branched", "done", "unseen", "reborn"];

/// What trainers can read of the sessions: their pages, exports and finished paths, without what differs in a fleet.
async fn read(control: SocketAddr) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for format in ["jsonl", "parquet", "verl"] {
        let body = json!({"sessions": SESSIONS, "format": format}).to_string();
        let answer = post(control, "/v1/samples", body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        all.push(answer.body.to_vec());
    }
    for path in ["branched/trajectories?version=1", "branched/trajectories?version=2", "unseen/trajectories"] {
        let answer = get(control, &format!("/v1/sessions/{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        all.push(answer.body.to_vec());
    }
    for session in SESSIONS {
        let mut shown = get(control, &format!("/v1/sessions/{session}")).await.json();
        // a session takes less if an earlier one has the same values
        shown.as_object_mut().unwrap().remove("bytes");
        // only shared sessions have a generation
        shown.as_object_mut().unwrap().remove("generation");
        all.push(shown.to_string().into());
    }
    let lines = get(control, "/v1/trajectories").await.text();
    let mut paths: Vec<String> = lines
        .lines()
        .map(|line| {
            let mut path: Value = serde_json::from_str(line).unwrap();
            // the streams of a fleet have their own order and cursors
            path.as_object_mut().unwrap().remove("cursor").expect("each line has one");
            path.to_string()
        })
        .collect();
    paths.sort();
    all.extend(paths.into_iter().map(String::into_bytes));
    all
}

/// Records sessions with branches, rewards, frozen versions, finished paths, an incomplete mark and a deletion.
pub(crate) async fn record(binary: &Binary) {
    let (data, control) = (binary.data, binary.control);
    let first = generate_turn(data, "branched", &[1, 2, 3], "").await;
    let sampled: Vec<u32> = serde_json::from_value(first["output_ids"].clone()).unwrap();
    let longer = [&[1, 2, 3][..], &sampled, &[9]].concat();
    generate_turn(data, "branched", &longer, "").await;
    generate_turn(data, "branched", &[1, 2, 7], "").await;
    post_control(control, "/v1/sessions/branched/reward", &json!({"reward": {"score": 0.25}, "leaf": 1})).await;
    post_control(control, "/v1/sessions/branched/reward", &json!({"reward": 1.5})).await;
    post_control(control, "/v1/sessions/branched/freeze", &json!({})).await;
    generate_turn(data, "branched", &longer, "").await;
    post_control(control, "/v1/sessions/branched/reward", &json!({"reward": 3, "leaf": 3})).await;
    generate_turn(data, "done", &[4, 5], "true").await;
    generate_turn(data, "unseen", &[6], "").await;
    request(data, "POST", "/v1/chat/completions", &[("x-session-id", "unseen")], b"{}").await;
    for session in ["reborn", "deleted"] {
        generate_turn(data, session, &[8], "").await;
        assert_eq!(request(control, "DELETE", &format!("/v1/sessions/{session}"), &[], b"").await.status, 200);
    }
    generate_turn(data, "reborn", &[8, 8], "").await;
}

/// The exit code, and the lines on standard output with the error.
async fn import(dir: &TempDir, server: &Server) -> (Option<i32>, String) {
    let (dir, url) = (dir.path().to_str().unwrap(), server.url());
    let done = output(&["import", "--data-dir", dir, "--ledger", &url, "--ledger-replicas", "0"]).await;
    let (out, log) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    let error = log.lines().filter(|line| line.starts_with("tokentap: "));
    (done.status.code(), error.fold(out, |text, line| text + line))
}

async fn end(mut binary: Binary) {
    binary.terminate();
    assert_eq!(binary.code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_a_single_tokentap_are_continued_by_a_fleet() {
    let debug = ["--enable-debug-command", "yes"];
    let Some(server) = Server::start_with("VALKEY_SERVER", &debug) else { return };
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let single = alone.start_binary(&dir, &["--session-idle", "1h"]).await;
    record(&single).await;
    let (code, text) = import(&dir, &server).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("in use by another tokentap"), "{text}");
    end(single).await;
    // as after any restart, so that times and marks that are only in memory are those of the log
    let single = alone.start_binary(&dir, &["--session-idle", "1h"]).await;
    let before = read(single.control).await;
    end(single).await;
    let files = |dir: &TempDir| {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        files.sort();
        files
    };
    let log = files(&dir);

    assert_eq!(
        import(&dir, &server).await,
        (Some(0), "4 sessions imported, 0 already in the ledger, 0 skipped\n".into())
    );
    assert!(files(&dir) == log, "the log is unchanged");
    let imported = server.ask(&["DEBUG", "DIGEST"]);
    assert_eq!(
        import(&dir, &server).await,
        (Some(0), "0 sessions imported, 4 already in the ledger, 0 skipped\n".into())
    );
    assert_eq!(server.ask(&["DEBUG", "DIGEST"]), imported, "a second import adds nothing");

    let url = server.url();
    let flags = ["--ledger", &url, "--ledger-replicas", "0", "--session-idle", "1h"];
    let fleet = [Binary::with_flags(alone.addr, &flags).await, Binary::with_flags(alone.addr, &flags).await];
    for member in &fleet {
        let after = read(member.control).await;
        assert_eq!(after.len(), before.len());
        for (after, before) in after.iter().zip(&before) {
            assert!(after == before, "{}\nis not\n{}", String::from_utf8_lossy(after), String::from_utf8_lossy(before));
        }
        assert_eq!(get(member.control, "/v1/sessions/deleted").await.status, 404);
    }
    // one continues, and the other sees it
    generate_turn(fleet[0].data, "unseen", &[6, 6], "").await;
    assert_eq!(get(fleet[1].control, "/v1/sessions/unseen").await.json()["turns"], json!(2));
    assert_eq!(request(fleet[1].control, "DELETE", "/v1/sessions/done", &[], b"").await.status, 200);
    let (code, text) = import(&dir, &server).await;
    let summary = "0 sessions imported, 3 already in the ledger, 0 skipped, 1 deleted from the ledger\n";
    assert_eq!((code, &*text), (Some(0), summary));

    // a folder that never had a log, and a name that is in use
    let (code, text) = import(&tempfile::tempdir().unwrap(), &server).await;
    assert!(code == Some(1) && text.contains("holds no log"), "{text}");
    let other = tempfile::tempdir().unwrap();
    let single = alone.start_binary(&other, &[]).await;
    generate_turn(single.data, "unseen", &[6], "").await;
    end(single).await;
    let (code, text) = import(&other, &server).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("skipped unseen: the ledger has another session of this name\n"), "{text}");
}
