// SPDX-License-Identifier: Apache-2.0
//! sglang-jax: forcing on its streams, training of its turns, and the report of `check`.

use serde_json::{Value, json};

use crate::support::binary::output;
use crate::support::client::{get, post};
use crate::support::engine;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream};

fn jax(server_info: Value) -> EngineProfile {
    EngineProfile { jax: true, flat: false, server_info, ..EngineProfile::default() }
}

async fn start(server_info: Value, flags: &[&str]) -> (Upstream, Proxy) {
    let upstream = Upstream::start(jax(server_info), engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, flags).await;
    (upstream, proxy)
}

/// The faults of a session after one call with `body`.
async fn faults(server_info: Value, body: Value) -> Value {
    let (_upstream, proxy) = start(server_info, &[]).await;
    let answer = post(proxy.data, "/sessions/s/generate", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let session = get(proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(session["turns"], 1, "{session}");
    session["list"][0]["fault"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_is_trained_if_its_ids_are_verified() {
    let plain = json!({"input_ids": [1, 2, 3]});
    assert_eq!(faults(json!({}), plain.clone()).await, "ids_unverified", "output_ids of a tokenizer's engine");
    assert_eq!(faults(json!({"skip_tokenizer_init": true}), plain.clone()).await, Value::Null, "raw output_ids");
    let mut asked = plain.clone();
    asked["return_logprob"] = json!(true);
    assert_eq!(faults(json!({}), asked).await, Value::Null, "the ids of the logprobs");
    let mut forced = plain;
    forced["return_entropy"] = json!(true);
    assert_eq!(faults(json!({}), forced).await, Value::Null, "the ids of forced logprobs");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_is_forced_only_with_the_overlap_schedule() {
    let request = json!({"input_ids": [1, 2, 3], "stream": true, "return_entropy": true});
    for (server_info, forced) in [
        (json!({"disable_overlap_schedule": false}), true),
        (json!({"disable_overlap_schedule": true}), false),
        (json!({"disable_overlap_schedule": false, "multimodal": true}), false),
        (json!({"disable_overlap_schedule": false, "disaggregation_mode": "decode"}), false),
        (json!({}), false),
    ] {
        let (upstream, proxy) = start(server_info.clone(), &[]).await;
        let events = post(proxy.data, "/generate", request.to_string().as_bytes()).await.events();
        let sent = upstream.generations().pop().unwrap();
        assert_eq!(sent["return_logprob"] == true, forced, "{server_info}: {sent}");
        let info = &events.last().unwrap()["meta_info"]["entropy_info"];
        let expected = if forced { ("top_k", Value::Null) } else { ("none", json!("jax_stream")) };
        assert_eq!((info["source"].as_str().unwrap(), info["reason"].clone()), expected, "{server_info}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_no_flag_that_sglang_jax_lacks() {
    let upstream = Upstream::start(jax(json!({})), engine::answer).await;
    let done = output(&["check", "--upstream", &format!("http://{}", upstream.addr)]).await;
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("cumulative") && text.contains("sglang-jax supports no other mode"), "{text}");
    assert!(!text.contains("--incremental-streaming-output"), "{text}");
}
