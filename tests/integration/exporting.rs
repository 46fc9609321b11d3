// SPDX-License-Identifier: Apache-2.0
//! `tokentap export`: the same rows from a folder and from a running tokentap, and no partial files.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use tokentap::config::{self, Command};
use tokentap::session::ledger::log::{Log, Options};
use tokentap::session::ledger::{Change, Record, RecordLog};
use tokentap::session::{Cause, RewardScope, Span, Turn, TurnMetadata};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::crash::StandaloneEngine;
use crate::crash::trainers::generate_turn;
use crate::support::binary::output;
use crate::support::client::{post, request};
use crate::support::engine;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, json_message};

fn record(session: &str, change: Change) -> Record {
    Record::new(session, "000000000000000000000000000000b1".parse().unwrap(), change)
}

fn turn(session: &str, id: u32, prompt: &[u32], response: &[u32]) -> Record {
    let about = TurnMetadata {
        uid: format!("{id:032x}").parse().unwrap(),
        cause: if id == 0 { Cause::First } else { Cause::Extends },
        finish: Some("stop".into()),
        model: "m".into(),
        policy: vec![Span {
            start: 0,
            end: u32::try_from(response.len()).unwrap(),
            epoch: 3,
            until: 3,
            weight_version: None,
            version: None,
            process: None,
            adapter: None,
        }],
        ..TurnMetadata::default()
    };
    let turn = Turn {
        id,
        parent: id.checked_sub(1),
        prompt: prompt.into(),
        response: response.into(),
        logprobs: vec![-0.5; response.len()].into(),
        entropy: Box::default(),
        about,
    };
    record(session, Change::Turn(Arc::new(turn)))
}

/// Writes a log of session `a`, with two turns and one more after its first version, and of session `b` without logprobs.
async fn write_log() -> TempDir {
    let dir = tempdir().unwrap();
    let (log, _) = Log::open(&Options::new(dir.path()), |_| ()).unwrap();
    let Change::Turn(bare) = turn("b", 0, &[1], &[9]).change else { panic!("it is a turn") };
    let bare = Change::Turn(Arc::new(Turn { logprobs: Box::default(), ..(*bare).clone() }));
    let reward = Change::Reward { scope: RewardScope::Session, reward: Arc::new(json!(0.5)), version: 1 };
    for record in [
        turn("a", 0, &[1, 2], &[3, 4]),
        turn("a", 1, &[5], &[6]),
        record("a", reward),
        record("a", Change::Freeze { turns: 2 }),
        turn("a", 2, &[7], &[8]),
        record("b", bare),
    ] {
        log.append(record.into()).await.unwrap();
    }
    dir
}

/// Runs `tokentap export`; returns exit code, standard output and standard error.
async fn export(args: &[&str]) -> (Option<i32>, Vec<u8>, String) {
    let args: Vec<&str> = ["export"].iter().chain(args).copied().collect();
    let done = output(&args).await;
    (done.status.code(), done.stdout, String::from_utf8(done.stderr).unwrap())
}

fn lines(text: &[u8]) -> Vec<Value> {
    std::str::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn export_from_a_log_writes_a_file() {
    let (log, out) = (write_log().await, tempdir().unwrap());
    let dir = log.path().to_str().unwrap();
    let (code, stdout, stderr) = export(&["--format", "jsonl", "--out", "-", "--data-dir", dir]).await;
    assert_eq!(code, Some(0), "{stderr}");
    let rows = lines(&stdout);
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["session"], &rows[0]["version"], &rows[0]["reward"]), (&json!("a"), &json!(1), &json!(0.5)));
    assert_eq!(rows[0]["token_ids"], json!([1, 2, 3, 4, 5, 6]), "the frozen version");
    assert_eq!(rows[0]["think_token_count"], json!(null), "a log names no think tokens");
    assert_eq!(rows[1]["token_ids"], json!([1, 9]));
    let size = stdout.len() as f64 / 1024.0;
    assert_eq!(stderr, format!("tokentap: 2 rows of 2 sessions, {size:.2} KiB to standard output\n"));

    let file = out.path().join("rows.safetensors");
    let path = file.to_str().unwrap();
    let (code, stdout, stderr) = export(&["--format", "verl", "--out", path, "--data-dir", dir]).await;
    assert!(code == Some(0) && stdout.is_empty(), "{stderr}");
    assert!(stderr.starts_with("tokentap: 1 row of 2 sessions, refused: 1 missing_logprobs, "), "{stderr}");
    assert!(stderr.trim_end().ends_with(&format!(" to {path}")), "{stderr}");
    assert_eq!(names(out.path()), ["rows.safetensors"]);
    let bytes = std::fs::read(&file).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.info("prompts").unwrap().shape, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_select_the_exported_rows() {
    let log = write_log().await;
    let fixed = ["--format", "jsonl", "--out", "-", "--data-dir", log.path().to_str().unwrap()];
    let with = async |flags: &[&str]| export(&[&fixed, flags].concat()).await;
    let (code, stdout, _) = with(&["--session", "a", "--version", "2"]).await;
    let rows = lines(&stdout);
    assert_eq!((code, rows.len()), (Some(0), 1));
    assert_eq!(rows[0]["token_ids"], json!([1, 2, 3, 4, 5, 6, 7, 8]), "the open version");
    for (flags, message) in [
        (&["--session", "c"][..], "the log has no session \"c\""),
        (&["--max-response-length", "4"], "--max-response-length: jsonl does not use it, only verl"),
        (&["--pad-token-id", "0"], "--pad-token-id: jsonl does not use it, only verl, areal, tunix"),
        (&["--scores", "bog"], "--scores: \"bog\" has scored none of these paths"),
        (&["--exclude", "bog"], "--exclude: \"bog\" is not one of incomplete, "),
        (&["--version", "7"], "session \"a\": there is no such version"),
        (&["--format", "csv"], "--format"),
        (&["--log", "error", "--data-dir", "/nowhere/at/all"], "cannot"),
    ] {
        let (code, stdout, stderr) = with(flags).await;
        assert!(code != Some(0) && stdout.is_empty(), "{flags:?}: {stderr}");
        assert!(stderr.starts_with("tokentap: ") && stderr.contains(message), "{flags:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let (code, _, stderr) = export(&["--format", "csv", "--out", "-"]).await;
    assert!(code == Some(64) && stderr.contains("verl, miles"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn export_from_a_running_tokentap_equals_http() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let generation = br#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":4}}"#;
    for session in ["one", "two"] {
        let answer = post(proxy.data, &format!("/sessions/{session}/generate"), generation).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let out = tempdir().unwrap();
    let file = out.path().join("rows.jsonl");
    let (url, path) = (format!("http://{}", proxy.control), file.to_str().unwrap());
    let fixed = ["--format", "jsonl", "--out", path, "--control", &url];
    let (code, stdout, stderr) = export(&fixed).await;
    assert!(code == Some(0) && stdout.is_empty(), "{stderr}");
    assert!(stderr.contains("2 sessions") && stderr.trim_end().ends_with(path), "{stderr}");
    let body = br#"{"sessions":["one","two"],"format":"jsonl"}"#;
    let direct = request(proxy.control, "POST", "/v1/samples", &[("content-type", "application/json")], body).await;
    let written = std::fs::read(&file).unwrap();
    assert_eq!(String::from_utf8(written.clone()).unwrap(), direct.text());
    assert_eq!(lines(&written)[1]["session"], "two");
    // a failed export keeps the existing file
    let (code, _, stderr) = export(&[&fixed[..], &["--session", "three"]].concat()).await;
    assert!(code == Some(1) && stderr.contains("answered 404") && stderr.contains("three"), "{stderr}");
    assert_eq!((names(out.path()), std::fs::read(&file).unwrap()), (vec!["rows.jsonl".to_owned()], written));
}

#[tokio::test(flavor = "multi_thread")]
async fn export_from_a_port_that_is_not_control_names_the_flag() {
    let upstream = Upstream::start(EngineProfile::default(), |_| json_message(404, br#"{"detail":"Not Found"}"#)).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let page = Upstream::start(EngineProfile::default(), |_| json_message(200, b"{}")).await;
    for port in [proxy.data, page.addr] {
        let control = format!("http://{port}");
        let (code, _, stderr) = export(&["--format", "jsonl", "--out", "-", "--control", &control]).await;
        assert!(code == Some(1) && stderr.contains("--control") && stderr.contains("30002"), "{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_tokentap_prints_one_line() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let out = tempdir().unwrap();
    let path = out.path().join("rows.parquet");
    let url = format!("http://{closed}");
    let (code, _, stderr) = export(&["--format", "parquet", "--out", path.to_str().unwrap(), "--control", &url]).await;
    assert!(code == Some(1) && stderr.starts_with("tokentap: cannot connect to"), "{stderr}");
    assert!(stderr.lines().count() == 1 && names(out.path()).is_empty(), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_export_leaves_no_file() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"}") {
            stream.read_buf(&mut read).await.unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await.unwrap();
    });
    let out = tempdir().unwrap();
    let path = out.path().join("rows.verl");
    let args = ["--format", "verl", "--out", path.to_str().unwrap(), "--control", &url, "--session", "s"];
    let (code, _, stderr) = export(&args).await;
    assert!(code == Some(1) && stderr.starts_with("tokentap: the export broke off"), "{stderr}");
    assert_eq!(names(out.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn reward_above_64_kib_returns_413() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &[]).await;
    generate_turn(binary.data, "s", &[1, 2, 3], "").await;
    let reward = |bytes: usize| {
        let body = json!({"reward": {"score": 1, "why": "x".repeat(bytes)}}).to_string();
        async move { post(binary.control, "/v1/sessions/s/reward", body.as_bytes()).await }
    };
    assert_eq!(reward(60_000).await.status, 200);
    let refused = reward(70_000).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (413, Some("reward_too_large")));
    assert!(refused.text().contains("65536 bytes"), "{}", refused.text());
}

/// The error of an export from a log, if files may have 200 bytes.
async fn export_within_200_bytes(args: &[&str]) -> String {
    let args = ["tokentap", "export"].iter().chain(args).map(OsString::from);
    let Command::Export(mut args) = config::load(args).unwrap().command else { panic!("it exports") };
    args.max_export_bytes = 200;
    tokentap::cli::export::run(*args).await.unwrap_err()
}

/// The size of a padded file is known before it is written, in a running tokentap and from a log.
#[tokio::test(flavor = "multi_thread")]
async fn too_large_padded_file_is_refused() {
    let out = tempdir().unwrap();
    let path = out.path().join("rows.verl");
    let fixed = ["--format", "verl", "--out", path.to_str().unwrap()];
    let log = write_log().await;
    let line = export_within_200_bytes(&[&fixed[..], &["--data-dir", log.path().to_str().unwrap()]].concat()).await;
    assert!(line.contains("more than the limit of 200 bytes") && line.contains("export fewer sessions"), "{line}");
    assert!(line.contains("path 1 of session \"a\" with 2 prompt and 4 response tokens"), "{line}");

    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, &["limit:max-export-bytes", "200"]).await;
    let generation = br#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":4}}"#;
    assert_eq!(post(proxy.data, "/sessions/one/generate", generation).await.status, 200);
    let url = format!("http://{}", proxy.control);
    let (code, _, stderr) = export(&[&fixed[..], &["--control", &url]].concat()).await;
    assert!(code == Some(1) && stderr.contains("more than the limit of 200 bytes"), "{stderr}");
    let padded = post(proxy.control, "/v1/samples", br#"{"sessions":["one"],"format":"verl"}"#).await;
    assert_eq!((padded.status, padded.json()["error"]["code"].as_str()), (413, Some("export_too_large")));
    let streamed = post(proxy.control, "/v1/samples", br#"{"sessions":["one"],"format":"jsonl"}"#).await;
    assert_eq!(streamed.status, 200, "streamed rows are not padded");
    assert_eq!(names(out.path()), Vec::<String>::new());
}
