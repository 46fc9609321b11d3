// SPDX-License-Identifier: Apache-2.0
//! Requests that are known to crash a server are rejected with the field's name; similar valid requests pass.

use serde_json::json;

use crate::support::client::{get, post};
use crate::support::engine;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream};

/// A body, and the text that the error must contain.
const REFUSED: &[(&str, &str)] = &[
    (r#"{"text":""}"#, "text"),
    (r#"{"text":["a",""]}"#, "text[1]"),
    (r#"{"input_ids":[[1],[]]}"#, "input_ids[1]"),
    (r#"{"input_ids":[1,151936]}"#, "input_ids: 151936"),
    (r#"{"input_ids":[[1],[-1]]}"#, "input_ids: -1"),
    (r#"{"input_ids":[1,99999999999999999999]}"#, "input_ids"),
    (r#"{"input_ids":[[[1]]]}"#, "input_ids"),
    (r#"{"input_ids":[1.0,200000.0]}"#, "input_ids"),
    (r#"{"text":"a","input_ids":[151936]}"#, "input_ids"),
    (r#"{"text":"a","sampling_params":{"temperature":NaN}}"#, "sampling_params: NaN"),
    (r#"{"text":"a","sampling_params":{"top_p":-Infinity}}"#, "sampling_params"),
    (r#"{"text":"a","sampling_params":{"temperature":1e999}}"#, "sampling_params: 1e999"),
    (r#"{"text":"a","anything":[{"deep":Infinity}]}"#, "anything"),
    (r#"{"text":"a","rid":NaN}"#, "rid"),
    (r#"{"text":["a","b"],"rid":["r","r"]}"#, "rid"),
    (r#"{"text":"a","rid":["r"]}"#, "rid"),
    (r#"{"text":"a","top_logprobs_num":151937}"#, "top_logprobs_num: 151937 is above the vocabulary"),
    (r#"{"text":"a","top_logprobs_num":2000}"#, "the limit of tokentap"),
    (r#"{"text":["a","b"],"top_logprobs_num":[1,2000]}"#, "top_logprobs_num"),
    (r#"{"text":"a","top_logprobs_num":[5]}"#, "top_logprobs_num"),
    (r#"{"text":"a","return_logprob":true,"logprob_start_len":-5}"#, "logprob_start_len"),
    (r#"{"text":"a","return_logprob":true,"logprob_start_len":[0]}"#, "logprob_start_len"),
    (r#"{"text":"a","return_logprob":true,"token_ids_logprob":[1,151936]}"#, "valid range is [0, 151936)"),
    (r#"{"text":["a","b"],"return_logprob":true,"token_ids_logprob":[[1],[-1]]}"#, "token_ids_logprob"),
    (r#"{"text":"a","sampling_params":{"top_k":8589934592}}"#, "top_k"),
    (r#"{"text":"a","sampling_params":{"logit_bias":{"5":1e39}}}"#, "logit_bias"),
    (r#"{"text":"a","text":""}"#, "text"),
    ("{\"\\u0074ext\":\"\"}", "text"),
    ("\u{feff}{\"text\":\"\"}", "text"),
    ("{\0\"\0t\0e\0x\0t\0", "UTF-8"),
    (r#"{"input_ids":["200000"]}"#, "input_ids"),
    (r#"{"text":"a","top_logprobs_num":200000.0}"#, "top_logprobs_num"),
    (r#"{"text":"a","top_logprobs_num":"200000"}"#, "top_logprobs_num"),
    (r#"{"text":"a","return_logprob":1,"token_ids_logprob":[200000]}"#, "token_ids_logprob"),
    (r#"{"text":"a","return_logprob":true,"token_ids_logprob":[200000.0]}"#, "token_ids_logprob"),
    (r#"{"text":"a","sampling_params":{"top_k":99999999999999999999}}"#, "top_k"),
    (r#"{"text":"a","entropy_options":{"estimator":"magic"}}"#, "entropy_options.estimator"),
    (r#"{"text":"a","entropy_options":{"topk":5}}"#, "entropy_options"),
    (r#"{"text":"a","entropy_options":{"top_k":0}}"#, "entropy_options.top_k"),
    (r#"{"text":"a","entropy_options":{"top_k":1025}}"#, "the limit of tokentap"),
    (r#"{"text":"a","entropy_options":[]}"#, "entropy_options"),
    (r#"{"text":"a","entropy_options":{"bounds":"yes"}}"#, "entropy_options"),
];

/// Similar bodies that must pass.
const PASSED: &[&str] = &[
    r#"{"text":"NaN, Infinity and 1e999"}"#,
    r#"{"text":"a","x":1e308}"#,
    r#"{"input_ids":[0,151935]}"#,
    r#"{"text":["a","b"],"rid":["r","s"]}"#,
    r#"{"text":["a","b"],"rid":"r"}"#,
    r#"{"text":["a","b"],"top_logprobs_num":[1,1024],"return_logprob":true}"#,
    r#"{"text":"a","top_logprobs_num":-1,"return_logprob":true}"#,
    r#"{"text":"a","token_ids_logprob":[999999]}"#,
    r#"{"text":"a","logprob_start_len":-5}"#,
    r#"{"text":"","text":"a"}"#,
    r#"{"text":"a","entropy_options":null}"#,
    r#"{"text":[]}"#,
];

#[tokio::test(flavor = "multi_thread")]
async fn fatal_requests_return_400_with_the_name_of_the_field() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    for (body, named) in REFUSED {
        let answer = post(proxy.data, "/generate", body.as_bytes()).await;
        assert_eq!(answer.status, 400, "{body}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(named), "{body}: {message}");
    }
    assert!(upstream.generations().is_empty(), "no rejected request was forwarded");
    for body in PASSED {
        let answer = post(proxy.data, "/generate", body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    }
    assert_eq!(upstream.generations().len(), PASSED.len());
    assert_eq!(proxy.metric("tokentap_guard_refusals_total{rule=\"non_finite\"}").await, 5.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_deep_json_is_rejected_and_invalid_json_is_forwarded() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let deep = format!("{{\"text\":\"a\",\"x\":{}{}}}", "[".repeat(200), "]".repeat(200));
    assert_eq!(post(proxy.data, "/generate", deep.as_bytes()).await.status, 400);
    for body in ["", "[1,2]", "{\"text\":", "\"text\"", "{\"text\":\"a\"} x"] {
        post(proxy.data, "/generate", body.as_bytes()).await;
        let asked = upstream.asked();
        assert_eq!(asked.last().unwrap().body, body.as_bytes(), "{body:?} is forwarded unchanged");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_guard_forwards_everything() {
    let upstream =
        Upstream::start(EngineProfile::default(), |_| crate::support::upstream::json_message(200, b"{}")).await;
    let proxy = Proxy::probed(upstream.addr, &["--no-guard"]).await;
    for (body, _) in REFUSED.iter().filter(|(body, _)| !body.contains("entropy_options")) {
        assert_eq!(post(proxy.data, "/generate", body.as_bytes()).await.status, 200, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn running_rid_is_rejected_until_it_ends() {
    let upstream = Upstream::start(EngineProfile::default(), |asked| match asked.json()["text"] == "wait" {
        true => FakeReply::Silence,
        false => engine::answer(asked),
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let body = json!({"text": "wait", "rid": "mine"}).to_string();
    let data = proxy.data;
    let first = tokio::spawn(async move { post(data, "/generate", body.as_bytes()).await });
    while !proxy.parts.generator.context.flights.is_live("mine") {
        tokio::task::yield_now().await;
    }
    let second = json!({"text": "a", "rid": "mine"}).to_string();
    let answer = post(proxy.data, "/generate", second.as_bytes()).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("mine"), "{}", answer.text());
    let batch = json!({"text": ["a", "b"], "rid": ["other", "mine"]}).to_string();
    assert_eq!(post(proxy.data, "/generate", batch.as_bytes()).await.status, 400);
    let samples = json!({"text": "a", "rid": "mine", "sampling_params": {"n": 2}}).to_string();
    assert_eq!(post(proxy.data, "/generate", samples.as_bytes()).await.status, 200, "samples get separate ids");
    first.abort();
    while proxy.parts.generator.context.flights.is_live("mine") {
        tokio::task::yield_now().await;
    }
    assert_eq!(post(proxy.data, "/generate", second.as_bytes()).await.status, 200, "the id is free again");
}

#[tokio::test(flavor = "multi_thread")]
async fn embedding_engine_gets_no_generation() {
    let upstream = Upstream::start(EngineProfile { embeds: true, ..EngineProfile::default() }, engine::answer).await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    proxy.until(|found| found.generates == Some(false)).await;
    let answer = post(proxy.data, "/generate", br#"{"text":"a"}"#).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("embedding model"), "{}", answer.text());
    assert_eq!(upstream.generations().len(), 0, "nothing went upstream");
    let ready = get(proxy.control, "/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("embedding model"), "{}", ready.text());
}
