// SPDX-License-Identifier: Apache-2.0
//! Each finished path is returned once, and frozen versions do not change.

use serde_json::{Value, json};
use tokentap::demo::EngineOptions;

use super::audit::control;
use super::harness::{Agent, Harness};
use crate::support::client::{get, post, request};

/// The lines after a cursor.
async fn finished_after(harness: &Harness, cursor: &str) -> Vec<Value> {
    let answer = get(harness.demo.proxy.control, &format!("/v1/trajectories?since={cursor}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A turn that its agent marks as the last.
async fn final_turn(agent: &mut Agent<'_>) {
    let harness = agent.harness;
    let body = agent.body(&agent.stops(3));
    let headers = [("x-session-id", agent.session.as_str()), ("x-session-done", "1")];
    let answer = request(harness.demo.proxy.data, "POST", "/generate", &headers, body.to_string().as_bytes()).await;
    let reply = harness.record(&agent.session, &body, &answer).remove(0);
    agent.tokens.extend(reply.output);
    // the call ends when its connection has read the whole reply, shortly after the last byte
    harness.until(&agent.session, "the session is done", |seen| seen["done"] == true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_path_is_returned_once() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut first = Agent::new(&harness, "first", "What did the keeper write?");
    first.act(&first.stops(4)).await;
    assert_eq!(finished_after(&harness, "").await, Vec::<Value>::new(), "the session is not done");
    first.observe("the end");
    final_turn(&mut first).await;
    // the path appears after the call has ended
    let wait = async {
        loop {
            let lines = finished_after(&harness, "").await;
            if !lines.is_empty() {
                return lines;
            }
        }
    };
    let lines = crate::support::manual_upstream::soon("the path appears", wait).await;
    assert_eq!(lines.len(), 1);
    let cursor = lines[0]["cursor"].as_str().unwrap();
    let mut line = lines[0].clone();
    line.as_object_mut().unwrap().remove("cursor");
    let row_key = line.as_object_mut().unwrap().remove("row_key");
    let audit = harness.audit("first").await;
    assert_eq!(row_key.as_ref(), audit.samples[0].get("row_key"), "it is the key of every export");
    assert_eq!(line, *audit.row(1), "it is the row of every export");
    assert_eq!(finished_after(&harness, "").await, lines, "without a cursor it is returned again");
    assert_eq!(finished_after(&harness, cursor).await, Vec::<Value>::new(), "after its cursor it is not");

    let mut second = Agent::new(&harness, "second", "And what else?");
    second.stream = true;
    final_turn(&mut second).await;
    let freeze = post(harness.demo.proxy.control, "/v1/sessions/second/freeze", b"").await;
    assert_eq!(freeze.status, 200, "{}", freeze.text());
    let next = finished_after(&harness, cursor).await;
    assert_eq!(next.len(), 1, "finished twice, returned once");
    assert_eq!((&next[0]["session"], &next[0]["token_ids"]), (&json!("second"), &json!(second.tokens)));
    let page = get(harness.demo.proxy.control, "/v1/trajectories?limit=1").await.text();
    assert_eq!(page.lines().count(), 1, "a page respects its limit");

    first.observe("one more thing");
    final_turn(&mut first).await;
    let wait = async {
        loop {
            let lines = finished_after(&harness, next[0]["cursor"].as_str().unwrap()).await;
            if !lines.is_empty() {
                return lines;
            }
        }
    };
    let more = crate::support::manual_upstream::soon("the longer path appears", wait).await;
    assert_eq!(more.len(), 1, "a session may continue");
    assert_eq!(more[0]["token_ids"], json!(first.tokens));
    let masks: u32 = [&lines[0], &more[0]].iter().flat_map(|line| super::audit::integers(&line["loss_mask"])).sum();
    let sampled: usize = harness.replies("first").iter().map(|reply| reply.output.len()).sum();
    assert_eq!(masks as usize, sampled, "tokens that were returned before are context now");
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_version_keeps_its_bytes_and_later_turns_open_a_new_version() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let addr = harness.demo.proxy.control;
    let mut agent = Agent::new(&harness, "frozen", "What did the keeper write?");
    agent.act(&agent.stops(4)).await;
    let reward = post(addr, "/v1/sessions/frozen/reward", b"{\"reward\":0.5}").await;
    assert_eq!(reward.status, 200, "{}", reward.text());
    let freeze = async || post(addr, "/v1/sessions/frozen/freeze", b"").await.json();
    assert_eq!(freeze().await, json!({"session": "frozen", "version": 1, "turns": 1}));
    assert_eq!(freeze().await["version"], 1, "no new turns");
    let paths = ["", "?version=1"].map(|query| format!("/v1/sessions/frozen/trajectories{query}"));
    let read = async || {
        let mut bytes = Vec::new();
        for path in &paths {
            bytes.push(get(addr, path).await.body);
        }
        for format in ["jsonl", "verl", "miles", "areal", "slime", "tunix", "strands", "rllm"] {
            let body = json!({"sessions": ["frozen"], "format": format}).to_string();
            bytes.push(post(addr, "/v1/samples", body.as_bytes()).await.body);
        }
        bytes
    };
    let before = read().await;
    assert_eq!(before[0], before[1], "without a version the last frozen one is read");

    agent.observe("and then?");
    agent.act(&agent.stops(3)).await;
    let conflict = post(addr, "/v1/sessions/frozen/reward", b"{\"reward\":2,\"leaf\":1}").await;
    assert_eq!(conflict.status, 200, "version 2 is open: {}", conflict.text());
    let chat =
        request(harness.demo.proxy.data, "POST", "/v1/chat/completions", &[("x-session-id", "frozen")], b"{}").await;
    assert_eq!(chat.status, 404, "the demo engine has no chat endpoint");
    assert_eq!(read().await, before, "not a byte of version 1 has changed");

    let open = control(&harness, "/v1/sessions/frozen/trajectories?version=2").await;
    assert_eq!((&open["version"], &open["frozen"]), (&json!(2), &json!(false)));
    assert_eq!(
        (&open["trajectories"][0]["token_ids"], &open["trajectories"][0]["reward"]),
        (&json!(agent.tokens), &json!(2))
    );
    assert_eq!(freeze().await, json!({"session": "frozen", "version": 2, "turns": 2}));
    assert_eq!(get(addr, &paths[1]).await.body, before[1], "version 1 can still be read");
    let latest = control(&harness, "/v1/sessions/frozen/trajectories").await;
    assert_eq!((&latest["version"], &latest["frozen"]), (&json!(2), &json!(true)));
}
