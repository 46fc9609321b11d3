// SPDX-License-Identifier: Apache-2.0
//! Turns that were cut short are kept, are not trained, and can be resumed.

use std::time::Duration;

use serde_json::{Value, json};
use tokentap::demo::{End, EngineOptions, Streaming};

use super::audit::control;
use super::harness::{Agent, Harness, length};
use crate::support::client::{Connection, post, written};
use crate::support::manual_upstream::soon;

/// An engine that is slow enough for a client to leave before the end.
async fn slow(streaming: Streaming) -> Harness {
    let delay = Some(Duration::from_millis(8));
    Harness::exact(EngineOptions { streaming, token_delay: delay, ..EngineOptions::default() }).await
}

/// Starts a stream and reads its first events.
async fn begin_stream(agent: &Agent<'_>, body: &Value) -> Connection {
    let addr = agent.harness.demo.proxy.data;
    let mut connection = Connection::open(addr).await;
    let headers = [("x-session-id", agent.session.as_str())];
    connection.send(&written(addr, "POST", "/generate", &headers, body.to_string().as_bytes())).await;
    let three = |read: &[u8]| memchr::memmem::find_iter(read, b"data: ").count() > 3;
    assert!(soon("three events", connection.read_until(three)).await, "the stream continues");
    connection
}

/// The body of a long stream with this rid.
fn long_stream_body(agent: &Agent<'_>, rid: &str) -> Value {
    let mut body = agent.body(&json!({"max_new_tokens": 400, "ignore_eos": true, "temperature": 0.8}));
    (body["rid"], body["stream"]) = (json!(rid), json!(true));
    body
}

/// Waits until a session has this many turns and no running call.
async fn wait_until_idle(harness: &Harness, session: &str, turns: u64) {
    let over = |seen: &Value| seen["turns"].as_u64() >= Some(turns) && seen["running"] == 0;
    harness.until(session, "the call is over", over).await;
}

/// Resumes the second turn, which was cut short, without a token in between; then a tool answers and a last turn follows.
async fn assert_resumable(agent: &mut Agent<'_>, fault: &str) {
    agent.act(&length(5)).await;
    agent.observe("go on");
    agent.act(&agent.stops(3)).await;
    let audit = agent.harness.audit(&agent.session).await;
    assert_eq!(audit.causes(), ["first", "extends", "resumes", "extends_length"], "{fault}");
    assert_eq!(audit.turns[2]["parent"], 1, "{fault}: it continues the turn that was cut");
    assert_eq!(audit.turns[2]["prompt_tokens"], 0, "{fault}: without a token in between");
    assert_eq!((audit.samples.len(), audit.refused.len()), (1, 0), "{fault}: the cut turn is context now");
    let row = &audit.samples[0];
    assert_eq!(row["token_ids"], json!(agent.tokens), "{fault}");
    assert_eq!(row["flags"], json!(["extends_length", fault]));
    let trained: Vec<bool> = row["turns"].as_array().unwrap().iter().map(|turn| turn["trained"] == true).collect();
    assert_eq!(trained, [true, false, true, true], "{fault}: the cut turn has mask 0");
    assert_trained_on_request(agent, row).await;
}

/// With `train_resumed` the row differs in the mask of the cut turn only, and advantages have the same mask.
async fn assert_trained_on_request(agent: &Agent<'_>, row: &Value) {
    let addr = agent.harness.demo.proxy.control;
    let body = json!({"sessions": [agent.session], "format": "jsonl", "train_resumed": true});
    let answer = post(addr, "/v1/samples", body.to_string().as_bytes()).await;
    let mut found: Value = serde_json::from_slice(answer.body.strip_suffix(b"\n").unwrap()).unwrap();
    let mask = super::audit::integers(&found["loss_mask"]);
    let is_sampled = found["logprobs"].as_array().unwrap().iter().map(|logprob| u32::from(!logprob.is_null()));
    assert_eq!(mask, is_sampled.collect::<Vec<u32>>(), "every sampled token is trained");
    assert!(mask.iter().sum::<u32>() > super::audit::integers(&row["loss_mask"]).iter().sum());
    let group = json!([{"id": 1, "samples": [{"session": agent.session, "reward": 3}]}]);
    let request = json!({"groups": group, "train_resumed": true, "normalize_std": false});
    let answer = post(addr, "/v1/advantages", request.to_string().as_bytes()).await.json();
    let advantages = answer["groups"][0]["samples"][0]["advantages"].as_array().unwrap().iter();
    assert_eq!(mask, advantages.map(|advantage| u32::from(advantage == 3.0)).collect::<Vec<u32>>());
    found["loss_mask"] = row["loss_mask"].clone();
    for (at, segment) in found["segments"].as_array_mut().unwrap().iter_mut().enumerate() {
        segment["loss_mask"] = row["segments"][at]["loss_mask"].clone();
    }
    found["turns"][1]["trained"] = json!(false);
    assert_eq!(&found, row, "nothing else changes, and the flags stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_turn_of_an_earlier_policy_is_trained_on_request_and_flagged() {
    let harness = slow(Streaming::Cumulative).await;
    let mut agent = Agent::new(&harness, "update", "Tell me everything");
    let body = long_stream_body(&agent, "paused");
    let mut stream = begin_stream(&agent, &body).await;
    assert_eq!(harness.demo.post("/abort_request", &json!({"rid": "paused"})).await.status, 200);
    let answer = soon("the stream ends", stream.answer()).await;
    agent.tokens.extend(harness.record("update", &body, &answer).remove(0).output);
    let addr = harness.demo.proxy.control;
    assert_eq!(post(addr, "/v1/policy", br#"{"version":"7"}"#).await.status, 200);
    agent.act(&length(5)).await;
    for (format, flags) in
        [("jsonl", &["crosses_versions", "aborted"][..]), ("slime", &["crosses_versions", "aborted"])]
    {
        let body = json!({"sessions": ["update"], "format": format, "train_resumed": true});
        let answer = post(addr, "/v1/samples", body.to_string().as_bytes()).await;
        let row: Value = match format {
            "jsonl" => serde_json::from_slice(answer.body.strip_suffix(b"\n").unwrap()).unwrap(),
            _ => answer.json()["samples"][0]["metadata"].clone(),
        };
        assert_eq!(row["flags"], json!(flags), "{format}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_of_a_disconnected_client_can_be_resumed() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let harness = slow(streaming).await;
        let mut agent = Agent::new(&harness, "left", "Tell me everything");
        agent.act(&agent.stops(4)).await;
        agent.observe("at length");
        drop(begin_stream(&agent, &long_stream_body(&agent, "leaving")).await);
        wait_until_idle(&harness, "left", 2).await;
        let audit = harness.audit("left").await;
        assert_eq!(audit.refused, [(1, "disconnected".to_owned())]);
        assert_eq!(audit.turns[1]["rid"], "leaving");
        assert_eq!(audit.samples.len(), 1, "the path before the cut turn is a row");
        let row = audit.row(1);
        let mask = super::audit::integers(&row["loss_mask"]);
        assert_eq!(mask.iter().sum::<u32>(), 0, "a path that ends in a cut turn trains nothing");
        let entry = harness.entry("leaving");
        let received = audit.turns[1]["sampled_tokens"].as_u64().unwrap() as usize;
        assert!((3..=entry.sampled.len()).contains(&received) && received < 400, "{received} tokens were received");
        agent.tokens = super::audit::integers(&row["token_ids"]);
        assert!(agent.tokens.ends_with(&entry.output()[..received]), "the received tokens are kept");
        assert_resumable(&mut agent, "disconnected").await;
        let stopped = async {
            while harness.entry("leaving").end.is_none() {
                tokio::task::yield_now().await;
            }
        };
        soon("the engine stops as well", stopped).await;
        assert!(matches!(harness.entry("leaving").end, Some(End::Abort | End::Left)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_stream_leaves_a_turn_that_can_be_resumed() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let harness = slow(streaming).await;
        let mut agent = Agent::new(&harness, "aborted", "Tell me everything");
        agent.act(&agent.stops(4)).await;
        agent.observe("at length");
        let body = long_stream_body(&agent, "doomed");
        let mut stream = begin_stream(&agent, &body).await;
        assert_eq!(harness.demo.post("/abort_request", &json!({"rid": "doomed"})).await.status, 200);
        let answer = soon("the stream ends", stream.answer()).await;
        let reply = harness.record("aborted", &body, &answer).remove(0);
        assert_eq!(harness.entry("doomed").end, Some(End::Abort));
        let audit = harness.audit("aborted").await;
        assert_eq!(audit.refused, [(1, "aborted".to_owned())]);
        agent.tokens.extend(reply.output);
        assert_eq!(audit.row(1)["token_ids"], json!(agent.tokens), "all sampled tokens are kept");
        assert_eq!(super::audit::integers(&audit.row(1)["loss_mask"]).iter().sum::<u32>(), 0);
        assert_resumable(&mut agent, "aborted").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_non_streaming_reply_leaves_a_turn_that_can_be_resumed() {
    let harness = slow(Streaming::Cumulative).await;
    let mut agent = Agent::new(&harness, "whole", "Tell me everything");
    agent.act(&agent.stops(4)).await;
    agent.observe("at length");
    let mut body = long_stream_body(&agent, "doomed");
    body["stream"] = json!(false);
    let addr = harness.demo.proxy.data;
    let mut client = Connection::open(addr).await;
    let headers = [("x-session-id", "whole")];
    client.send(&written(addr, "POST", "/generate", &headers, body.to_string().as_bytes())).await;
    let sampled = || harness.journal().iter().any(|entry| entry.rid == "doomed" && entry.sampled.len() > 2);
    let wait = async {
        while !sampled() {
            tokio::task::yield_now().await;
        }
    };
    soon("the engine samples", wait).await;
    assert_eq!(harness.demo.post("/abort_request", &json!({"rid": "doomed"})).await.status, 200);
    let answer = soon("the reply comes", client.answer()).await;
    let reply = harness.record("whole", &body, &answer).remove(0);
    assert_eq!(reply.meta["finish_reason"]["type"], "abort");
    agent.tokens.extend(reply.output);
    assert_resumable(&mut agent, "aborted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_leaves_before_a_non_streaming_reply_leaves_no_session() {
    let harness = slow(Streaming::Cumulative).await;
    let agent = Agent::new(&harness, "impatient", "Tell me everything");
    let mut body = long_stream_body(&agent, "gone");
    body["stream"] = json!(false);
    let addr = harness.demo.proxy.data;
    let mut client = Connection::open(addr).await;
    let headers = [("x-session-id", "impatient")];
    client.send(&written(addr, "POST", "/generate", &headers, body.to_string().as_bytes())).await;
    let wait = async {
        while !harness.journal().iter().any(|entry| !entry.sampled.is_empty()) {
            tokio::task::yield_now().await;
        }
    };
    soon("the engine samples", wait).await;
    drop(client);
    let wait = async {
        while harness.entry("gone").end.is_none() {
            tokio::task::yield_now().await;
        }
    };
    soon("the engine stops", wait).await;
    let sessions = control(&harness, "/v1/sessions").await;
    assert_eq!(sessions["sessions"], json!([]), "an undelivered reply leaves no session");
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_of_a_disconnected_client_is_kept_for_every_request_option() {
    let harness = slow(Streaming::Incremental).await;
    let cumulative = slow(Streaming::Cumulative).await;
    let extras = [
        json!({"return_entropy": false}),
        json!({"return_logprob": true, "return_entropy": false}),
        json!({"text": "Lamp lit at 18:02", "input_ids": null}),
        json!({"text": "Lamp lit at 18:02", "input_ids": null, "return_prompt_token_ids": true}),
    ];
    for (harness, kind) in [(&harness, "deltas"), (&cumulative, "whole")] {
        for (at, extra) in extras.iter().enumerate() {
            let session = format!("{kind}-{at}");
            let agent = Agent::new(harness, &session, "Tell me everything");
            let rid = format!("{session}.left");
            let mut body = long_stream_body(&agent, &rid);
            for (name, value) in extra.as_object().unwrap() {
                body[name] = value.clone();
            }
            drop(begin_stream(&agent, &body).await);
            wait_until_idle(harness, &session, 1).await;
            let listed = control(harness, &format!("/v1/sessions/{session}")).await["list"][0].clone();
            assert_eq!((&listed["fault"], &listed["cause"]), (&json!("disconnected"), &json!("first")), "{body}");
            let exported = control(harness, &format!("/v1/sessions/{session}/trajectories")).await;
            let row = &exported["trajectories"][0];
            let entry = harness.entry(&rid);
            let received = listed["sampled_tokens"].as_u64().unwrap() as usize;
            assert!(received >= 3, "{body}: {received} tokens were received");
            let all = [&entry.prompt[..], &entry.output()[..received]].concat();
            assert_eq!(row["token_ids"], json!(all), "{body}");
        }
    }
}
