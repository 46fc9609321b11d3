// SPDX-License-Identifier: Apache-2.0
//! Files that earlier builds have written, with what those builds exported.
//!
//! `tests/upgrade/run.sh record` writes them. The files of a schema that this build does not have must be refused.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::tempdir;
use tokentap::session::ledger::SCHEMA;

use super::sessions::{Agents, NAMES, carry_on, engine, read, record, start_rendering, untouched};
use super::{are_kept, contains, copy, end, old, tree};
use crate::archive::{manifests, rows_of};
use crate::crash::trainers::generate_turn;
use crate::fleet::server::Server;
use crate::support::binary::{PROGRAM, arguments, output};

/// The folders of the schemas.
fn folders() -> Vec<(u64, PathBuf)> {
    let all = std::fs::read_dir(home()).unwrap().map(|entry| entry.unwrap().path());
    let schema = |path: &Path| path.file_name()?.to_str()?.strip_prefix("schema-")?.parse().ok();
    let found: Vec<_> = all.filter_map(|path| Some((schema(&path)?, path))).collect();
    assert!(
        found.iter().any(|(schema, _)| *schema == SCHEMA),
        "files of schema {SCHEMA} are kept: tests/upgrade/run.sh record"
    );
    found
}

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/upgrade")
}

/// What the build that wrote the files exported, and what its agents knew.
fn truth(path: &Path) -> (Value, Agents) {
    let text = std::fs::read_to_string(path).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    (found["read"].clone(), Agents::from_json(&found["agents"]))
}

/// The error of a process that does not start on this log or ledger.
async fn refusal(upstream: std::net::SocketAddr, storage: &[&str]) -> String {
    let args = arguments(upstream, storage);
    let done = output(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let text = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{text}");
    text.lines().last().unwrap().to_owned()
}

/// This build exports the kept sessions as the earlier one, continues them, and restores all of that.
async fn is_continued(storage: &[&str], (expected, mut agents): (Value, Agents)) {
    let engine = engine().await;
    let binary = start_rendering(PROGRAM, engine.addr, storage).await;
    contains(&read(binary.control).await, &expected).unwrap();
    carry_on(&binary, &mut agents).await;
    let before = read(binary.control).await;
    contains(&before, &untouched(&expected)).unwrap();
    end(binary).await;
    let binary = start_rendering(PROGRAM, engine.addr, storage).await;
    let after = read(binary.control).await;
    contains(&after, &before).unwrap();
    carry_on(&binary, &mut agents).await;
    end(binary).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_log_is_continued_or_refused() {
    for (schema, folder) in folders() {
        let dir = tempdir().unwrap();
        copy(&folder.join("log"), dir.path());
        let (before, storage) = (tree(dir.path()), ["--data-dir", dir.path().to_str().unwrap()]);
        if schema == SCHEMA {
            let exported = output(&["export", "--format", "jsonl", "--out", "-", "--data-dir", storage[1]]).await;
            assert_eq!(exported.status.code(), Some(0), "{exported:?}");
            assert!(tree(dir.path()) == before, "an export changes nothing");
            is_continued(&storage, truth(&folder.join("log.json"))).await;
            let after = tree(dir.path());
            assert!(are_kept(&before, &after), "files of an earlier process stay");
        } else {
            let line = refusal(engine().await.addr, &storage).await;
            assert!(line.contains(&format!("has the schema {schema}, ")) && line.contains(storage[1]), "{line}");
            assert!(tree(dir.path()) == before, "nothing is changed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_ledger_is_continued_or_refused() {
    for (schema, folder) in folders() {
        let debug = ["--enable-debug-command", "yes"];
        let Some(server) = Server::start_from(&folder.join("ledger.rdb"), &debug) else { return };
        let (url, digest) = (server.url(), || server.ask(&["DEBUG", "DIGEST"]));
        let (before, storage) = (digest(), ["--ledger", &url, "--ledger-replicas", "0"]);
        if schema == SCHEMA {
            is_continued(&storage, truth(&folder.join("ledger.json"))).await;
        } else {
            let line = refusal(engine().await.addr, &storage).await;
            assert!(line.contains(&format!("tt:meta has the schema {schema}, ")), "{line}");
            assert_eq!(digest(), before, "nothing is changed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_archive_is_continued() {
    for (schema, folder) in folders() {
        let dir = tempdir().unwrap();
        let (log, archive) = (dir.path().join("log"), dir.path().join("archive"));
        copy(&folder.join("log"), &log);
        copy(&folder.join("archive"), &archive);
        let (before, kept) = (tree(&archive), rows_of(&archive));
        assert!(kept.iter().any(|row| row["session"] == "branched") && kept.iter().any(|row| row["session"] == "done"));
        let uri = format!("file://{}", archive.display());
        let mut expected = kept.len();
        if schema == SCHEMA {
            let storage = ["--data-dir", log.to_str().unwrap(), "--archive", &uri];
            let engine = engine().await;
            let binary = start_rendering(PROGRAM, engine.addr, &storage).await;
            generate_turn(binary.data, "later", &[1, 2], "true").await;
            end(binary).await;
            expected += 1;
            let stores = std::fs::read_dir(archive.join("manifest")).unwrap().count();
            assert_eq!(stores, 1, "the chain of the same store continues: {:?}", manifests(&archive));
        }
        let rows = rows_of(&archive);
        assert_eq!((rows.len(), &rows[..kept.len()]), (expected, &kept[..]));
        let after = tree(&archive);
        assert!(are_kept(&before, &after), "objects never change");
        let done = output(&["archive", "verify", &uri]).await;
        let text = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(0), "{text}");
        assert!(text.contains(&format!(" {expected} rows, ")) && text.ends_with(" 0 problems\n"), "{text}");
    }
}

/// Writes the files of the schema of this build.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "tests/upgrade/run.sh record runs it"]
async fn record_kept_files() {
    let server = Server::start().expect("VALKEY_SERVER is set");
    let (folder, dir, url) = (home().join(format!("schema-{SCHEMA}")), tempdir().unwrap(), server.url());
    let (log, archive) = (dir.path().join("log"), dir.path().join("archive"));
    let uri = format!("file://{}", archive.display());
    let write = async |name: &str, storage: &[&str], agents: Agents| {
        let engine = engine().await;
        let binary = start_rendering(&old(), engine.addr, storage).await;
        let found = read(binary.control).await;
        assert_eq!(found["sessions"].as_object().unwrap().len(), NAMES.len());
        end(binary).await;
        let text = json!({"read": found, "agents": agents.to_json()}).to_string();
        std::fs::write(dir.path().join(name), text + "\n").unwrap();
    };
    let storage = ["--data-dir", log.to_str().unwrap()];
    let agents = record(&old(), &[&storage[..], &["--archive", &uri]].concat()).await;
    write("log.json", &storage, agents).await;
    let storage = ["--ledger", &url, "--ledger-replicas", "0"];
    let agents = record(&old(), &storage).await;
    write("ledger.json", &storage, agents).await;
    std::fs::copy(server.save(), dir.path().join("ledger.rdb")).unwrap();
    if folder.exists() {
        std::fs::remove_dir_all(&folder).unwrap();
    }
    copy(dir.path(), &folder);
}
