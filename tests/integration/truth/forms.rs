// SPDX-License-Identifier: Apache-2.0
//! Flat logprobs that a client requested, and requests that the engine rejects.

use serde_json::{Value, json};
use tokentap::demo::{Dialect, SamplingParams, Streaming};

use super::shapes::{Shape, check, engine};
use crate::support::client::post;
use crate::support::demo::{Demo, all_numbers, ids, sampling};

/// Requests for flat logprobs; engines reject them with streaming.
fn flat(text: &Value, sampling: &Value) -> Vec<Shape> {
    let [output, input, base64] = tokentap::engine::sglang::request::FLAT;
    let body = |more: Value| {
        let mut body = json!({"text": text, "stream": false, "return_logprob": true, "sampling_params": sampling});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    vec![
        Shape { name: "flat", body: body(json!({output: true, "top_logprobs_num": 3})) },
        Shape { name: "flat in base64", body: body(json!({output: true, base64: true, "top_logprobs_num": 3})) },
        Shape { name: "flat and wide", body: body(json!({output: true, base64: true, "top_logprobs_num": 40})) },
        Shape { name: "flat without top logprobs", body: body(json!({output: true, base64: true})) },
        Shape {
            name: "flat on both sides",
            body: body(json!({output: true, input: true, "top_logprobs_num": 20, "logprob_start_len": 0})),
        },
        Shape {
            name: "flat prompt, nested output",
            body: body(json!({input: true, base64: true, "top_logprobs_num": 25, "logprob_start_len": 0})),
        },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn flat_logprobs_of_the_client_are_unchanged() {
    let demo = Demo::start(engine(Dialect::Sglang0523, Streaming::Cumulative), &[]).await;
    let sampling = json!({"max_new_tokens": 7, "temperature": 0.9, "sampling_seed": 11});
    for text in [json!("the lamp"), json!(["the lamp", "the sea"])] {
        for shape in flat(&text, &sampling) {
            check(&demo, &shape).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_k_shared_with_prompt_logprobs_is_unchanged() {
    let demo = Demo::start(engine(Dialect::Sglang0523, Streaming::Cumulative), &[]).await;
    let params = SamplingParams { max_new_tokens: Some(9), sampling_seed: Some(1), ..SamplingParams::default() };
    let prompt = demo.encode("the lamp");
    for stream in [false, true] {
        let body = json!({
            "input_ids": prompt, "stream": stream, "sampling_params": sampling(&params), "entropy_options": {"bounds": true},
            "return_logprob": true, "top_logprobs_num": 2, "logprob_start_len": 0,
        });
        let reply = if stream { demo.stream(&body).await.pop().unwrap() } else { demo.ask(&body).await };
        let meta = &reply["meta_info"];
        assert_eq!(meta["entropy_info"]["top_k"], 2, "the k that was used: {}", meta["entropy_info"]);
        let bound = |name: &str| all_numbers(&meta[format!("output_token_entropy_{name}")]);
        let truth = demo.entropies(&prompt, &ids(&reply), &params);
        for ((lower, upper), truth) in bound("lower").iter().zip(bound("upper")).zip(truth) {
            assert!(lower - 2e-4 <= truth && truth <= upper + 2e-4, "{truth} is within [{lower}, {upper}]");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_errors_are_forwarded_unchanged() {
    let sampling = |more: Value| {
        let mut sampling = json!({"max_new_tokens": 3});
        sampling.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sampling
    };
    for dialect in [Dialect::Sglang0523, Dialect::Sglang056] {
        let demo = Demo::start(engine(dialect, Streaming::Cumulative), &[]).await;
        for body in [
            json!({"text": "a", "sampling_params": sampling(json!({"temperature": -1.0}))}),
            json!({"text": "a", "sampling_params": sampling(json!({"top_p": 0.0}))}),
            json!({"text": "a", "sampling_params": sampling(json!({"no_such_member": 1}))}),
            json!({"text": "a", "sampling_params": sampling(json!({"max_new_tokens": 100_000}))}),
            json!({"text": "a", "sampling_params": sampling(json!({"regex": "a+"}))}),
            json!({"text": ["a", "b"], "return_logprob": [true, false], "sampling_params": sampling(json!({"n": 2}))}),
            json!({"text": ["a", "b"], "rid": ["one"], "sampling_params": sampling(json!({}))}),
            json!({"text": "a", "return_logprob": "yes"}),
            json!({"sampling_params": sampling(json!({}))}),
            json!({"text": 5}),
            json!([1, 2]),
        ] {
            for stream in [false, true] {
                let mut body = body.clone();
                if let (true, Some(object)) = (stream, body.as_object_mut()) {
                    object.insert("stream".into(), json!(true));
                }
                let direct = post(demo.direct, "/generate", body.to_string().as_bytes()).await;
                let through = demo.post("/generate", &body).await;
                assert_eq!((through.status, through.text()), (direct.status, direct.text()), "{dialect:?}: {body}");
                assert!(direct.status >= 400 || direct.text().contains("error"), "the engine refuses {body}");
            }
        }
    }
}
