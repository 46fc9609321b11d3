// SPDX-License-Identifier: Apache-2.0
//! State that trainers set and read, across a kill.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::StandaloneEngine;
use crate::support::client::{get, post, request};

/// Generates one turn of a session; returns its reply.
pub(crate) async fn generate_turn(data: SocketAddr, session: &str, prompt: &[u32], done: &str) -> Value {
    let sampling = json!({"max_new_tokens": 4, "temperature": 1.0, "ignore_eos": true});
    let body = json!({"input_ids": prompt, "sampling_params": sampling}).to_string();
    let headers = [("x-session-id", session), ("x-session-done", done)];
    let answer = request(data, "POST", "/generate", &headers, body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Posts to the control port, which must accept it.
pub(crate) async fn post_control(control: SocketAddr, path: &str, body: &Value) -> Value {
    let answer = post(control, path, body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

async fn epoch(control: SocketAddr) -> u64 {
    get(control, "/v1/policy").await.json()["epoch"].as_u64().unwrap()
}

/// The exports and pages of sessions that a trainer can read.
async fn read(control: SocketAddr, paths: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for format in ["verl", "jsonl"] {
        let body = json!({"sessions": ["frozen", "unseen"], "format": format}).to_string();
        all.push(post(control, "/v1/samples", body.as_bytes()).await.text());
    }
    for path in paths {
        let answer = get(control, &format!("/v1/sessions/{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        all.push(answer.text());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn trainer_state_survives_a_kill() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &[]).await;
    let (data, control) = (binary.data, binary.control);
    for session in ["frozen", "unseen", "rewarded", "reborn", "deleted", "done-1", "done-2"] {
        generate_turn(data, session, &[1, 2, 3], if session.starts_with("done") { "1" } else { "" }).await;
    }
    // an unrecorded generation, before and after a freeze
    let unseen = [("x-session-id", "unseen")];
    request(data, "POST", "/v1/chat/completions", &unseen, b"{}").await;
    for session in ["frozen", "unseen"] {
        assert_eq!(post_control(control, &format!("/v1/sessions/{session}/freeze"), &json!({})).await["version"], 1);
    }
    let first = read(control, &[]).await;
    assert!(first[1].contains("\"incomplete\""), "{}", first[1]);
    request(data, "POST", "/v1/chat/completions", &unseen, b"{}").await;
    for session in ["frozen", "unseen"] {
        generate_turn(data, session, &[9, 8, 7], "").await;
        post_control(control, &format!("/v1/sessions/{session}/reward"), &json!({"reward": 3})).await;
    }
    assert_eq!(read(control, &[]).await, first, "nothing after a freeze changes the frozen version");
    assert_eq!(post_control(control, "/v1/sessions/frozen/freeze", &json!({})).await["version"], 2);
    post_control(control, "/v1/sessions/rewarded/reward", &json!({"reward": {"score": 0.25}})).await;
    post_control(control, "/v1/sessions/rewarded/reward", &json!({"reward": 1.5, "leaf": 0})).await;
    for session in ["reborn", "deleted"] {
        assert_eq!(request(control, "DELETE", &format!("/v1/sessions/{session}"), &[], b"").await.status, 200);
    }
    let again = generate_turn(data, "reborn", &[5, 5], "").await;
    post_control(control, "/update_weights_from_disk", &json!({"model_path": "new"})).await;
    post_control(control, "/v1/policy", &json!({"version": 7})).await;
    post_control(control, "/update_weights_from_disk", &json!({"model_path": "newer"})).await;
    let page = get(control, "/v1/trajectories?limit=2").await.text();
    let cursor = serde_json::from_str::<Value>(page.lines().last().unwrap()).unwrap()["cursor"].clone();
    let versions = [
        "frozen/trajectories?version=1",
        "frozen/trajectories?version=2",
        "unseen/trajectories?version=1",
        "unseen/trajectories?version=2",
        "rewarded/trajectories",
        "reborn/trajectories",
    ];
    let (before, reached) = (read(control, &versions).await, epoch(control).await);
    let rest = format!("/v1/trajectories?since={}", cursor.as_str().unwrap());
    let finished = get(control, &rest).await.text();
    assert!(finished.lines().count() >= 2, "{finished}");
    binary.kill();

    let binary = alone.start_binary(&dir, &[]).await;
    let (data, control) = (binary.data, binary.control);
    assert_eq!(read(control, &versions).await, before);
    assert_eq!(get(control, &rest).await.text(), finished, "a cursor stays valid");
    assert!(before[6].contains("1.5"), "{}", before[6]);
    let sampled = again["output_ids"].to_string();
    assert!(before[7].contains(sampled.trim_start_matches('[')), "{sampled} in {}", before[7]);
    assert_eq!(get(control, "/v1/sessions/deleted").await.status, 404);
    assert_eq!(get(control, "/v1/sessions/reborn").await.json()["turns"], 1);
    assert!(epoch(control).await > reached, "the weights in between are not known");
    let refused = post(control, "/v1/sessions/frozen/reward", b"{\"reward\":1}").await;
    assert_eq!(refused.status, 409, "a frozen version stays frozen: {}", refused.text());
    // new paths follow the old ones
    generate_turn(data, "done-3", &[1], "1").await;
    let more = get(control, &rest).await.text();
    assert!(more.starts_with(&finished) && more.lines().count() == finished.lines().count() + 1, "{more}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unannounced_epoch_is_not_reused_after_a_restart() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let mut reached = 0;
    for life in 0..3 {
        let binary = alone.start_binary(&dir, &[]).await;
        let before = epoch(binary.control).await;
        assert!(life == 0 || before > reached, "{before} follows {reached}");
        for change in 0..3 {
            // sent directly to the engine; tokentap sees the new label in the next reply
            let label = json!({"new_version": format!("{life}-{change}"), "abort_all_requests": false});
            post_control(alone.addr, "/update_weight_version", &label).await;
            generate_turn(binary.data, "s", &[1, 2, 3], "").await;
            reached = epoch(binary.control).await;
        }
        assert_eq!(reached, before + 3);
        assert_eq!(request(binary.control, "DELETE", "/v1/sessions/s", &[], b"").await.status, 200);
        binary.kill();
    }
}
