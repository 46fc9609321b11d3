// SPDX-License-Identifier: Apache-2.0
//! Requests of every shape: the reply is the engine's plus the true entropies of its tokens, with and without streaming.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokentap::demo::{Dialect, EngineOptions, SamplingParams, Streaming};

use crate::support::client::post;
use crate::support::demo::{Demo, all_numbers, assert_close, few_ids, ids};

/// The added members of an answer. Members that differ in each run are removed: times, generated ids, and cached tokens.
const OWN: [&str; 5] = [
    "output_token_entropy",
    "entropy_info",
    "output_token_entropy_lower",
    "output_token_entropy_upper",
    "output_token_stats",
];
const UNREPEATABLE: [&str; 4] = ["e2e_latency", "response_sent_to_client_ts", "cached_tokens", "cached_tokens_details"];

/// All allowed ids are among the top 20, so that entropies are exact.
pub fn engine(dialect: Dialect, streaming: Streaming) -> EngineOptions {
    let allowed = Some(few_ids("the light of the lamp comes and the sea is dark at night", true));
    EngineOptions { dialect, streaming, allowed, ..EngineOptions::default() }
}

/// A request and its name.
pub struct Shape {
    pub name: &'static str,
    pub body: Value,
}

fn shapes(demo: &Demo) -> Vec<Shape> {
    let one = json!({"max_new_tokens": 7, "temperature": 0.9, "sampling_seed": 11});
    let three = json!([
        {"max_new_tokens": 1, "temperature": 0.4, "sampling_seed": 1},
        {"max_new_tokens": 9, "temperature": 1.7, "sampling_seed": 2, "ignore_eos": true},
        {"max_new_tokens": 5, "temperature": 0, "sampling_seed": 3},
    ]);
    let mut two_each = one.clone();
    two_each["n"] = json!(2);
    let mut in_threes = one.clone();
    (in_threes["stream_interval"], in_threes["ignore_eos"]) = (json!(3), json!(true));
    let texts = json!(["the lamp", "at night the sea", "a"]);
    let [a, b, c] = ["the lamp", "at night the sea", "a"].map(|text| json!(demo.encode(text)));
    let shape = |name, body| Shape { name, body };
    vec![
        shape("a text", json!({"text": "the lamp", "sampling_params": one})),
        shape("ids", json!({"input_ids": a, "sampling_params": one})),
        shape("texts", json!({"text": texts, "sampling_params": one})),
        shape("a batch of one", json!({"text": ["the sea"], "sampling_params": one})),
        shape("lists of ids", json!({"input_ids": [a, b, c], "sampling_params": one})),
        shape("two samples", json!({"text": "the lamp", "sampling_params": two_each})),
        shape("two samples of each text", json!({"text": texts, "sampling_params": two_each})),
        shape("two samples of each list of ids", json!({"input_ids": [c, a], "sampling_params": two_each})),
        shape("separate parameters", json!({"text": texts, "sampling_params": three})),
        shape("a rid", json!({"text": "the lamp", "rid": "mine", "sampling_params": one})),
        shape("a rid for a batch", json!({"text": texts, "rid": "ours", "sampling_params": one})),
        shape("rids", json!({"text": texts, "rid": ["x", "y", "z-"], "sampling_params": three})),
        shape("logprobs", json!({"text": "the lamp", "return_logprob": true, "sampling_params": one})),
        shape("logprobs of all", json!({"text": texts, "return_logprob": true, "sampling_params": three})),
        shape("logprobs of one", json!({"text": texts, "return_logprob": [true, false, true], "sampling_params": one})),
        shape(
            "separate top logprobs",
            json!({"text": texts, "return_logprob": [true, false, true], "top_logprobs_num": [3, 0, 50], "sampling_params": three}),
        ),
        shape(
            "a larger k",
            json!({"text": "the lamp", "return_logprob": true, "top_logprobs_num": 30, "sampling_params": one}),
        ),
        shape(
            "samples with logprobs",
            json!({"text": texts, "return_logprob": true, "top_logprobs_num": 2, "sampling_params": two_each}),
        ),
        shape(
            "logprobs of ids",
            json!({"text": texts, "return_logprob": true, "token_ids_logprob": [[1, 2], [3], [4]], "sampling_params": one}),
        ),
        shape(
            "prompt logprobs with a k that shows everything",
            json!({"text": "the lamp", "return_logprob": true, "top_logprobs_num": 20, "logprob_start_len": 0, "sampling_params": one}),
        ),
        shape(
            "companions of logprobs without logprobs",
            json!({"text": "the lamp", "top_logprobs_num": 3, "logprob_start_len": 0, "token_ids_logprob": [5], "sampling_params": one}),
        ),
        shape(
            "logprobs with texts",
            json!({"text": "the lamp", "return_logprob": true, "top_logprobs_num": 2, "return_text_in_logprobs": true, "sampling_params": one}),
        ),
        shape("three tokens an event", json!({"text": texts, "sampling_params": in_threes})),
        shape(
            "bounds and statistics",
            json!({"text": texts, "entropy_options": {"bounds": true, "stats": true}, "sampling_params": two_each}),
        ),
    ]
}

/// The object without members that tokentap adds or that differ between calls.
fn repeatable(object: &Value, has_rid: bool) -> Value {
    let mut object = object.clone();
    let meta = object["meta_info"].as_object_mut().unwrap();
    meta.retain(|key, _| {
        !OWN.contains(&key.as_str()) && !UNREPEATABLE.contains(&key.as_str()) && (has_rid || key != "id")
    });
    object
}

/// The objects of a reply or stream, by sequence.
fn by_sequence(objects: Vec<Value>) -> BTreeMap<u64, Vec<Value>> {
    let mut sequences = BTreeMap::<u64, Vec<Value>>::new();
    for object in objects {
        sequences.entry(object["index"].as_u64().unwrap_or(0)).or_default().push(object);
    }
    sequences
}

fn items(reply: Value) -> Vec<Value> {
    match reply {
        Value::Array(items) => items,
        single => vec![single],
    }
}

/// The prompt and parameters of each sequence, as the engine reads the request.
fn sequences(demo: &Demo, body: &Value) -> Vec<(Vec<u32>, SamplingParams)> {
    let list =
        |value: &Value, is_one: bool| if is_one { vec![value.clone()] } else { value.as_array().unwrap().clone() };
    let prompts: Vec<Vec<u32>> = match &body["input_ids"] {
        Value::Null => list(&body["text"], body["text"].is_string())
            .iter()
            .map(|text| demo.encode(text.as_str().unwrap()))
            .collect(),
        given => {
            list(given, given[0].is_number()).into_iter().map(|ids| serde_json::from_value(ids).unwrap()).collect()
        }
    };
    let mut found = Vec::new();
    for (at, prompt) in prompts.into_iter().enumerate() {
        let params = &body["sampling_params"];
        let params = params.get(at).unwrap_or(params);
        let temperature = params["temperature"].as_f64().unwrap();
        for _ in 0..params["n"].as_u64().unwrap_or(1) {
            found.push((prompt.clone(), SamplingParams { temperature, ..SamplingParams::default() }));
        }
    }
    found
}

/// Sends a request with and without streaming, directly and through tokentap.
pub async fn check(demo: &Demo, shape: &Shape) -> usize {
    let Shape { name, body } = shape;
    let has_rid = !body["rid"].is_null();
    let mut plain = body.clone();
    plain.as_object_mut().unwrap().remove("entropy_options");
    let direct = items(post(demo.direct, "/generate", plain.to_string().as_bytes()).await.json());
    let reply = demo.ask(body).await;
    assert_eq!(
        reply.is_array(),
        direct.len() > 1 || body["text"].is_array() || body["input_ids"][0].is_array(),
        "{name}"
    );
    let through = items(reply);
    assert_eq!(through.len(), direct.len(), "{name}: as many items");
    let expected = sequences(demo, body);
    let mut entropies = Vec::new();
    for (at, (through, direct)) in through.iter().zip(&direct).enumerate() {
        assert_eq!(repeatable(through, has_rid), repeatable(direct, has_rid), "{name}: item {at} is the engine's own");
        let (prompt, params) = &expected[at];
        let returned = all_numbers(&through["meta_info"]["output_token_entropy"]);
        let truth = demo.entropies(prompt, &ids(through), params);
        assert_close(&returned, &truth, 1e-4, &format!("{name}: item {at}"));
        assert_eq!(
            through["meta_info"]["entropy_info"]["temperature"],
            if params.temperature == 0.0 { 1.0 } else { params.temperature }
        );
        entropies.push(returned);
    }
    if body["stream"].is_null() {
        stream(demo, shape, &plain, &entropies).await;
    }
    entropies.iter().map(Vec::len).sum()
}

async fn stream(demo: &Demo, shape: &Shape, plain: &Value, entropies: &[Vec<f64>]) {
    let Shape { name, body } = shape;
    let has_rid = !body["rid"].is_null();
    let options = demo.engine.options();
    let incremental = options.streaming == Streaming::Incremental;
    let mut plain = plain.clone();
    plain["stream"] = json!(true);
    let direct = by_sequence(post(demo.direct, "/generate", plain.to_string().as_bytes()).await.events());
    let through = by_sequence(demo.stream(body).await);
    assert_eq!(through.len(), entropies.len(), "{name}: as many streams as items");
    for (index, events) in &through {
        let about = format!("{name}: stream {index}");
        let (mut returned, mut tokens) = (Vec::new(), 0);
        let theirs: Vec<Value> = direct[index].iter().map(|event| repeatable(event, has_rid)).collect();
        let ours: Vec<Value> = events.iter().map(|event| repeatable(event, has_rid)).collect();
        assert_eq!(ours, theirs, "{about}: the events are the engine's own");
        for event in events {
            let meta = &event["meta_info"];
            let new = all_numbers(&meta["output_token_entropy"]);
            assert_eq!(new.len(), ids(event).len(), "{about}: as many numbers as ids in {event}");
            if !incremental {
                returned.clear();
            }
            returned.extend(new);
            tokens = tokens.max(meta["completion_tokens"].as_u64().unwrap());
            assert_eq!(returned.len() as u64, tokens, "{about}: every token so far has an entropy in {event}");
            let is_last = !meta["finish_reason"].is_null();
            assert_eq!(
                meta.get("entropy_info").is_some(),
                is_last,
                "{about}: entropy_info comes with the finish reason"
            );
            for member in
                ["output_token_entropy_lower", "output_token_entropy_upper"].iter().filter_map(|key| meta.get(key))
            {
                assert_eq!(member.as_array().unwrap().len(), ids(event).len(), "{about}: one bound for each token");
            }
            for (key, list) in meta.get("output_token_stats").and_then(Value::as_object).into_iter().flatten() {
                assert_eq!(list.as_array().unwrap().len(), ids(event).len(), "{about}: one {key} for each token");
            }
        }
        let index = usize::try_from(*index).unwrap();
        assert_close(&returned, &entropies[index], 1e-6, &format!("{about} equals the complete reply"));
        let mean = events.last().unwrap()["meta_info"]["entropy_info"]["mean"].as_f64().unwrap();
        let expected = returned.iter().sum::<f64>() / returned.len() as f64;
        assert_close(&[mean], &[expected], 1e-5, &format!("{about}: mean"));
    }
}

async fn check_all(dialect: Dialect, streaming: Streaming) {
    let demo = Demo::start(engine(dialect, streaming), &[]).await;
    let mut tokens = 0;
    for shape in shapes(&demo) {
        tokens += check(&demo, &shape).await;
    }
    assert!(tokens > 200, "{tokens} tokens were compared");
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_match_the_engine_with_true_entropies_added() {
    check_all(Dialect::Sglang0523, Streaming::Cumulative).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_match_the_engine_with_incremental_streams() {
    check_all(Dialect::Sglang0523, Streaming::Incremental).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_match_the_older_engine() {
    check_all(Dialect::Sglang056, Streaming::Cumulative).await;
}
