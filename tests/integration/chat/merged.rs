// SPDX-License-Identifier: Apache-2.0
//! SGLang 0.5.6 with `--stream-output`: a merged event lists only the ids of its last part.

use serde_json::{Value, json};
use tokentap::chat::model::Chats;
use tokentap::demo::Model;
use tokentap::tokenizer::Renderer;

use super::super::support::client::{get, post};
use super::super::support::proxy::Proxy;
use super::super::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, stream};
use super::TOKENIZER;

/// A stream of two events; the second merges all tokens after the first. It has logprobs if they were requested.
fn merged(asked: &UpstreamRequest, ids: &[u32], text: &str) -> FakeReply {
    let body = asked.json();
    let wants_logprobs = body["return_logprob"] == true;
    let event = |count: usize, listed: &[u32], finish: Value| {
        let rows: Vec<Value> = ids[..count].iter().map(|id| json!([-0.5, id, null])).collect();
        let mut meta = json!({"id": body["rid"], "finish_reason": finish, "completion_tokens": count,
            "prompt_tokens": body["input_ids"].as_array().map_or(3, Vec::len), "cached_tokens": 0});
        if wants_logprobs {
            meta["output_token_logprobs"] = json!(rows);
        }
        let object = json!({"text": text, "output_ids": listed, "meta_info": meta});
        format!("data: {object}\n\n").into_bytes()
    };
    let first = event(1, &ids[..1], Value::Null);
    let last = event(ids.len(), &ids[ids.len() - 1..], json!({"type": "length", "length": ids.len()}));
    stream(&[&first, &last, b"data: [DONE]\n\n"])
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_missing_from_a_merged_event_are_returned() {
    let renderer = Renderer::new(Model::folder());
    let text = "The lamp is lit.";
    let ids = renderer.tokenizer().encode(text).unwrap();
    assert!(ids.len() > 3);
    let sampled = ids.clone();
    let profile = EngineProfile {
        streaming: "ids",
        flat: false,
        server_info: json!({"sampling_defaults": "openai"}),
        ..EngineProfile::default()
    };
    let upstream = Upstream::start(profile, move |asked: &UpstreamRequest| merged(asked, &sampled, text)).await;
    let proxy = Proxy::probed(upstream.addr, &["--tokenizer", TOKENIZER]).await;
    let mut chats = proxy.parts.chats.clone();
    drop(chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());
    for (endpoint, asked) in [
        ("chat/completions", json!({"messages": [{"role": "user", "content": "Is it?"}]})),
        ("completions", json!({"model": "m", "prompt": [5, 6, 7]})),
    ] {
        let mut asked = asked;
        (asked["stream"], asked["return_token_ids"]) = (json!(true), json!(true));
        for entropy in [true, false] {
            asked["return_entropy"] = json!(entropy);
            let path = format!("/sessions/s/v1/{endpoint}");
            let events = post(proxy.data, &path, asked.to_string().as_bytes()).await.events();
            let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
            let token_ids: Vec<&Value> =
                choices.iter().filter_map(|choice| choice["token_ids"].as_array()).flatten().collect();
            assert_eq!(json!(token_ids), json!(ids), "{endpoint}");
            if endpoint == "chat/completions" {
                let content: String = choices.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
                assert_eq!(content, text);
            }
            assert!(choices.iter().all(|choice| choice["logprobs"].is_null()), "logprobs were not requested");
        }
    }
    let list = get(proxy.control, "/v1/sessions/s").await.json()["list"].take();
    for turn in list.as_array().unwrap() {
        assert_eq!((&turn["fault"], &turn["sampled_tokens"]), (&Value::Null, &json!(ids.len())), "{turn}");
    }
}
