// SPDX-License-Identifier: Apache-2.0
//! Members of `meta_info` that the client requested are kept with the turn.

use serde_json::{Value, json};

use super::support::client::{events, get, post};
use super::support::fixture::Fixture;
use super::support::proxy::Proxy;
use super::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, message, stream};

/// The extras of the turns of session `s`, in order.
async fn extras(proxy: &Proxy) -> Vec<Value> {
    let list = get(proxy.control, "/v1/sessions/s/trajectories").await.json()["trajectories"].take();
    let turns = list.as_array().unwrap().iter().flat_map(|path| path["turns"].as_array().unwrap());
    let mut turns: Vec<&Value> = turns.collect();
    turns.sort_by_key(|turn| turn["id"].as_u64());
    turns.into_iter().map(|turn| turn["extras"].clone()).collect()
}

/// The recorded stream has only the numbers of the new tokens in each event.
#[tokio::test]
async fn members_of_all_events_are_kept_if_the_client_requested_them() {
    let recorded = Fixture::named("sglang-0.5.23/incremental/stream-mask");
    let body = recorded.reply.clone();
    let profile = EngineProfile { streaming: "incremental", tokenizes: true, ..EngineProfile::default() };
    let upstream = Upstream::start(profile, move |asked: &UpstreamRequest| match asked.path.as_str() {
        "/tokenize" => json_message(200, br#"{"tokens":[785,6722,315,9625,374],"count":5}"#),
        _ => FakeReply::KeepAlive(vec![message(200, &[("content-type", "text/event-stream")], &body)]),
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let answer = post(proxy.data, "/sessions/s/generate", &recorded.body).await;
    let events: Vec<Value> = events(&answer.body).iter().map(|event| serde_json::from_slice(event).unwrap()).collect();
    let extras = extras(&proxy).await;
    let name = "output_token_sampling_logprobs";
    let rows: Vec<&Value> = events.iter().flat_map(|event| event["meta_info"][name].as_array().unwrap()).collect();
    assert_eq!((rows.len(), &extras[0]), (7, &json!({ name: rows })), "the mask is a token column");
}

/// SGLang sends the hidden states of all tokens in each event.
#[tokio::test]
async fn hidden_states_are_kept_if_the_client_requested_them() {
    let state = |tokens: usize| json!((0..tokens).map(|at| [at as f64, -0.5]).collect::<Vec<_>>());
    let upstream = Upstream::start(EngineProfile { streaming: "incremental", ..EngineProfile::default() }, {
        move |asked: &UpstreamRequest| {
            let body = asked.json();
            let object = |ids: &[u32], count: usize, finish: Value| {
                let hidden = if body["return_hidden_states"] == true { state(count) } else { Value::Null };
                json!({"text": "", "output_ids": ids, "meta_info": {"id": body["rid"], "finish_reason": finish,
                    "prompt_tokens": 3, "completion_tokens": count, "hidden_states": hidden}})
            };
            let finish = json!({"type": "length", "length": 2});
            if body["stream"] == true {
                let [first, last] = [object(&[8], 1, Value::Null), object(&[9], 2, finish)];
                return stream(&[format!("data: {first}\n\ndata: {last}\n\ndata: [DONE]\n\n").as_bytes()]);
            }
            json_message(200, object(&[8, 9], 2, finish).to_string().as_bytes())
        }
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &["--entropy", "off"]).await;
    for (at, (asks, streams)) in [(true, false), (true, true), (false, false)].into_iter().enumerate() {
        let body = json!({"input_ids": [5, 6, 7 + at], "return_hidden_states": asks, "stream": streams});
        let answer = post(proxy.data, "/sessions/s/generate", body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let kept = json!({ "hidden_states": state(2) });
    assert_eq!(extras(&proxy).await, [kept.clone(), kept, json!({})]);
}
