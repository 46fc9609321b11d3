// SPDX-License-Identifier: Apache-2.0
//! Restarts with one data directory: graceful shutdown, a torn tail, and unusable directories.

use std::path::PathBuf;
use std::process::Output;

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::crash::StandaloneEngine;
use crate::crash::trainers::generate_turn;
use crate::grpc::client::health;
use crate::support::binary::{Binary, arguments, output};
use crate::support::client::{get, post};
use crate::support::manual_upstream::soon;

async fn turns(control: std::net::SocketAddr, session: &str) -> String {
    get(control, &format!("/v1/sessions/{session}/trajectories")).await.text()
}

/// The error of a tokentap that cannot start: one line, before any log line.
fn error_line(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("tokentap: --data-dir: "), "{text}");
    text
}

async fn refused(upstream: std::net::SocketAddr, dir: &str) -> String {
    let args = arguments(upstream, &["--data-dir", dir]);
    error_line(&output(&args.iter().map(String::as_str).collect::<Vec<_>>()).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_shutdown_keeps_all_sessions() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let mut binary = alone.start_binary(&dir, &["--fsync", "never"]).await;
    let mut prompt = vec![1, 2, 3];
    for turn in 0..5_u32 {
        let reply = generate_turn(binary.data, "s", &prompt, "").await;
        prompt.extend(serde_json::from_value::<Vec<u32>>(reply["output_ids"].clone()).unwrap());
        prompt.push(turn);
    }
    let before = turns(binary.control, "s").await;
    binary.terminate();
    assert_eq!(binary.code().await, Some(0));
    for _ in 0..2 {
        let mut binary = alone.start_binary(&dir, &[]).await;
        assert_eq!(turns(binary.control, "s").await, before);
        binary.terminate();
        assert_eq!(binary.code().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn torn_tail_loses_only_torn_records_and_is_logged() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &[]).await;
    generate_turn(binary.data, "first", &[1, 2, 3], "").await;
    let before = turns(binary.control, "first").await;
    generate_turn(binary.data, "last", &[1, 2, 3], "").await;
    binary.kill();
    let segment = segments(&dir).pop().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.set_len(file.metadata().unwrap().len() - 5).unwrap();

    let mut binary = alone.start_binary(&dir, &[]).await;
    let warning = binary.skipped_lines[0].clone();
    assert_eq!((&warning["level"], &warning["message"]), (&"WARN".into(), &"a segment of the log ends early".into()));
    assert!(warning["torn"].as_str().unwrap().contains(segment.to_str().unwrap()), "{warning}");
    assert_eq!(turns(binary.control, "first").await, before);
    assert_eq!(get(binary.control, "/v1/sessions/last").await.status, 404);
    generate_turn(binary.data, "last", &[4], "").await;
    let after = turns(binary.control, "last").await;
    binary.terminate();
    assert_eq!(binary.code().await, Some(0));
    let binary = alone.start_binary(&dir, &[]).await;
    assert_eq!((turns(binary.control, "first").await, turns(binary.control, "last").await), (before, after));
}

fn segments(dir: &tempfile::TempDir) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn data_dir_is_locked_by_one_process() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &[]).await;
    let path = dir.path().to_str().unwrap();
    let line = refused(alone.addr, path).await;
    assert!(line.contains(path) && line.contains("in use by another tokentap"), "{line}");
    generate_turn(binary.data, "s", &[1, 2, 3], "").await;
    let before = turns(binary.control, "s").await;
    binary.kill();
    let binary = alone.start_binary(&dir, &[]).await;
    assert_eq!(turns(binary.control, "s").await, before, "the second process has changed nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_data_dir_is_one_error_line() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let file = dir.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    for path in [file.clone(), file.join("below"), PathBuf::from("/proc/tokentap")] {
        let path = path.to_str().unwrap();
        let line = refused(alone.addr, path).await;
        assert!(line.contains(&format!("cannot create {path}")), "{line}");
    }
}

async fn metric(control: std::net::SocketAddr, name: &str) -> String {
    let text = get(control, "/metrics").await.text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn log_of_an_earlier_schema_is_refused_and_stays_as_it_is() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let folder = dir.path().to_str().unwrap();
    let binary = alone.start_binary(&dir, &[]).await;
    generate_turn(binary.data, "s", &[1, 2, 3], "").await;
    binary.kill();
    // the file of the previous schema differs in its first line, and in its records
    let path = segments(&dir).remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    let text = String::from_utf8(bytes[..48].to_vec()).unwrap();
    assert!(text.contains("tokentap-log 8"), "{text}");
    let text = text.replace("tokentap-log 8", "tokentap-log 2");
    bytes[..58].copy_from_slice(format!("{text} {:08x}\n", crc32c::crc32c(text.as_bytes())).as_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let expected = format!(
        "tokentap: --data-dir: {} has the schema 2, and this build reads and writes the schema 8: export it with the build that wrote \
         it (tokentap export --data-dir), and give this one another folder\n",
        path.display()
    );
    assert_eq!(refused(alone.addr, folder).await, expected);
    for command in [
        &["export", "--format", "jsonl", "--out", "-", "--data-dir", folder][..],
        &["import", "--data-dir", folder, "--ledger", "redis://127.0.0.1:1"],
    ] {
        assert_eq!(error_line(&output(command).await), expected);
    }
    assert_eq!(segments(&dir).len(), 1, "no file was added");
    assert!(std::fs::read(&path).unwrap() == bytes, "its bytes are unchanged");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_during_restore_loses_nothing() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &[]).await;
    generate_turn(binary.data, "s", &[1, 2, 3], "").await;
    let before = turns(binary.control, "s").await;
    binary.kill();
    let written: Vec<_> = segments(&dir).iter().map(|path| std::fs::read(path).unwrap()).collect();
    // a FIFO without a writer: reading it blocks
    let pipe = dir.path().join("segment-0000000000000009.log");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut binary = Binary::listening(alone.addr, &["--data-dir", dir.path().to_str().unwrap()]).await;
    while !get(binary.control, "/readyz").await.text().ends_with(" bytes, 1 sessions\n") {}
    binary.terminate();
    assert_eq!(soon("it ends", binary.code()).await, Some(0));
    std::fs::remove_file(pipe).unwrap();
    let after: Vec<_> = segments(&dir).iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert_eq!(after, written, "the log is unchanged");
    let binary = alone.start_binary(&dir, &[]).await;
    assert_eq!(turns(binary.control, "s").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_answer_while_sessions_are_restored() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &[]).await;
    generate_turn(binary.data, "s", &[1, 2, 3], "").await;
    let before = turns(binary.control, "s").await;
    binary.kill();
    // reading this FIFO blocks until the test opens it
    let pipe = dir.path().join("segment-0000000000000009.log");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());

    let binary = Binary::listening(alone.addr, &["--data-dir", dir.path().to_str().unwrap()]).await;
    let control = binary.control;
    let mut ready = get(control, "/readyz").await;
    while !ready.text().ends_with(" bytes, 1 sessions\n") {
        ready = get(control, "/readyz").await;
    }
    assert!(ready.status == 503 && ready.text().starts_with("restoring: "), "{}", ready.text());
    assert_eq!(get(control, "/livez").await.status, 200);
    assert_eq!(metric(control, "tokentap_log_restoring").await, "1");
    let refused = post(binary.data, "/generate", br#"{"input_ids":[1,2,3]}"#).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.text());
    let unknown = get(control, "/v1/sessions/s").await;
    assert_eq!(unknown.status, 503, "not 404: the session may still be restored");
    assert_eq!(
        (unknown.header("retry-after"), &unknown.json()["error"]["code"]),
        (Some("1"), &serde_json::json!("restoring"))
    );
    let service = || HealthCheckRequest { service: "tokentap.v1.Trajectories".into() };
    let mut client = health(control).await;
    let status = client.check(service()).await.unwrap().into_inner().status();
    assert_eq!(status, ServingStatus::NotServing, "its calls are refused");
    let mut watching = client.watch(service()).await.unwrap().into_inner();
    assert_eq!(watching.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(get(binary.data, "/get_model_info").await.status, 200, "unrecorded calls are served");

    let open = move || drop(std::fs::OpenOptions::new().write(true).open(pipe).unwrap());
    tokio::task::spawn_blocking(open).await.unwrap();
    let status = soon("a status", watching.message()).await.unwrap().unwrap().status();
    assert_eq!(status, ServingStatus::Serving, "as soon as sessions are restored");
    let binary = binary.probed().await;
    assert_eq!(get(control, "/readyz").await.status, 200);
    assert_eq!(metric(control, "tokentap_log_restoring").await, "0");
    assert_eq!(turns(control, "s").await, before);
    generate_turn(binary.data, "s", &[9, 9], "").await;
    assert_eq!(get(control, "/v1/sessions/s").await.json()["turns"], 2, "the session continues");
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bit_loses_one_record_and_is_counted() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &[]).await;
    let control = binary.control;
    let length = || std::fs::metadata(segments(&dir).pop().unwrap()).unwrap().len() as usize;
    generate_turn(binary.data, "before", &[1, 2, 3], "").await;
    let start = length();
    generate_turn(binary.data, "damaged", &[1, 2, 3], "").await;
    generate_turn(binary.data, "after", &[1, 2, 3], "").await;
    let kept = [turns(control, "before").await, turns(control, "after").await];
    binary.kill();
    let segment = segments(&dir).pop().unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[start + 40] ^= 1;
    std::fs::write(&segment, bytes).unwrap();

    let binary = alone.start_binary(&dir, &[]).await;
    let control = binary.control;
    let warnings: Vec<_> = binary.skipped_lines.iter().filter(|line| line["level"] == "WARN").collect();
    assert_eq!(warnings[0]["message"], "a segment of the log is damaged");
    assert!(warnings[0]["damaged"].as_str().unwrap().contains(segment.to_str().unwrap()), "{}", warnings[0]);
    assert_eq!(metric(control, "tokentap_log_damaged_regions_total").await, "1");
    assert_eq!([turns(control, "before").await, turns(control, "after").await], kept);
    assert_eq!(get(control, "/v1/sessions/damaged").await.status, 404);
}
