// SPDX-License-Identifier: Apache-2.0
//! Running requests: entropies on the control port, aborts, pauses, weight updates.

use std::time::Duration;

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Position, SamplingParams, Streaming};

use crate::support::client::{Answer, Connection, events, get, post, written};
use crate::support::demo::{Demo, all_numbers, assert_close, few_ids, ids, sampling};

/// A slow engine whose entropies are exact.
fn slow(streaming: Streaming) -> EngineOptions {
    let allowed = Some(few_ids("the light of the lamp comes and the sea is dark at night", false));
    EngineOptions { streaming, allowed, token_delay: Some(Duration::from_millis(8)), ..EngineOptions::default() }
}

fn params(tokens: i64) -> SamplingParams {
    let plain = SamplingParams::default();
    SamplingParams { max_new_tokens: Some(tokens), temperature: 0.8, sampling_seed: Some(9), ..plain }
}

fn body(prompt: &[u32], rid: &str, tokens: i64) -> Value {
    json!({"input_ids": prompt, "rid": rid, "stream": true, "sampling_params": sampling(&params(tokens))})
}

/// Starts a stream and waits for its first event.
async fn begun(demo: &Demo, body: &Value) -> Connection {
    let mut connection = Connection::open(demo.proxy.data).await;
    connection.send(&written(demo.proxy.data, "POST", "/generate", &[], body.to_string().as_bytes())).await;
    let first = |read: &[u8]| memchr::memmem::find(read, b"output_token_entropy").is_some();
    assert!(connection.read_until(first).await, "the stream begins");
    connection
}

/// The entropy of a request on the control port.
async fn known(demo: &Demo, rid: &str, query: &str) -> Value {
    let answer = get(demo.proxy.control, &format!("/v1/requests/{rid}/entropy{query}")).await;
    assert_eq!(answer.status, 200, "{rid} is known: {}", answer.text());
    answer.json()
}

/// Polls the control port until a request has ended.
async fn ended(demo: &Demo, rid: &str) -> Value {
    let wait = async {
        loop {
            let known = known(demo, rid, "").await;
            if known["finished"] == true {
                return known;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the request ends")
}

/// All entropies and ids of a stream.
fn put_together(answer: &Answer, streaming: Streaming) -> (Vec<f64>, Vec<u32>, Value) {
    let (mut entropies, mut output, mut last) = (Vec::new(), Vec::new(), Value::Null);
    for event in events(&answer.body) {
        let event: Value = serde_json::from_slice(&event).unwrap();
        if streaming == Streaming::Cumulative {
            (entropies, output) = (Vec::new(), Vec::new());
        }
        entropies.extend(all_numbers(&event["meta_info"]["output_token_entropy"]));
        output.extend(ids(&event));
        last = event;
    }
    assert_eq!(entropies.len(), output.len(), "as many numbers as ids: {last}");
    (entropies, output, last)
}

#[tokio::test(flavor = "multi_thread")]
async fn entropies_are_read_on_the_control_port_while_a_stream_runs_and_after() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let demo = Demo::start(slow(streaming), &[]).await;
        let prompt = demo.encode("the lamp");
        let mut stream = begun(&demo, &body(&prompt, "job/1", 100)).await;
        let early = known(&demo, "job%2F1", "").await;
        let so_far = all_numbers(&early["entropy"]);
        assert!(!so_far.is_empty() && so_far.len() < 100, "a part of the tokens: {early}");
        assert_eq!((&early["rid"], &early["index"], &early["finished"]), (&json!("job/1"), &json!(0), &json!(false)));
        assert_eq!((&early["finish_reason"], &early["next"]), (&Value::Null, &json!(so_far.len())));

        let (entropies, output, last) = put_together(&stream.answer().await, streaming);
        assert_eq!(output.len(), 100);
        assert_eq!(so_far, entropies[..so_far.len()], "the early tokens are the start of the reply");
        let late = known(&demo, "job%2F1", &format!("?since={}", so_far.len())).await;
        assert_eq!(all_numbers(&late["entropy"]), entropies[so_far.len()..], "`since` returns the remaining entropies");
        assert_eq!(
            (&late["finished"], &late["finish_reason"], &late["next"]),
            (&json!(true), &json!("length"), &json!(100))
        );
        assert_close(&entropies, &demo.entropies(&prompt, &output, &params(100)), 1e-4, "the stream");
        let mean = entropies.iter().sum::<f64>() / 100.0;
        assert_close(&[last["meta_info"]["entropy_info"]["mean"].as_f64().unwrap()], &[mean], 1e-5, "mean");
        assert_eq!(get(demo.proxy.control, "/v1/requests/nobody/entropy").await.status, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_of_a_batch_are_read_by_index_or_by_their_ids() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let texts = json!(["the lamp", "the sea"]);
    for (rid, names) in [(json!("R"), ["R_0", "R_1"]), (json!(["left", "right"]), ["left", "right"])] {
        let body = json!({"text": texts, "rid": rid, "sampling_params": {"max_new_tokens": 4, "ignore_eos": true}});
        let reply = demo.ask(&body).await;
        for (index, name) in names.iter().enumerate() {
            let known = known(&demo, name, "").await;
            assert_eq!(known["entropy"], reply[index]["meta_info"]["output_token_entropy"], "{name}");
            assert_eq!((&known["index"], &known["finish_reason"]), (&json!(index), &json!("length")), "{name}");
        }
    }
    assert_eq!(known(&demo, "R", "?index=1").await["entropy"], known(&demo, "R_1", "").await["entropy"]);
    let body =
        json!({"text": "the lamp", "rid": "S", "sampling_params": {"max_new_tokens": 4, "n": 3, "ignore_eos": true}});
    let reply = demo.ask(&body).await;
    for index in 0..3 {
        let meta = &reply[index]["meta_info"];
        assert_eq!(known(&demo, "S", &format!("?index={index}")).await["entropy"], meta["output_token_entropy"]);
        let by_name = known(&demo, meta["id"].as_str().unwrap(), "").await;
        assert_eq!(by_name["entropy"], meta["output_token_entropy"], "the engine's own id works as well");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_stream_has_entropies_of_sampled_tokens() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let demo = Demo::start(slow(streaming), &[]).await;
        let prompt = demo.encode("the lamp");
        let mut stream = begun(&demo, &body(&prompt, "gone", 500)).await;
        let abort = demo.post("/abort_request", &json!({"rid": "gone"})).await;
        assert_eq!(abort.status, 200);
        let answer = stream.answer().await;
        assert!(answer.complete, "the stream is complete");
        let (entropies, output, last) = put_together(&answer, streaming);
        assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort");
        assert!(!output.is_empty() && output.len() < 500, "{} tokens were sampled before the abort", output.len());
        assert_close(&entropies, &demo.entropies(&prompt, &output, &params(500)), 1e-4, "aborted");
        let known = known(&demo, "gone", "").await;
        assert_eq!((&known["finish_reason"], all_numbers(&known["entropy"])), (&json!("abort"), entropies));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_aborts_the_request() {
    let demo = Demo::start(slow(Streaming::Incremental), &[]).await;
    let prompt = demo.encode("the lamp");
    drop(begun(&demo, &body(&prompt, "left", 3000)).await);
    let known = ended(&demo, "left").await;
    assert_eq!(known["finish_reason"], "abort");
    assert!(all_numbers(&known["entropy"]).len() < 3000, "the engine stops");
}

/// The true entropy of each token of a stream during which the weights changed, by the spans that the engine reports.
fn by_version(demo: &Demo, prompt: &[u32], output: &[u32], spans: &Value) -> Vec<f64> {
    let version = |at: usize| -> u64 {
        let covers =
            |span: &&Value| (span["start"].as_u64().unwrap()..span["end"].as_u64().unwrap()).contains(&(at as u64));
        let span = spans.as_array().unwrap().iter().find(covers).unwrap();
        if span["version"] == "default" { 0 } else { 1 }
    };
    let entropy = |at: usize| demo.engine.entropy(Position { prompt, output: &output[..at] }, &params(1), version(at));
    (0..output.len()).map(entropy).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_changed_in_a_pause_change_the_later_entropies() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let demo = Demo::start(slow(streaming), &[]).await;
        let prompt = demo.encode("the lamp");
        let mut stream = begun(&demo, &body(&prompt, "two-policies", 100)).await;
        let control = async |path: &str, body: Value| {
            let answer = post(demo.proxy.control, path, body.to_string().as_bytes()).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        };
        control("/pause_generation", json!({"mode": "in_place"})).await;
        let update = json!({"model_path": "elsewhere", "weight_version": "new", "flush_cache": false});
        control("/update_weights_from_disk", update).await;
        assert_eq!(known(&demo, "two-policies", "").await["finished"], false, "a pause is not an end");
        control("/continue_generation", json!({})).await;
        let (entropies, output, last) = put_together(&stream.answer().await, streaming);
        assert_eq!(output.len(), 100, "it continues after the pause");
        let spans = &last["meta_info"]["weight_versions"];
        assert_eq!(spans.as_array().unwrap().len(), 2, "the weights changed during the stream: {spans}");
        assert_close(&entropies, &by_version(&demo, &prompt, &output, spans), 1e-4, "each under its own weights");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_weights_give_new_entropies() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let prompt = demo.encode("the lamp");
    let params = SamplingParams { ignore_eos: true, ..params(10) };
    let body = json!({"input_ids": prompt, "sampling_params": sampling(&params), "entropy_options": {"top_k": 1024}});
    let mut firsts = Vec::new();
    for version in 0..3 {
        let reply = demo.ask(&body).await;
        let (returned, output) = (all_numbers(&reply["meta_info"]["output_token_entropy"]), ids(&reply));
        let truth = |version: u64| -> Vec<f64> {
            let at =
                |at: usize| demo.engine.entropy(Position { prompt: &prompt, output: &output[..at] }, &params, version);
            (0..output.len()).map(at).collect()
        };
        assert_close(&returned, &truth(version), 1e-4, &format!("version {version}"));
        assert!((returned[0] - truth(version + 1)[0]).abs() > 1e-3, "the next weights have another entropy");
        firsts.push(returned[0]);
        let update = json!({"model_path": "elsewhere", "weight_version": format!("v{version}")});
        let answer = post(demo.proxy.control, "/update_weights_from_disk", update.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert!(firsts[0] != firsts[1] && firsts[1] != firsts[2], "{firsts:?}");
}
