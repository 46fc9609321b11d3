// SPDX-License-Identifier: Apache-2.0
//! Token columns from a real server's recordings, in exports, on the control port, in gRPC and from the log.

use std::net::SocketAddr;

use base64_simd::STANDARD;
use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, SamplingParams, Streaming};
use tokentap::serve::grpc::pb::{Column, SamplesRequest, TokenRange, samples_reply};

use super::chat::Chat;
use super::grpc::client::trajectories;
use super::support::binary::{Binary, output};
use super::support::client::{get, post};
use super::support::demo::Demo;
use super::support::fixture::Fixture;
use super::support::proxy::Proxy;
use super::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, message};

/// The ids of the prompt of the recordings.
const PROMPT: [u32; 5] = [785, 6722, 315, 9625, 374];

/// An engine that replies to each generation with `body`.
async fn engine(streaming: &'static str, streams: bool, body: Vec<u8>) -> Upstream {
    let profile = EngineProfile { streaming, tokenizes: true, ..EngineProfile::default() };
    let kind = if streams { "text/event-stream" } else { "application/json" };
    Upstream::start(profile, move |asked: &UpstreamRequest| match asked.path.as_str() {
        "/tokenize" => json_message(200, json!({"tokens": PROMPT, "count": PROMPT.len()}).to_string().as_bytes()),
        _ => FakeReply::KeepAlive(vec![message(200, &[("content-type", kind)], &body)]),
    })
    .await
}

pub(crate) async fn recorded_engine(name: &str) -> (Upstream, Fixture) {
    let recorded = Fixture::named(&format!("sglang-0.5.23/{name}"));
    let streaming = if name.starts_with("incremental") { "incremental" } else { "cumulative" };
    (engine(streaming, recorded.is_stream(), recorded.reply.clone()).await, recorded)
}

/// The masks of a recording, in the order of the tokens.
pub(crate) fn masks(recorded: &Fixture, is_incremental: bool) -> Vec<Vec<u32>> {
    let mut lists = recorded.objects().into_iter().map(|object| {
        serde_json::from_value::<Vec<Vec<u32>>>(object["meta_info"]["output_token_sampling_mask"].clone()).unwrap()
    });
    if is_incremental { lists.flatten().collect() } else { lists.next_back().unwrap() }
}

/// The lists of a ragged column of u32.
fn ragged(data: &[u8], tokens: usize) -> Vec<Vec<u32>> {
    let mut numbers = data.chunks(4).map(|number| u32::from_le_bytes(number.try_into().unwrap()));
    let counts: Vec<u32> = numbers.by_ref().take(tokens).collect();
    let lists = counts.iter().map(|count| numbers.by_ref().take(*count as usize).collect()).collect();
    assert_eq!(numbers.next(), None);
    lists
}

/// Checks the only column of a row in JSON.
pub(crate) fn check(row: &Value, masks: &[Vec<u32>], about: &str) {
    let [column] = &row["columns"].as_array().unwrap()[..] else { panic!("{about}: {row}") };
    assert_eq!((&column["name"], &column["type"]), (&json!("sampling_mask"), &json!("u32")), "{about}");
    let end = PROMPT.len() + masks.len();
    assert_eq!(column["tokens"], json!([{"start": PROMPT.len(), "end": end}]), "{about}");
    assert_eq!(column["shape"], Value::Null, "{about}");
    let data = STANDARD.decode_to_vec(column["data"].as_str().unwrap()).unwrap();
    assert_eq!(ragged(&data, masks.len()), masks, "{about}");
}

pub(crate) async fn jsonl(control: SocketAddr, session: &str) -> Value {
    let body = json!({"sessions": [session], "format": "jsonl"});
    let answer = post(control, "/v1/samples", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

#[tokio::test]
async fn sampling_mask_of_each_kind_of_reply_is_a_column() {
    for name in ["default/mask-topk20", "default/mask-stream", "incremental/stream-mask"] {
        let (upstream, recorded) = recorded_engine(name).await;
        let masks = masks(&recorded, name.starts_with("incremental"));
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let answer = post(proxy.data, "/sessions/s/generate", &recorded.body).await;
        assert!(answer.text().contains("output_token_sampling_mask"), "{name}: the client gets its masks");
        let row = jsonl(proxy.control, "s").await;
        check(&row, &masks, name);
        assert_eq!(row["turns"][0]["missing_columns"], json!([]), "{name}");
        assert!(!row["turns"][0]["extras"].to_string().contains("sampling_mask"), "{name}: {row}");
        let entries = get(proxy.control, "/v1/sessions/s/trajectories").await.json();
        check(&entries["trajectories"][0], &masks, name);
    }
}

#[tokio::test]
async fn refused_mask_is_no_column() {
    let recorded = Fixture::named("sglang-0.5.23/default/mask-no-topk");
    let body = recorded.reply.clone();
    let upstream = Upstream::start(EngineProfile::default(), move |_| json_message(400, &body)).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    assert_eq!(post(proxy.data, "/sessions/s/generate", &recorded.body).await.status, 400);
    assert_eq!(get(proxy.control, "/v1/sessions/s/trajectories").await.status, 404);
}

/// A reply for two prompts with two samples each, whose masks name the sequence.
#[tokio::test]
async fn each_sequence_of_a_batch_has_its_own_column() {
    let object = |at: u32| {
        json!({"text": "", "output_ids": [7, 8 + at], "meta_info": {"id": format!("r{at}"),
            "finish_reason": {"type": "length", "length": 2}, "prompt_tokens": 2, "completion_tokens": 2,
            "output_token_logprobs": [[-0.5, 7, null], [-0.5, 8 + at, null]],
            "output_token_sampling_mask": [[7], [8 + at, at]]}})
    };
    let reply: Vec<Value> = (0..4).map(object).collect();
    let upstream = engine("cumulative", false, json!(reply).to_string().into_bytes()).await;
    let proxy = Proxy::probed(upstream.addr, &["--entropy", "off"]).await;
    let body = json!({"input_ids": [[1, 2], [3, 4]], "return_sampling_mask": true, "return_logprob": true,
        "sampling_params": {"n": 2, "max_new_tokens": 2, "top_k": 4}});
    let answer = post(proxy.data, "/sessions/s/generate", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let entries = get(proxy.control, "/v1/sessions/s/trajectories").await.json();
    let paths = entries["trajectories"].as_array().unwrap();
    assert_eq!(paths.len(), 4, "{entries}");
    for path in paths {
        let at = path["token_ids"][3].as_u64().unwrap() as u32 - 8;
        let data = STANDARD.decode_to_vec(path["columns"][0]["data"].as_str().unwrap()).unwrap();
        assert_eq!(ragged(&data, 2), [vec![7], vec![8 + at, at]]);
    }
}

#[tokio::test]
async fn payload_that_does_not_fit_is_kept_as_text_with_a_reason() {
    for (mask, reason) in [(json!([[7]]), "length"), (json!([[7], "x"]), "encoding")] {
        let reply = json!({"text": "", "output_ids": [7, 8], "meta_info": {"id": "r", "prompt_tokens": 2,
            "finish_reason": {"type": "length", "length": 2}, "completion_tokens": 2,
            "output_token_logprobs": [[-0.5, 7, null], [-0.5, 8, null]], "output_token_sampling_mask": mask}});
        let upstream = engine("cumulative", false, reply.to_string().into_bytes()).await;
        let proxy = Proxy::probed(upstream.addr, &["--entropy", "off"]).await;
        let body = json!({"input_ids": [1, 2], "return_sampling_mask": true, "return_logprob": true,
            "sampling_params": {"max_new_tokens": 2, "top_k": 4}});
        post(proxy.data, "/sessions/s/generate", body.to_string().as_bytes()).await;
        let row = jsonl(proxy.control, "s").await;
        assert_eq!(row["columns"], json!([]));
        assert_eq!(row["flags"], json!(["column_missing"]));
        assert_eq!(row["turns"][0]["missing_columns"], json!([{"name": "sampling_mask", "reason": reason}]));
        assert_eq!(row["turns"][0]["extras"], json!({"output_token_sampling_mask": mask}).to_string());
        assert_eq!(row["loss_mask"], json!([0, 0, 1, 1]), "the tokens are trained");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_samples_and_turns_have_the_column() {
    let (upstream, recorded) = recorded_engine("default/mask-topk20").await;
    let masks = masks(&recorded, false);
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    post(proxy.data, "/sessions/s/generate", &recorded.body).await;
    let mut client = trajectories(proxy.control).await;
    let asked = SamplesRequest { sessions: vec!["s".into()], ..SamplesRequest::default() };
    let mut replies = client.samples(asked).await.unwrap().into_inner();
    let Some(samples_reply::What::Sample(sample)) = replies.message().await.unwrap().unwrap().what else {
        panic!("a sample")
    };
    let [Column { name, r#type, tokens, ragged: true, shape, data }] = &sample.columns[..] else {
        panic!("{:?}", sample.columns)
    };
    assert_eq!((name.as_str(), r#type.as_str(), shape.len()), ("sampling_mask", "u32", 0));
    assert_eq!(tokens[..], [TokenRange { start: 5, end: 13 }]);
    assert_eq!(ragged(data, masks.len()), masks);
    assert!(sample.turns[0].columns.is_empty(), "they are in the sample");
}

/// A restart and an export of the log, with every columnar format.
#[tokio::test(flavor = "multi_thread")]
async fn column_survives_a_restart_and_is_exported_from_the_log() {
    let (upstream, recorded) = recorded_engine("incremental/stream-mask").await;
    let masks = masks(&recorded, true);
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().to_str().unwrap();
    let binary = Binary::with_flags(upstream.addr, &["--data-dir", log]).await;
    post(binary.data, "/sessions/s/generate", &recorded.body).await;
    let before = jsonl(binary.control, "s").await;
    check(&before, &masks, "before");
    binary.kill();
    let binary = Binary::with_flags(upstream.addr, &["--data-dir", log]).await;
    let after = jsonl(binary.control, "s").await;
    assert_eq!((&after["columns"], &after["row_key"]), (&before["columns"], &before["row_key"]));
    binary.kill();
    let done = output(&["export", "--format", "jsonl", "--out", "-", "--data-dir", log]).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    check(&serde_json::from_slice(&done.stdout).unwrap(), &masks, "export");
}

/// Sampling masks and top-k rows that no client asks for, in whole and streamed replies, with and without entropies.
#[tokio::test]
async fn masks_and_likeliest_tokens_of_clients_that_did_not_ask_are_columns() {
    for (streaming, entropy) in
        [(Streaming::Cumulative, "on"), (Streaming::Incremental, "off"), (Streaming::Incremental, "on")]
    {
        let flags = ["--columns", "sampling_mask,top_logprobs", "--top-logprobs", "6", "--entropy", entropy];
        let demo = Demo::start(EngineOptions { streaming, ..EngineOptions::default() }, &flags).await;
        let prompt = demo.encode("The ship went down the river");
        for (session, stream) in [("whole", false), ("streamed", true)] {
            let about = format!("{streaming:?}, entropies {entropy}, {session}");
            let params = json!({"max_new_tokens": 6, "temperature": 0.8, "top_k": 4, "top_p": 0.9});
            let body = json!({"input_ids": prompt, "stream": stream, "sampling_params": params});
            let answer = demo.post(&format!("/sessions/{session}/generate"), &body).await;
            let text = answer.text();
            assert!(!text.contains("sampling_mask") && !text.contains("logprobs"), "{about}: {text}");
            let row = jsonl(demo.proxy.control, session).await;
            let turn = &row["turns"][0];
            assert_eq!((&turn["missing_columns"], &turn["extras"]), (&json!([]), &Value::Null), "{about}");
            let columns = row["columns"].as_array().unwrap();
            let data = |name: &str| {
                let column =
                    columns.iter().find(|column| column["name"] == name).unwrap_or_else(|| panic!("{about}: {name}"));
                STANDARD.decode_to_vec(column["data"].as_str().unwrap()).unwrap()
            };
            let numbers = |bytes: &[u8]| {
                bytes.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect::<Vec<u32>>()
            };
            let tokens: Vec<u32> = serde_json::from_value(row["token_ids"].clone()).unwrap();
            let sampled = &tokens[prompt.len()..];
            let masks = ragged(&data("sampling_mask"), sampled.len());
            let (ids, logprobs) = (numbers(&data("top_ids")), numbers(&data("top_logprobs")));
            assert_eq!((ids.len(), logprobs.len()), (6 * sampled.len(), 6 * sampled.len()), "{about}");
            let params = SamplingParams { temperature: 0.8, top_k: Some(4), top_p: 0.9, ..SamplingParams::default() };
            for (at, id) in sampled.iter().enumerate() {
                assert!(masks[at].contains(id) && masks[at].len() <= 4, "{about}: token {at}");
                let truth = demo.distribution(&prompt, sampled, at, &params);
                for (id, logprob) in ids
                    .chunks(6)
                    .zip(logprobs.chunks(6))
                    .nth(at)
                    .map(|(ids, logprobs)| ids.iter().zip(logprobs))
                    .unwrap()
                {
                    let expected = truth[*id as usize].ln();
                    assert!(
                        (f64::from(f32::from_bits(*logprob)) - expected).abs() < 1e-4,
                        "{about}: token {at}, id {id}"
                    );
                }
                let likeliest = (0..truth.len()).max_by(|a, b| truth[*a].total_cmp(&truth[*b])).unwrap();
                assert_eq!(ids[6 * at] as usize, likeliest, "{about}: token {at}");
            }
        }
    }
}

#[tokio::test]
async fn mask_of_an_unlimited_support_is_not_requested() {
    let demo = Demo::start(EngineOptions::default(), &["--columns", "sampling_mask"]).await;
    let prompt = demo.encode("The ship");
    let body = json!({"input_ids": prompt, "sampling_params": {"max_new_tokens": 3}});
    assert_eq!(demo.post("/sessions/s/generate", &body).await.status, 200);
    let row = jsonl(demo.proxy.control, "s").await;
    assert_eq!(row["turns"][0]["missing_columns"], json!([{"name": "sampling_mask", "reason": "open_support"}]));
}

/// The masks of the only turn of a row, each of which has its token and at most three others.
fn masks_of(row: &Value, about: &str) -> Vec<Vec<u32>> {
    let [column] = &row["columns"].as_array().unwrap()[..] else { panic!("{about}: {row}") };
    let ids: Vec<u32> = serde_json::from_value(row["token_ids"].clone()).unwrap();
    let prompt = usize::try_from(row["prompt_length"].as_u64().unwrap()).unwrap();
    assert_eq!(column["name"], "sampling_mask", "{about}");
    assert_eq!(column["tokens"], json!([{"start": prompt, "end": ids.len()}]), "{about}");
    let data = STANDARD.decode_to_vec(column["data"].as_str().unwrap()).unwrap();
    let masks = ragged(&data, ids.len() - prompt);
    for (id, mask) in ids[prompt..].iter().zip(&masks) {
        assert!(mask.contains(id) && mask.len() <= 4, "{about}: token {id}, mask {mask:?}");
    }
    masks
}

/// Only a chat completion that asks for its masks gets them. tokentap asks for those of the others, whose requests to the engine it writes.
#[tokio::test(flavor = "multi_thread")]
async fn masks_of_chats_are_columns_and_in_the_reply_of_those_that_ask() {
    let chat = Chat::start(&["--columns", "sampling_mask"]).await;
    let demo = &chat.demo;
    for (api, asks) in [("chat/completions", false), ("messages", false), ("chat/completions", true)] {
        for stream in [false, true] {
            let about = format!("{api}, asks {asks}, stream {stream}");
            let session = format!("{}-{asks}-{stream}", api.len());
            let mut body = json!({"model": "m", "max_tokens": 6, "temperature": 0.8, "top_k": 4, "ignore_eos": true,
                "stream": stream, "messages": [{"role": "user", "content": "How far does the light go?"}]});
            if asks {
                (body["return_sampling_mask"], body["return_meta_info"]) = (json!(true), json!(true));
            }
            let answer = demo.post(&format!("/sessions/{session}/v1/{api}"), &body).await;
            assert_eq!(answer.status, 200, "{about}: {}", answer.text());
            let row = jsonl(demo.proxy.control, &session).await;
            assert_eq!(row["turns"][0]["missing_columns"], json!([]), "{about}");
            let masks = masks_of(&row, &about);
            assert_eq!(masks.len(), 6, "{about}");
            assert_eq!(answer.text().contains("sampling_mask"), asks, "{about}: {}", answer.text());
            if asks {
                let objects = if stream { answer.events() } else { vec![answer.json()] };
                // the engine streams the masks of new tokens
                let lists = objects.iter().filter_map(|object| {
                    object.pointer("/choices/0/meta_info/output_token_sampling_mask")?.as_array().cloned()
                });
                assert_eq!(json!(lists.flatten().collect::<Vec<Value>>()), json!(masks), "{about}");
            }
        }
    }
    let without_meta =
        json!({"messages": [{"role": "user", "content": "hi"}], "top_k": 4, "return_sampling_mask": true});
    let refused = demo.post("/v1/chat/completions", &without_meta).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("return_sampling_mask requires return_meta_info=true."), "{}", refused.text());
}
