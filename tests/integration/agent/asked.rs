// SPDX-License-Identifier: Apache-2.0
//! Clients that request fewer or more fields than tokentap records.

use serde_json::{Value, json};
use tokentap::demo::{Dialect, EngineOptions, Streaming};

use super::harness::{Agent, Harness, SequenceReply, length};

/// Fields that a client can request and that its turn records as extras.
const EXTRAS: [&str; 5] = [
    "input_token_logprobs",
    "input_top_logprobs",
    "input_token_ids_logprobs",
    "output_top_logprobs",
    "output_token_ids_logprobs",
];

#[tokio::test(flavor = "multi_thread")]
async fn without_entropy_ids_are_recorded_and_logprobs_only_on_request() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let harness = Harness::exact(EngineOptions { streaming, ..EngineOptions::default() }).await;
        for (requested, stream) in [(false, false), (false, true), (true, false), (true, true)] {
            let session = format!("plain-{requested}-{stream}");
            let mut agent = Agent::new(&harness, &session, "What did the keeper write?");
            agent.stream = stream;
            for result in ["one", "two"] {
                let mut body = agent.body(&length(6));
                body["return_entropy"] = json!(false);
                if requested {
                    body["return_logprob"] = json!(true);
                }
                let reply = harness.ask(&session, &body).await;
                assert_eq!(reply.meta["output_token_logprobs"].is_null(), !requested, "the client has its own view");
                assert!(reply.meta["output_token_entropy"].is_null(), "the client gets no entropies");
                agent.tokens.extend(reply.output);
                agent.observe(result);
            }
            let audit = harness.audit(&session).await;
            assert_eq!(audit.samples.len(), 1);
            assert_eq!(audit.turns.len(), 2);
        }
    }
}

/// Asserts that the extras of the turn equal the fields that its client received.
async fn assert_extras(harness: &Harness, reply: &SequenceReply, seen: impl Fn(&str) -> Value, about: &str) {
    let audit = harness.audit(&reply.session).await;
    let leaf = audit.turn(&reply.rid)["turn"].as_u64().unwrap();
    let row = audit.row(leaf);
    let extras = row["turns"].as_array().unwrap().last().unwrap()["extras"].as_object().unwrap();
    for name in EXTRAS {
        let seen = seen(name);
        let is_present = seen.as_array().is_some_and(|list| !list.is_empty());
        let extra = extras.get(name);
        assert_eq!(extra, is_present.then_some(&seen), "{about}: {name}");
    }
    let more: Vec<&String> = extras.keys().filter(|name| !EXTRAS.contains(&name.as_str())).collect();
    assert!(more.is_empty(), "{about}: no other extras, but found {more:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_logprobs_are_recorded_as_the_client_received_them() {
    let plain = EngineOptions::default();
    for options in [plain.clone(), EngineOptions { dialect: Dialect::Sglang056, ..plain }] {
        let harness = Harness::exact(options.clone()).await;
        for (at, start) in [json!(null), json!(0), json!(5)].into_iter().enumerate() {
            let about = format!("{options:?}, from {start}");
            let session = format!("asked-{at}");
            let agent = Agent::new(&harness, &session, "What did the keeper write?");
            let mut body = agent.body(&length(6));
            body["sampling_params"]["sampling_seed"] = json!(5);
            body["return_logprob"] = json!(true);
            body["top_logprobs_num"] = json!(2);
            body["token_ids_logprob"] = json!([5, 7]);
            if !start.is_null() {
                body["logprob_start_len"] = start.clone();
            }
            let reply = harness.ask(&session, &body).await;
            let rows = reply.meta["output_top_logprobs"].as_array().unwrap();
            assert!(rows.iter().all(|row| row.as_array().unwrap().len() == 2), "{about}: cut to the client's own k");
            let prompt = reply.meta["input_token_logprobs"].as_array().map_or(0, Vec::len);
            let from = start.as_u64().map_or(agent.tokens.len(), |start| start as usize);
            assert!(prompt >= agent.tokens.len() - from, "{about}: {prompt} of the prompt");
            let direct = crate::support::client::post(harness.demo.direct, "/generate", body.to_string().as_bytes())
                .await
                .json();
            for name in EXTRAS {
                assert_eq!(
                    reply.meta[name], direct["meta_info"][name],
                    "{about}: {name} equals the engine's own reply"
                );
            }
            assert_extras(&harness, &reply, |name| reply.meta[name].clone(), &about).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_logprobs_of_a_stream_are_recorded_as_the_client_received_them() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let harness = Harness::exact(EngineOptions { streaming, ..EngineOptions::default() }).await;
        for start in [-1, 0] {
            let about = format!("{streaming:?}, from {start}");
            let session = format!("streamed{start}");
            let mut agent = Agent::new(&harness, &session, "What did the keeper write?");
            agent.stream = true;
            let mut body = agent.body(&length(6));
            body["return_logprob"] = json!(true);
            body["top_logprobs_num"] = json!(2);
            body["token_ids_logprob"] = json!([5, 7]);
            body["logprob_start_len"] = json!(start);
            let reply = harness.ask(&session, &body).await;
            let seen = |name: &str| match (streaming, name.starts_with("output_")) {
                (Streaming::Incremental, true) => {
                    let lists = reply.metas.iter().filter_map(|meta| meta[name].as_array());
                    Value::Array(lists.flatten().cloned().collect())
                }
                // prompt logprobs are in the first event, and later events may repeat them
                _ => reply
                    .metas
                    .iter()
                    .map(|meta| &meta[name])
                    .rfind(|value| !value.is_null())
                    .cloned()
                    .unwrap_or_default(),
            };
            assert_eq!(seen("output_top_logprobs").as_array().unwrap().len(), 6, "{about}");
            assert_extras(&harness, &reply, seen, &about).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn call_without_sampled_tokens_is_neither_trained_nor_continued() {
    let harness = Harness::exact(EngineOptions::default()).await;
    for stream in [false, true] {
        let session = format!("empty-{stream}");
        let mut agent = Agent::new(&harness, &session, "What did the keeper write?");
        agent.stream = stream;
        agent.act(&json!({"max_new_tokens": 0})).await;
        let audit = harness.audit(&session).await;
        assert_eq!(audit.refused, [(0, "empty".to_owned())]);
        agent.act(&agent.stops(3)).await;
        let audit = harness.audit(&session).await;
        assert_eq!(audit.each("parent"), [Value::Null, Value::Null]);
        assert_eq!(audit.samples.len(), 1, "the same prompt, sampled now");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_the_engine_rejects_leaves_no_turn() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&harness, "refused", "What did the keeper write?");
    for stream in [false, true] {
        agent.stream = stream;
        let body = agent.body(&json!({"max_new_tokens": 100_000}));
        let answer = harness.demo.post("/sessions/refused/generate", &body).await;
        assert!(answer.status == 400 || stream && answer.text().contains("error"), "{}", answer.text());
        let listed = crate::support::client::get(harness.demo.proxy.control, "/v1/sessions/refused").await;
        assert_eq!(listed.status, 404, "stream {stream}: {}", listed.text());
    }
    agent.act(&agent.stops(3)).await;
    assert_eq!(harness.audit("refused").await.causes(), ["first"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_cumulative_stream_records_logprobs_without_entropies() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let mut agent = Agent::new(&harness, "long", "What did the keeper write?");
    agent.stream = true;
    let mut sampling = agent.stops(5);
    sampling["max_new_tokens"] = json!(600);
    let reply = agent.act(&sampling).await;
    assert!(reply.meta["output_token_logprobs"].is_null(), "the client did not ask for them");
    let audit = harness.audit("long").await;
    assert_eq!(audit.samples[0]["turns"][0]["entropy_reason"], "cumulative_stream");
}
