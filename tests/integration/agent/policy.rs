// SPDX-License-Identifier: Apache-2.0
//! Weights that change between turns and within a turn: each token is attributed to the weights that sampled it.

use std::time::Duration;

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Streaming};

use super::harness::{Agent, Harness, length};
use crate::support::client::{Connection, post, written};
use crate::support::manual_upstream::soon;

async fn post_control(harness: &Harness, path: &str, body: Value) {
    let answer = post(harness.demo.proxy.control, path, body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_turn_names_the_weights_that_sampled_it() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&harness, "trained", "What did the keeper write?");
    for step in 0..3 {
        agent.act(&length(5)).await;
        agent.observe("go on");
        let update = json!({"model_path": "elsewhere", "weight_version": format!("step-{step}")});
        post_control(&harness, "/update_weights_from_disk", update).await;
    }
    let audit = harness.audit("trained").await;
    let row = &audit.samples[0];
    let labels: Vec<&Value> = row["policy"].as_array().unwrap().iter().map(|span| &span["weight_version"]).collect();
    assert_eq!(labels, ["default", "step-0", "step-1"]);
    assert_eq!(row["flags"], json!(["crosses_versions", "extends_length"]));
    let numbers: Vec<u64> = harness.journal().iter().map(|entry| entry.sampled[0].weights).collect();
    assert_eq!(numbers, [0, 1, 2], "the engine's own count");
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_records_where_the_weights_changed() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let delay = Some(Duration::from_millis(20));
        let harness = Harness::exact(EngineOptions { streaming, token_delay: delay, ..EngineOptions::default() }).await;
        let mut agent = Agent::new(&harness, "moved", "What did the keeper write?");
        // the first turn reports the name of the weights
        agent.act(&agent.stops(3)).await;
        agent.observe("at length");
        agent.stream = true;
        let body = agent.body(&length(60));
        let addr = harness.demo.proxy.data;
        let mut stream = Connection::open(addr).await;
        let headers = [("x-session-id", "moved")];
        stream.send(&written(addr, "POST", "/generate", &headers, body.to_string().as_bytes())).await;
        let first = |read: &[u8]| memchr::memmem::find(read, b"output_ids").is_some();
        assert!(soon("an event", stream.read_until(first)).await);
        post_control(&harness, "/pause_generation", json!({"mode": "in_place"})).await;
        let update = json!({"model_path": "elsewhere", "weight_version": "new", "flush_cache": false});
        post_control(&harness, "/update_weights_from_disk", update).await;
        post_control(&harness, "/continue_generation", json!({})).await;
        let answer = soon("the stream ends", stream.answer()).await;
        harness.record("moved", &body, &answer);
        let audit = harness.audit("moved").await;
        let spans = audit.samples[0]["policy"].as_array().unwrap();
        let labels: Vec<&Value> = spans.iter().map(|span| &span["weight_version"]).collect();
        assert_eq!(labels, ["default", "default", "new"], "one span of the first turn, two of the second");
        assert!(spans.iter().all(|span| span["until"] == span["epoch"]), "the engine reported the position: {spans:?}");
    }
}
