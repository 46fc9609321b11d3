// SPDX-License-Identifier: Apache-2.0
//! An earlier build and this one on the same data: one after the other in both orders, and side by side.

use serde_json::{Value, json};
use tempfile::tempdir;

use super::sessions::{carry_on, engine, read, record, start_rendering, untouched};
use super::{are_kept, contains, end, old, tree};
use crate::archive::rows_of;
use crate::crash::trainers::{generate_turn, post_control};
use crate::fleet::server::Server;
use crate::support::binary::{PROGRAM, bare};
use crate::support::client::get;

/// Runs a command of a build to its end. Returns whether it succeeded, and what it printed.
async fn run(program: &str, args: &[&str]) -> (bool, String) {
    let mut command = bare(program, args);
    let done = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (done.status.success(), text.concat())
}

/// Why a build does not open a log or a ledger; `None` if it does. The only reason may be a version.
async fn refusal(program: &str, args: &[&str]) -> Option<String> {
    let (is_done, text) = run(program, args).await;
    if is_done {
        return None;
    }
    let line = text.lines().find(|line| line.contains(" schema ")).unwrap_or_else(|| panic!("{text}"));
    eprintln!("{program}: {line}");
    Some(line.to_owned())
}

/// Runs a log and an archive with the earlier build, with this one, and with the earlier one again.
#[tokio::test(flavor = "multi_thread")]
async fn log_and_archive_move_to_this_build_and_back() {
    let (old, dir, engine) = (old(), tempdir().unwrap(), engine().await);
    let (log, archive) = (dir.path().join("log"), dir.path().join("archive"));
    let uri = format!("file://{}", archive.display());
    let storage = ["--data-dir", log.to_str().unwrap(), "--archive", &uri];
    let mut agents = record(&old, &storage).await;
    let binary = start_rendering(&old, engine.addr, &storage).await;
    let first = read(binary.control).await;
    end(binary).await;

    let before = tree(dir.path());
    let export = ["export", "--format", "jsonl", "--out", "/dev/null", "--data-dir", storage[1]];
    let mut expected = first.clone();
    if refusal(PROGRAM, &export).await.is_some() {
        let upstream = format!("http://{}", engine.addr);
        let serve = ["serve", "--upstream", &upstream, "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"];
        assert!(refusal(PROGRAM, &[&serve[..], &storage].concat()).await.is_some());
        assert!(tree(dir.path()) == before, "nothing is changed");
    } else {
        let binary = start_rendering(PROGRAM, engine.addr, &storage).await;
        contains(&read(binary.control).await, &first).unwrap();
        carry_on(&binary, &mut agents).await;
        generate_turn(binary.data, "later", &[1, 2], "true").await;
        expected = read(binary.control).await;
        end(binary).await;
        let after = tree(dir.path());
        assert!(are_kept(&before, &after), "files of the earlier build stay");
    }
    let binary = start_rendering(&old, engine.addr, &storage).await;
    let back = read(binary.control).await;
    contains(&expected, &back).unwrap();
    contains(&back, &untouched(&first)).unwrap();
    carry_on(&binary, &mut agents).await;
    generate_turn(binary.data, "last", &[1, 2], "true").await;
    end(binary).await;
    let rows = rows_of(&archive);
    assert!(rows.iter().any(|row| row["session"] == "last"), "{rows:?}");
    for program in [&old, PROGRAM] {
        let (is_done, text) = run(program, &["archive", "verify", &uri]).await;
        assert!(is_done && text.contains(&format!(" {} rows, ", rows.len())), "{text}");
    }
}

/// Two builds share a ledger, an agent's turns alternate between them, and each of them goes on alone.
#[tokio::test(flavor = "multi_thread")]
async fn builds_share_a_ledger_and_either_goes_on_alone() {
    let Some(server) = Server::start_with("VALKEY_SERVER", &["--enable-debug-command", "yes"]) else { return };
    let (old, engine, url) = (old(), engine().await, server.url());
    let storage = ["--ledger", &url, "--ledger-replicas", "0"];
    let mut agents = record(&old, &storage).await;
    let first = start_rendering(&old, engine.addr, &storage).await;
    let before = read(first.control).await;

    let upstream = format!("http://{}", engine.addr);
    let digest = server.ask(&["DEBUG", "DIGEST"]);
    let serve = ["serve", "--upstream", &upstream, "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"];
    if is_of_another_schema(PROGRAM, &upstream, &storage).await {
        assert!(refusal(PROGRAM, &[&serve[..], &storage].concat()).await.is_some());
        assert_eq!(server.ask(&["DEBUG", "DIGEST"]), digest, "nothing is changed");
        carry_on(&first, &mut agents).await;
        return end(first).await;
    }
    let second = start_rendering(PROGRAM, engine.addr, &storage).await;
    contains(&read(second.control).await, &before).unwrap();
    let mut prompt = vec![1, 2, 3];
    for turn in 0..8 {
        let binary = [&first, &second][turn % 2];
        let reply = generate_turn(binary.data, "hops", &prompt, if turn == 7 { "true" } else { "" }).await;
        prompt.extend(serde_json::from_value::<Vec<u32>>(reply["output_ids"].clone()).unwrap());
        prompt.push(40);
        carry_on([&second, &first][turn % 2], &mut agents).await;
    }
    prompt.pop();
    post_control(first.control, "/v1/sessions/tagged/reward", &json!({"reward": 1})).await;
    post_control(second.control, "/v1/sessions/tagged/freeze", &json!({})).await;
    for binary in [&first, &second] {
        let rows = get(binary.control, "/v1/sessions/hops/trajectories").await.json();
        let ids = rows["trajectories"].as_array().unwrap().iter().map(|row| row["token_ids"].clone());
        assert_eq!(ids.collect::<Vec<Value>>(), [json!(prompt)]);
    }
    let of_both = read(second.control).await;
    contains(&of_both, &read(first.control).await).unwrap();
    end(second).await;
    // a rollback
    carry_on(&first, &mut agents).await;
    end(first).await;
    // an upgrade
    let binary = start_rendering(PROGRAM, engine.addr, &storage).await;
    contains(&read(binary.control).await, &untouched(&of_both)).unwrap();
    carry_on(&binary, &mut agents).await;
    end(binary).await;
}

/// Whether `tokentap check` of a build finds a ledger of another schema.
async fn is_of_another_schema(program: &str, upstream: &str, storage: &[&str]) -> bool {
    let (_, text) = run(program, &[&["check", "--upstream", upstream], storage].concat()).await;
    text.lines().any(|line| line.starts_with("FAIL") && line.contains(" schema "))
}
