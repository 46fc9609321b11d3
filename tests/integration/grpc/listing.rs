// SPDX-License-Identifier: Apache-2.0
//! Compares List and Get with `/v1/sessions`.

use serde_json::{Value, json};
use tokentap::demo::EngineOptions;
use tokentap::serve::grpc::pb::{GetRequest, ListRequest, SessionSummary, Turn};
use tonic::Code;

use super::client::trajectories;
use crate::support::client::{get, request};
use crate::support::demo::Demo;
use crate::support::manual_upstream::soon;

/// Records two turns of session `a` and one of session `b`.
pub async fn record_sessions(demo: &Demo) {
    for (session, text) in [("a", "The lamp"), ("a", "The lamp"), ("b", "A door")] {
        let body = json!({"text": text, "session_id": session, "sampling_params": {"max_new_tokens": 5}});
        demo.ask(&body).await;
    }
}

/// A summary as HTTP writes it.
fn summary(session: &SessionSummary) -> Value {
    json!({
        "session": session.session,
        "created_ms": session.created_ms,
        "turns": session.turns,
        "sampled_tokens": session.sampled_tokens,
        "faults": session.faults,
        "causes": session.causes,
        "frozen_versions": session.frozen_versions,
        "done": session.done,
        "incomplete": session.incomplete,
        "running": session.running,
        "bytes": session.bytes,
        "reward": session.reward,
        "mean_entropy": session.mean_entropy,
        "high_entropy_share": session.high_entropy_share,
        "rows": session.rows,
        "trained_tokens": session.trained_tokens,
        "finish_reason": session.finish_reason,
        "policy": session.policy,
        "flags": session.flags,
    })
}

fn line(turn: &Turn) -> Value {
    json!({
        "turn": turn.id,
        "parent": turn.parent,
        "cause": turn.cause, "predecessor": turn.predecessor, "reply_changes": turn.reply_changes,
        "fault": turn.fault,
        "finish_reason": turn.finish_reason,
        "rid": turn.rid,
        // absent in these sessions
        "labels": turn.labels.as_ref().map(|labels| format!("{labels:?}")),
        "context_retokenised": turn.context_retokenised,
        "foreign_assistant_text": turn.foreign_assistant_text,
        "inserted_end_of_turn": turn.inserted_end_of_turn,
        "prompt_tokens": turn.prompt_tokens,
        "sampled_tokens": turn.sampled_tokens,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn list_equals_http() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    record_sessions(&demo).await;
    let control = demo.proxy.control;
    let mut client = trajectories(control).await;
    let list = client.list(ListRequest::default()).await.unwrap().into_inner();
    let http = get(control, "/v1/sessions").await.json();
    assert_eq!(json!(list.sessions.iter().map(summary).collect::<Vec<_>>()), http["sessions"]);
    assert_eq!((list.sessions.len(), list.next, list.evicted.len()), (2, None, 0));

    let first = client.list(ListRequest { after: 0, limit: Some(1), cursor: None }).await.unwrap().into_inner();
    assert_eq!((first.sessions[0].session.as_str(), first.sessions.len()), ("a", 1));
    let after = first.next.expect("there is another page");
    let second = client.list(ListRequest { after, limit: Some(1), cursor: None }).await.unwrap().into_inner();
    assert_eq!(second.sessions[0].session, "b");
    let end =
        client.list(ListRequest { after: second.next.unwrap_or(u64::MAX), limit: None, cursor: None }).await.unwrap();
    assert!(end.into_inner().sessions.is_empty(), "the page after the last is empty");
}

#[tokio::test(flavor = "multi_thread")]
async fn get_equals_http() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    record_sessions(&demo).await;
    let control = demo.proxy.control;
    assert_eq!(request(control, "POST", "/v1/sessions/a/freeze", &[], b"").await.status, 200);
    let mut client = trajectories(control).await;
    for version in [None, Some(1), Some(2)] {
        let asked = GetRequest { session: "a".into(), version };
        let Ok(shown) = client.get(asked).await else {
            assert_eq!(version, Some(2), "version 2 has no new turns");
            continue;
        };
        let shown = shown.into_inner();
        let path = version.map_or("/v1/sessions/a".to_owned(), |version| format!("/v1/sessions/a?version={version}"));
        let mut http = get(control, &path).await.json();
        for turn in http["list"].as_array_mut().unwrap() {
            // gRPC lacks it: only the page reads it
            assert!(
                turn.as_object_mut().unwrap().remove("mean_entropy").is_some_and(|mean| mean.is_number()),
                "{turn}"
            );
        }
        let mut ours = summary(shown.summary.as_ref().unwrap());
        ours["version"] = json!(shown.version);
        ours["frozen"] = json!(shown.frozen);
        ours["list"] = shown.turns.iter().map(line).collect();
        assert_eq!(ours, http);
        let turn = &shown.turns[0];
        let how = turn.measured.as_ref().unwrap();
        assert_eq!((how.source.as_str(), how.temperature), ("top_k", Some(1.0)));
        assert_eq!((turn.policy[0].start, turn.policy[0].end), (0, 5));
        assert!(turn.extras.is_empty() && turn.elapsed_ms < 60_000 && turn.started_ms > 1_600_000_000_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_session_or_version_has_the_error_of_http() {
    let demo = Demo::start(EngineOptions::default(), &["--session-ttl", "1s"]).await;
    record_sessions(&demo).await;
    let control = demo.proxy.control;
    let mut client = trajectories(control).await;
    let mut refused = async |session: &str, version: Option<u32>| {
        let asked = GetRequest { session: session.into(), version };
        let status = client.get(asked).await.expect_err("it does not exist");
        let path =
            version.map_or(format!("/v1/sessions/{session}"), |at| format!("/v1/sessions/{session}?version={at}"));
        let http = get(control, &path).await;
        let trailer = |name: &str| status.metadata().get(name).unwrap().to_str().unwrap().to_owned();
        assert_eq!(trailer("tokentap-http-status"), http.status.to_string());
        assert_eq!(trailer("tokentap-code"), http.json()["error"]["code"].as_str().unwrap());
        assert_eq!(status.message(), http.json()["error"]["message"].as_str().unwrap());
        (status.code(), trailer("tokentap-code"))
    };
    assert_eq!(refused("nobody", None).await, (Code::NotFound, "no_such_session".into()));
    assert_eq!(refused("a", Some(9)).await, (Code::NotFound, "no_such_version".into()));
    let gone = async { while get(control, "/v1/sessions/b").await.status != 410 {} };
    soon("the sessions exceed their TTL", gone).await;
    assert_eq!(refused("b", None).await, (Code::NotFound, "evicted".into()));
    let list = trajectories(control).await.list(ListRequest::default()).await.unwrap().into_inner();
    let evicted: Vec<_> = list.evicted.iter().map(|gone| (gone.session.as_str(), gone.reason.as_str())).collect();
    assert_eq!(evicted, [("a", "ttl"), ("b", "ttl")]);
}
