// SPDX-License-Identifier: Apache-2.0
//! `--archive` in a process: the rows that a folder has after an exit, a crash, a deletion and a lost end of the log, and an S3 that is down.

use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int8Type, Int32Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::crash::StandaloneEngine;
use crate::crash::trainers::{generate_turn, post_control};
use crate::support::binary::{Binary, arguments, output, output_with};
use crate::support::client::{get, request};
use crate::support::upstream::EngineProfile;
use crate::support::vision::{END, PAD, START, Vision, data_uri, png};

/// A folder for an archive.
struct Archive(TempDir);

impl Archive {
    fn new() -> Self {
        Self(tempdir().unwrap())
    }

    fn uri(&self) -> String {
        format!("file://{}", self.0.path().display())
    }

    fn manifests(&self) -> Vec<(String, Value)> {
        manifests(self.0.path())
    }

    fn rows(&self) -> Vec<Value> {
        rows_of(self.0.path())
    }

    /// `tokentap archive verify` has no problem with it. Returns what it printed.
    async fn verified(&self) -> String {
        let done = output(&["archive", "verify", &self.uri()]).await;
        let text = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(0), "{text}");
        text
    }
}

/// The manifests of an archive by their names, and the names without the ids of stores.
pub fn manifests(archive: &Path) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for store in folder(&archive.join("manifest")) {
        for part in folder(&store) {
            for file in folder(&part) {
                let text = std::fs::read_to_string(&file).unwrap();
                let name = file.strip_prefix(store.as_path()).unwrap().to_str().unwrap().to_owned();
                found.push((name, serde_json::from_str(&text).unwrap()));
            }
        }
    }
    found
}

/// The rows of the files that manifests name, in their order.
pub fn rows_of(archive: &Path) -> Vec<Value> {
    let manifests = manifests(archive);
    let files = manifests.iter().flat_map(|(_, manifest)| manifest["files"].as_array().unwrap());
    files.flat_map(|file| rows(&archive.join(file["path"].as_str().unwrap()))).collect()
}

/// The sessions of the rows of an archive.
pub fn archived_sessions(archive: &Path) -> Vec<String> {
    rows_of(archive).iter().map(|row| row["session"].as_str().unwrap().to_owned()).collect()
}

/// What a folder has, sorted.
fn folder(path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// Some columns of a file, as the members of a line of `GET /v1/trajectories`.
fn rows(path: &Path) -> Vec<Value> {
    let file = std::fs::File::open(path).unwrap();
    let mut found = Vec::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap() {
        let batch = batch.unwrap();
        let column = |name: &str| batch.column_by_name(name).unwrap();
        for at in 0..batch.num_rows() {
            let reward = column("reward").as_primitive::<Float64Type>().iter().nth(at).unwrap();
            let ids = column("token_ids").as_list::<i32>().value(at);
            let mask = column("loss_mask").as_list::<i32>().value(at);
            found.push(json!({
                "session": column("session").as_string::<i32>().value(at),
                "leaf": column("leaf").as_primitive::<Int64Type>().value(at),
                "token_ids": ids.as_primitive::<Int32Type>().values().to_vec(),
                "loss_mask": mask.as_primitive::<Int8Type>().values().to_vec(),
                "reward": reward,
            }));
        }
    }
    found
}

/// The lines of `GET /v1/trajectories` with the members of [`rows`].
async fn listed(binary: &Binary) -> Vec<Value> {
    let text = get(binary.control, "/v1/trajectories").await.text();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let members = ["session", "leaf", "token_ids", "loss_mask", "reward"];
    lines.map(|line| members.into_iter().map(|name| (name.to_owned(), line[name].clone())).collect()).collect()
}

/// Ends a process, which archives what has finished.
async fn end(mut binary: Binary) {
    binary.terminate();
    assert_eq!(binary.code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_paths_are_archived_when_the_process_ends() {
    let (alone, archive) = (StandaloneEngine::start().await, Archive::new());
    let binary = Binary::with_flags(alone.addr, &["--archive", &archive.uri()]).await;
    // a branch: both paths begin with the same turn
    let first = generate_turn(binary.data, "branched", &[1, 2], "").await;
    let sampled: Vec<u32> = serde_json::from_value(first["output_ids"].clone()).unwrap();
    generate_turn(binary.data, "branched", &[&[1, 2], &*sampled, &[3]].concat(), "").await;
    generate_turn(binary.data, "branched", &[&[1, 2], &*sampled, &[4]].concat(), "true").await;
    generate_turn(binary.data, "open", &[1], "").await;
    // after the session has finished, and before it is archived
    post_control(binary.control, "/v1/sessions/branched/reward", &json!({"reward": 0.5})).await;
    let expected = listed(&binary).await;
    assert_eq!((expected.len(), &expected[0]["reward"]), (2, &json!(0.5)));
    end(binary).await;
    assert_eq!(archive.rows(), expected, "the rows and masks of the list; the open session has not finished");
    assert!(archive.verified().await.starts_with("1 manifests, 1 files, 2 rows, "));
    let listing = String::from_utf8(output(&["archive", "ls", &archive.uri()]).await.stdout).unwrap();
    assert!(listing.contains("after 00000000000000000000 to 00000000000000000002  2 rows, 1 files"), "{listing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn archive_continues_after_a_crash() {
    let (alone, dir, archive) = (StandaloneEngine::start().await, tempdir().unwrap(), Archive::new());
    let uri = archive.uri();
    let binary = alone.start_binary(&dir, &["--archive", &uri]).await;
    generate_turn(binary.data, "a", &[1], "true").await;
    end(binary).await;
    let binary = alone.start_binary(&dir, &["--archive", &uri]).await;
    generate_turn(binary.data, "b", &[2], "true").await;
    generate_turn(binary.data, "c", &[3], "true").await;
    let expected = listed(&binary).await;
    binary.kill();
    assert_eq!(archive.rows(), expected[..1], "what finished within the last 30 s");
    // a restart without the archive, and one with it
    end(alone.start_binary(&dir, &[]).await).await;
    end(alone.start_binary(&dir, &["--archive", &uri]).await).await;
    assert_eq!(archive.rows(), expected);
    assert!(archive.verified().await.starts_with("2 manifests, 2 files, 3 rows, "));
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_are_gone_before_they_are_archived_are_named() {
    let (alone, dir, archive) = (StandaloneEngine::start().await, tempdir().unwrap(), Archive::new());
    let binary = alone.start_binary(&dir, &[]).await;
    generate_turn(binary.data, "deleted", &[1], "true").await;
    generate_turn(binary.data, "kept", &[2], "true").await;
    assert_eq!(request(binary.control, "DELETE", "/v1/sessions/deleted", &[], b"").await.status, 200);
    end(binary).await;
    end(alone.start_binary(&dir, &["--archive", &archive.uri()]).await).await;
    let manifests = archive.manifests();
    let missed = json!([{"last": "00000000000000000001", "count": 1, "reason": "deleted", "session": "deleted"}]);
    assert_eq!(manifests[0].1["missed"], missed);
    assert_eq!(archive.rows().iter().map(|row| row["session"].clone()).collect::<Vec<_>>(), ["kept"]);
    assert!(archive.verified().await.contains(" 1 missed paths, "));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_that_lost_its_end_continues_in_a_new_chain() {
    let (alone, dir, before, archive) =
        (StandaloneEngine::start().await, tempdir().unwrap(), tempdir().unwrap(), Archive::new());
    let uri = archive.uri();
    let binary = alone.start_binary(&dir, &["--archive", &uri]).await;
    generate_turn(binary.data, "a", &[1], "true").await;
    end(binary).await;
    copy(dir.path(), before.path());
    let binary = alone.start_binary(&dir, &["--archive", &uri]).await;
    generate_turn(binary.data, "lost", &[2], "true").await;
    end(binary).await;
    // as after a crash of the machine: the archive has what the log does not
    let binary = alone.start_binary(&before, &["--archive", &uri]).await;
    generate_turn(binary.data, "later", &[3], "true").await;
    end(binary).await;
    let sessions: Vec<Value> = archive.rows().iter().map(|row| row["session"].clone()).collect();
    assert_eq!(sessions, ["a", "lost", "later"], "the number of the lost path is used again, and its path is archived");
    let names: Vec<String> = archive.manifests().into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["part=0/00000000000000000000.json", "part=0/00000000000000000001.json", "part=0.1/00000000000000000001.json"]
    );
    archive.verified().await;
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) {
    for file in folder(from) {
        std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
}

/// Credentials, and an endpoint at which nothing listens.
const NOWHERE: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", "a"),
    ("AWS_SECRET_ACCESS_KEY", "b"),
    ("AWS_REGION", "us-east-1"),
    ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
];

#[tokio::test(flavor = "multi_thread")]
async fn archive_that_cannot_be_reached_delays_no_request() {
    let alone = StandaloneEngine::start().await;
    let environment = [&NOWHERE[..], &[("TOKENTAP_ARCHIVE", "s3://bucket/prefix"), ("TOKENTAP_DRAIN_TIMEOUT", "1s")]];
    let mut binary = Binary::serve(alone.addr, &environment.concat()).await.probed().await;
    generate_turn(binary.data, "s", &[1], "true").await;
    let line = binary.logged("the archive cannot be written or read").await;
    assert_eq!((&line["step"], &line["level"]), (&json!("open"), &json!("WARN")));
    assert!(line["error"].as_str().unwrap().contains("127.0.0.1:9"), "{line}");
    let metrics = get(binary.control, "/metrics").await.text();
    assert!(metrics.contains("tokentap_archive_failures_total{step=\"open\"} 1"), "{metrics}");
    generate_turn(binary.data, "s2", &[1], "true").await;
    binary.terminate();
    binary.logged("ended before all finished paths were archived").await;
    assert_eq!(binary.code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn check_tests_the_archive() {
    let (alone, archive) = (StandaloneEngine::start().await, Archive::new());
    let checked = async |uri: &str| {
        let args = arguments(alone.addr, &["--archive", uri]);
        let args: Vec<&str> = ["check"].into_iter().chain(args[1..].iter().map(String::as_str)).collect();
        let done = output_with(&args, &NOWHERE).await;
        let text = String::from_utf8(done.stdout).unwrap();
        let line = text.lines().find(|line| line[6..].starts_with("archive")).unwrap().to_owned();
        (done.status.code(), line)
    };
    let (code, line) = checked(&archive.uri()).await;
    assert_eq!(code, Some(0), "{line}");
    assert!(line.starts_with("ok") && line.ends_with("can be written and read"), "{line}");
    assert!(checked(&archive.uri()).await.1.starts_with("ok"), "again");
    let (code, line) = checked("s3://bucket/prefix").await;
    assert!(code == Some(1) && line.starts_with("FAIL") && line.contains("cannot be written"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_archive_is_refused_at_the_start() {
    let run = async |command: &[&str]| {
        let done = output(command).await;
        assert_eq!(done.stdout, b"", "{command:?}");
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    let ports = ["serve", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"];
    let (code, line) = run(&[&ports[..], &["--archive", "/folder"]].concat()).await;
    assert!(code == Some(1) && line.starts_with("tokentap: --archive: \"/folder\" is not a URI"), "{line}");
    let (code, line) = run(&[&ports[..], &["--archive", "file:///x", "--record", "false"]].concat()).await;
    assert!(code == Some(64) && line.contains("needs --record true"), "{line}");
    let (code, line) = run(&["archive", "verify", "file:///there/is/no/such"]).await;
    assert!(code == Some(1) && line.contains("no such folder"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_are_archived_once_beside_their_rows() {
    let vision = Vision::start(EngineProfile::default(), &[]).await;
    let archive = Archive::new();
    let binary = Binary::with_flags(vision.engine.addr, &["--archive", &archive.uri()]).await;
    for session in ["s", "t"] {
        let ids = [[1, START, PAD, END], [2, START, PAD, END]].concat();
        let body = json!({"input_ids": ids, "image_data": [data_uri("a"), data_uri(session)]}).to_string();
        let path = format!("/sessions/{session}/generate");
        let answer = request(binary.data, "POST", &path, &[("X-Session-Done", "true")], body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    end(binary).await;
    assert_eq!(archived_sessions(archive.0.path()), ["s", "t"]);
    let named = archive.manifests()[0].1["blobs"].take();
    let names: Vec<&str> = named.as_array().unwrap().iter().map(|blob| blob["sha256"].as_str().unwrap()).collect();
    let blobs = folder(&archive.0.path().join("blobs"));
    assert_eq!(blobs.iter().map(|blob| blob.file_name().unwrap().to_str().unwrap()).collect::<Vec<_>>(), names);
    let mut contents: Vec<Vec<u8>> = blobs.iter().map(|blob| std::fs::read(blob).unwrap()).collect();
    contents.sort();
    assert_eq!(contents, ["a", "s", "t"].map(png), "the picture of both is stored once");
    archive.verified().await;
    std::fs::write(&blobs[0], "other").unwrap();
    let done = output(&["archive", "verify", &archive.uri()]).await;
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains(&format!("blobs/{}: the content has another hash", names[0])), "{text}");
    assert_eq!(done.status.code(), Some(1));
}
