// SPDX-License-Identifier: Apache-2.0
//! Policies of sessions whose turns were sampled through several tokentaps.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::server::Server;
use crate::crash::StandaloneEngine;
use crate::crash::trainers::{generate_turn, post_control};
use crate::support::binary::{Binary, output};
use crate::support::client::{get, post};

/// Adds a turn that continues the session; returns its tokens so far.
async fn extend(data: SocketAddr, session: &str, mut tokens: Vec<u32>) -> Vec<u32> {
    tokens.push(7);
    let reply = generate_turn(data, session, &tokens, "").await;
    tokens.extend(serde_json::from_value::<Vec<u32>>(reply["output_ids"].clone()).unwrap());
    tokens
}

/// The only row of a session.
async fn row(control: SocketAddr, session: &str) -> Value {
    let shown = get(control, &format!("/v1/sessions/{session}/trajectories")).await.json();
    assert_eq!(shown["trajectories"].as_array().map(Vec::len), Some(1), "{shown}");
    shown["trajectories"][0].clone()
}

fn column(row: &Value, name: &str) -> Vec<Value> {
    row["policy"].as_array().unwrap().iter().map(|span| span[name].clone()).collect()
}

/// The flags of a row that concern its policies.
fn policy_flags(row: &Value) -> Vec<&str> {
    let flags = row["flags"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap());
    // the turns of the test end by length
    flags.filter(|flag| *flag != "extends_length").collect()
}

/// Changes the label of the engine, which both tokentaps see in their next replies.
async fn label(alone: &StandaloneEngine, label: &str) {
    let body = json!({"new_version": label, "abort_all_requests": false});
    post_control(alone.addr, "/update_weight_version", &body).await;
}

async fn end(mut binary: Binary) {
    binary.terminate();
    assert_eq!(binary.code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_of_several_tokentaps_are_compared_by_their_labels() {
    let Some(server) = Server::start() else { return };
    let (alone, dir, url) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap(), server.url());
    let flags = ["--ledger", &url, "--ledger-replicas", "0", "--session-idle", "1h"];
    let first = Binary::with_flags(alone.addr, &flags).await;
    let logged = [&flags[..], &["--data-dir", dir.path().to_str().unwrap()]].concat();
    let second = Binary::with_flags(alone.addr, &logged).await;

    // the epochs of the first are ahead
    post_control(first.control, "/v1/policy", &json!({"version": "a"})).await;
    post_control(first.control, "/v1/policy", &json!({"version": "b"})).await;
    let hop = async |session: &str, between: Option<&str>| {
        let tokens = extend(first.data, session, Vec::new()).await;
        if let Some(between) = between {
            label(&alone, between).await;
        }
        extend(second.data, session, tokens).await;
        row(second.control, session).await
    };
    let initial = hop("initial", None).await;
    assert_eq!(column(&initial, "weight_version"), ["default", "default"]);
    assert_eq!(policy_flags(&initial), ["policy_uncertain"], "{initial}");
    let processes = column(&initial, "process");
    assert!(processes.iter().all(|process| process.as_str().is_some_and(|id| id.len() == 16)), "{processes:?}");
    assert!(processes[0] != processes[1], "{processes:?}");

    label(&alone, "7").await;
    let same = hop("same", None).await;
    assert_eq!((column(&same, "process"), policy_flags(&same)), (processes.clone(), vec![]), "{same}");
    assert!(column(&same, "epoch")[0] != column(&same, "epoch")[1], "{same}");
    let other = hop("other", Some("8")).await;
    assert_eq!(policy_flags(&other), ["crosses_versions"], "{other}");

    let export = async |format: &str| {
        let body = json!({"sessions": ["same"], "format": format}).to_string();
        post(first.control, "/v1/samples", body.as_bytes()).await.json()
    };
    assert_eq!(export("slime").await["samples"][0]["weight_versions"], json!(["7", "7"]));
    let version = &export("tunix").await["samples"][0]["policy_version"];
    assert_eq!(version, &json!(7), "the engine's label, and not the epoch of a process");
    let columns = export("jsonl").await;
    assert_eq!(column(&columns, "process"), processes);

    // a restart keeps the process, and uses no epoch again
    let mut tokens = extend(second.data, "restarted", Vec::new()).await;
    end(second).await;
    for _ in 0..2 {
        let second = Binary::with_flags(alone.addr, &logged).await;
        tokens = extend(second.data, "restarted", tokens).await;
        end(second).await;
    }
    let restarted = row(first.control, "restarted").await;
    assert_eq!(column(&restarted, "process"), vec![processes[1].clone(); 3]);
    let epochs: Vec<u64> = column(&restarted, "epoch").iter().map(|epoch| epoch.as_u64().unwrap()).collect();
    assert!(epochs.is_sorted_by(|before, after| before < after), "{epochs:?}");
    assert_eq!(policy_flags(&restarted), ["crosses_versions"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_that_initial_labels_cannot_be_compared() {
    let Some(server) = Server::start() else { return };
    let alone = StandaloneEngine::start().await;
    let (upstream, url) = (format!("http://{}", alone.addr), server.url());
    let report = async |flags: &[&str]| {
        let done = output(&[&["check", "--upstream", &upstream][..], flags].concat()).await;
        let text = String::from_utf8(done.stdout).unwrap();
        text.lines().filter(|line| line.contains("weights ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let shared = ["--ledger", &url, "--ledger-replicas", "0"];
    let warned = report(&shared).await;
    assert!(warned.len() == 1 && warned[0].starts_with("warn"), "{warned:?}");
    assert!(warned[0].contains("rows with turns of several tokentaps are policy_uncertain"), "{warned:?}");
    assert_eq!(report(&[]).await, ["ok    weights      weight_version default"]);
    label(&alone, "7").await;
    assert_eq!(report(&shared).await, ["ok    weights      weight_version 7"]);
}
