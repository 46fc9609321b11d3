//! What trainers said and were told, across a kill.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::Alone;
use crate::support::client::{get, post, request};

/// One turn of a session; returns its reply.
pub(crate) async fn say(data: SocketAddr, session: &str, prompt: &[u32], done: &str) -> Value {
    let sampling = json!({"max_new_tokens": 4, "temperature": 1.0, "ignore_eos": true});
    let body = json!({"input_ids": prompt, "sampling_params": sampling}).to_string();
    let headers = [("x-session-id", session), ("x-session-done", done)];
    let answer = request(data, "POST", "/generate", &headers, body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Tells the control port something that it must take.
pub(crate) async fn tell(control: SocketAddr, path: &str, body: &Value) -> Value {
    let answer = post(control, path, body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

async fn epoch(control: SocketAddr) -> u64 {
    get(control, "/v1/policy").await.json()["epoch"].as_u64().unwrap()
}

/// All that a trainer can read of sessions, as bytes.
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
async fn what_trainers_said_is_there_after_a_kill() {
    let (alone, dir) = (Alone::start().await, tempfile::tempdir().unwrap());
    let binary = alone.behind(&dir, &[]).await;
    let (data, control) = (binary.data, binary.control);
    for session in ["frozen", "unseen", "rewarded", "reborn", "deleted", "done-1", "done-2"] {
        say(data, session, &[1, 2, 3], if session.starts_with("done") { "1" } else { "" }).await;
    }
    // a generation that tokentap does not see, before and behind a freeze
    let unseen = [("x-session-id", "unseen")];
    request(data, "POST", "/v1/chat/completions", &unseen, b"{}").await;
    for session in ["frozen", "unseen"] {
        assert_eq!(tell(control, &format!("/v1/sessions/{session}/freeze"), &json!({})).await["version"], 1);
    }
    let first = read(control, &[]).await;
    assert!(first[1].contains("\"incomplete\""), "{}", first[1]);
    request(data, "POST", "/v1/chat/completions", &unseen, b"{}").await;
    for session in ["frozen", "unseen"] {
        say(data, session, &[9, 8, 7], "").await;
        tell(control, &format!("/v1/sessions/{session}/reward"), &json!({"reward": 3})).await;
    }
    assert_eq!(read(control, &[]).await, first, "nothing that comes behind a freeze changes what was frozen");
    assert_eq!(tell(control, "/v1/sessions/frozen/freeze", &json!({})).await["version"], 2);
    tell(control, "/v1/sessions/rewarded/reward", &json!({"reward": {"score": 0.25}})).await;
    tell(control, "/v1/sessions/rewarded/reward", &json!({"reward": 1.5, "leaf": 0})).await;
    for session in ["reborn", "deleted"] {
        assert_eq!(request(control, "DELETE", &format!("/v1/sessions/{session}"), &[], b"").await.status, 200);
    }
    let again = say(data, "reborn", &[5, 5], "").await;
    tell(control, "/update_weights_from_disk", &json!({"model_path": "new"})).await;
    tell(control, "/v1/policy", &json!({"version": 7})).await;
    tell(control, "/update_weights_from_disk", &json!({"model_path": "newer"})).await;
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
    let given = get(control, &rest).await.text();
    assert!(given.lines().count() >= 2, "{given}");
    binary.kill();

    let binary = alone.behind(&dir, &[]).await;
    let (data, control) = (binary.data, binary.control);
    assert_eq!(read(control, &versions).await, before);
    assert_eq!(get(control, &rest).await.text(), given, "a cursor means the same");
    assert!(before[6].contains("1.5"), "{}", before[6]);
    let sampled = again["output_ids"].to_string();
    assert!(before[7].contains(sampled.trim_start_matches('[')), "{sampled} in {}", before[7]);
    assert_eq!(get(control, "/v1/sessions/deleted").await.status, 404);
    assert_eq!(get(control, "/v1/sessions/reborn").await.json()["turns"], 1);
    assert!(epoch(control).await > reached, "who sampled in between is not known");
    let refused = post(control, "/v1/sessions/frozen/reward", b"{\"reward\":1}").await;
    assert_eq!(refused.status, 409, "what is frozen stays frozen: {}", refused.text());
    // new paths come behind the old ones
    say(data, "done-3", &[1], "1").await;
    let more = get(control, &rest).await.text();
    assert!(more.starts_with(&given) && more.lines().count() == given.lines().count() + 1, "{more}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_nobody_announced_is_not_given_twice() {
    let (alone, dir) = (Alone::start().await, tempfile::tempdir().unwrap());
    let mut reached = 0;
    for life in 0..3 {
        let binary = alone.behind(&dir, &[]).await;
        let before = epoch(binary.control).await;
        assert!(life == 0 || before > reached, "{before} comes behind {reached}");
        for change in 0..3 {
            // past tokentap, which sees the new label with the next reply
            let label = json!({"new_version": format!("{life}-{change}"), "abort_all_requests": false});
            tell(alone.addr, "/update_weight_version", &label).await;
            say(binary.data, "s", &[1, 2, 3], "").await;
            reached = epoch(binary.control).await;
        }
        assert_eq!(reached, before + 3);
        assert_eq!(request(binary.control, "DELETE", "/v1/sessions/s", &[], b"").await.status, 200);
        binary.kill();
    }
}
