// SPDX-License-Identifier: Apache-2.0
//! Logs, ledgers and archives of a later version: each is refused by name, and no byte of it changes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::tempdir;
use tokentap::session::ledger::SCHEMA;

use super::{end, tree};
use crate::crash::StandaloneEngine;
use crate::crash::trainers::generate_turn;
use crate::fleet::server::Server;
use crate::support::binary::{Binary, arguments, output};
use crate::support::client::get;

/// The output of a command that fails.
async fn failed(args: &[&str]) -> String {
    let done = output(args).await;
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert_eq!(done.status.code(), Some(1), "{args:?}: {text}");
    text
}

async fn does_not_start(upstream: SocketAddr, flags: &[&str]) -> String {
    let args = arguments(upstream, flags);
    failed(&args.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// The files of a log in their order.
fn segments(folder: &Path) -> Vec<PathBuf> {
    tree(folder).into_keys().filter(|name| name.ends_with(".log")).map(|name| folder.join(name)).collect()
}

/// Gives the last file of a log the next schema.
fn raise_schema(folder: &Path) -> PathBuf {
    let path = segments(folder).pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let text = String::from_utf8(bytes[..48].to_vec()).unwrap();
    let text = text.replace(&format!("tokentap-log {SCHEMA} "), &format!("tokentap-log {} ", SCHEMA + 1));
    let line = format!("{text} {:08x}\n", crc32c::crc32c(text.as_bytes()));
    bytes.splice(..58, line.bytes());
    std::fs::write(&path, &bytes).unwrap();
    path
}

/// Two lives of a process with a turn each.
async fn record(alone: &StandaloneEngine, flags: &[&str]) {
    for prompt in [&[1, 2][..], &[3, 4]] {
        let binary = Binary::with_flags(alone.addr, flags).await;
        generate_turn(binary.data, "s", prompt, "true").await;
        end(binary).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_of_a_later_schema_is_refused_and_unchanged() {
    let (alone, dir) = (StandaloneEngine::start().await, tempdir().unwrap());
    let folder = dir.path().to_str().unwrap();
    record(&alone, &["--data-dir", folder]).await;
    let path = raise_schema(dir.path());
    let before = tree(dir.path());
    let expected = format!(
        "{} has the schema {}, and this build reads and writes the schema {SCHEMA}: export it with the build that wrote it",
        path.display(),
        SCHEMA + 1
    );
    // the smallest limit removes all files of a log that it is applied to
    for text in [
        does_not_start(alone.addr, &["--data-dir", folder, "--data-bytes", "1"]).await,
        failed(&["export", "--format", "jsonl", "--out", "-", "--data-dir", folder]).await,
        failed(&["import", "--data-dir", folder, "--ledger", "redis://127.0.0.1:1"]).await,
    ] {
        assert!(text.contains(&expected), "{text}");
    }
    assert!(tree(dir.path()) == before, "nothing is changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_with_an_unknown_record_is_refused_and_unchanged() {
    let (alone, dir) = (StandaloneEngine::start().await, tempdir().unwrap());
    let folder = dir.path().to_str().unwrap();
    record(&alone, &["--data-dir", folder]).await;
    let path = segments(dir.path()).pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // marker, length, checksum, a kind of record that this build does not have
    bytes.extend_from_within(58..66);
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(crc32c::crc32c(&[9]).to_le_bytes());
    bytes.push(9);
    std::fs::write(&path, &bytes).unwrap();
    let before = tree(dir.path());
    let expected = format!("{} has 1 intact records that this build cannot read: export it", path.display());
    for text in [
        does_not_start(alone.addr, &["--data-dir", folder, "--data-bytes", "1"]).await,
        failed(&["export", "--format", "jsonl", "--out", "-", "--data-dir", folder]).await,
        failed(&["import", "--data-dir", folder, "--ledger", "redis://127.0.0.1:1"]).await,
    ] {
        assert!(text.contains(&expected), "{text}");
    }
    assert!(tree(dir.path()) == before, "nothing is changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_of_a_later_schema_is_refused_and_unchanged() {
    let Some(server) = Server::start_with("VALKEY_SERVER", &["--enable-debug-command", "yes"]) else { return };
    let (alone, dir, url) = (StandaloneEngine::start().await, tempdir().unwrap(), server.url());
    let ledger = ["--ledger", &url, "--ledger-replicas", "0"];
    record(&alone, &ledger).await;
    record(&alone, &["--data-dir", dir.path().to_str().unwrap()]).await;
    let later = (SCHEMA + 1).to_string();
    server.ask(&["HSET", "tt:meta", "schema", &later, "more", "of a later build"]);
    let before = server.ask(&["DEBUG", "DIGEST"]);
    let expected = format!(
        "the key tt:meta has the schema {later}, and this build reads and writes the schema {SCHEMA}: export the sessions with the build that \
         wrote them, and give this one another ledger"
    );
    let upstream = format!("http://{}", alone.addr);
    for text in [
        does_not_start(alone.addr, &ledger).await,
        failed(&[&["check", "--upstream", &upstream], &ledger[..]].concat()).await,
        failed(&[&["import", "--data-dir", dir.path().to_str().unwrap()], &ledger[..]].concat()).await,
    ] {
        assert!(text.contains(&expected), "{text}");
    }
    assert_eq!(server.ask(&["DEBUG", "DIGEST"]), before, "nothing is changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn archive_of_a_later_version_is_refused_and_unchanged() {
    let (alone, dir) = (StandaloneEngine::start().await, tempdir().unwrap());
    let (log, archive) = (dir.path().join("log"), dir.path().join("archive"));
    let uri = format!("file://{}", archive.display());
    let flags = ["--data-dir", log.to_str().unwrap(), "--archive", &uri];
    record(&alone, &flags).await;
    let last = tree(&archive).into_keys().filter(|name| name.starts_with("manifest/")).max().unwrap();
    std::fs::write(archive.join(&last), json!({"archive_version": 2, "files": {}}).to_string()).unwrap();
    let before = tree(&archive);
    let expected =
        format!("{last} has archive_version 2, and this build reads and writes 1: use the build that wrote it");

    let mut binary = Binary::with_flags(alone.addr, &flags).await;
    let warning = binary.has_logged("the archive cannot be written or read").await;
    assert!(warning["error"].as_str().unwrap().contains(&expected), "{warning}");
    generate_turn(binary.data, "s", &[5, 6], "true").await;
    assert_eq!(get(binary.control, "/readyz").await.status, 200, "agents are served");
    end(binary).await;
    for operation in ["ls", "verify"] {
        let text = failed(&["archive", operation, &uri]).await;
        assert!(text.contains(&expected), "{text}");
    }
    assert!(tree(&archive) == before, "nothing is changed");
}
