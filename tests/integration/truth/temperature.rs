// SPDX-License-Identifier: Apache-2.0
//! The reported temperature and vocabulary match the numbers.

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, SamplingParams};

use crate::support::demo::{Demo, all_numbers, assert_close, few_ids, ids, numbers, sampling};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, message};

fn few() -> Option<Vec<u32>> {
    Some(few_ids("the light of the lamp comes and the sea is dark at night", false))
}

fn params(temperature: f64) -> SamplingParams {
    SamplingParams { temperature, max_new_tokens: Some(12), sampling_seed: Some(4), ..SamplingParams::default() }
}

fn body(demo: &Demo, params: &SamplingParams, options: Value) -> (Vec<u32>, Value) {
    let prompt = demo.encode("the lamp");
    let body = json!({"input_ids": prompt, "sampling_params": sampling(params), "entropy_options": options});
    (prompt, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn original_logprobs_give_the_entropy_at_temperature_1() {
    let demo = Demo::start(EngineOptions { original_logprob: true, ..EngineOptions::default() }, &[]).await;
    assert_eq!(demo.proxy.parts.upstream.borrow().original_logprobs, Some(true), "the probe detects it");
    for temperature in [0.0, 0.3, 1.0, 2.5] {
        for k in [5, 20, 1024] {
            let params = params(temperature);
            let (prompt, body) = body(&demo, &params, json!({"bounds": true, "top_k": k}));
            let reply = demo.ask(&body).await;
            let meta = &reply["meta_info"];
            assert_eq!(meta["entropy_info"]["temperature"], 1.0, "at {temperature}: {}", meta["entropy_info"]);
            assert_eq!(meta["entropy_info"].get("reason"), None, "nothing is missing");
            let at_one = SamplingParams { temperature: 1.0, ..params };
            let truth: Vec<f64> = (0..ids(&reply).len())
                .map(|at| {
                    let output = &ids(&reply)[..at];
                    let position = tokentap::demo::Position { prompt: &prompt, output };
                    demo.engine.model().entropy(position, &at_one, 0)
                })
                .collect();
            let [lower, upper] =
                ["lower", "upper"].map(|bound| all_numbers(&meta[format!("output_token_entropy_{bound}")]));
            for (at, truth) in truth.iter().enumerate() {
                let within = lower[at] - 2e-4 <= *truth && *truth <= upper[at] + 2e-4;
                assert!(within, "T={temperature} k={k}: {truth} is within [{}, {}]", lower[at], upper[at]);
            }
            if k == 1024 {
                assert_close(&all_numbers(&meta["output_token_entropy"]), &truth, 1e-4, "exact at temperature 1");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_detects_logprobs_at_the_request_temperature() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    assert_eq!(demo.proxy.parts.upstream.borrow().original_logprobs, Some(false));
    assert_eq!(demo.proxy.parts.upstream.borrow().vocab_size, Some(1024));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_vocabulary_size_the_certified_lower_bound_is_published() {
    let demo = Demo::start(EngineOptions { hide_vocab: true, ..EngineOptions::default() }, &[]).await;
    for estimator in ["estimate", "upper", "lower"] {
        let params = params(0.8);
        let (prompt, body) = body(&demo, &params, json!({"bounds": true, "estimator": estimator}));
        for reply in [demo.ask(&body).await, demo.stream(&body).await.pop().unwrap()] {
            let meta = &reply["meta_info"];
            let info = &meta["entropy_info"];
            assert_eq!((&info["estimator"], &info["vocab_size"]), (&json!("lower"), &Value::Null), "{info}");
            assert_eq!((&info["source"], &info["top_k"]), (&json!("top_k"), &json!(20)), "{info}");
            let lower = all_numbers(&meta["output_token_entropy"]);
            assert_eq!(lower, all_numbers(&meta["output_token_entropy_lower"]), "the entropy is the lower bound");
            let upper = numbers(&meta["output_token_entropy_upper"]);
            assert_eq!(upper, vec![None; lower.len()], "no upper bound without a vocabulary size");
            for (lower, truth) in lower.iter().zip(demo.entropies(&prompt, &ids(&reply), &params)) {
                assert!(*lower <= truth + 2e-4, "{lower} is below {truth}");
            }
        }
    }
    for estimator in ["renormalized", "sampled"] {
        let (_, body) = body(&demo, &params(0.8), json!({"estimator": estimator}));
        let info = &demo.ask(&body).await["meta_info"]["entropy_info"];
        assert_eq!(info["estimator"], estimator, "{estimator} needs no vocabulary");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_vocabulary_size_is_used() {
    let options = EngineOptions { hide_vocab: true, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--vocab-size", "1024"]).await;
    let params = params(1.3);
    let (prompt, body) = body(&demo, &params, json!({"bounds": true, "top_k": 1024}));
    let reply = demo.ask(&body).await;
    let meta = &reply["meta_info"];
    let info = &meta["entropy_info"];
    assert_eq!((&info["source"], &info["vocab_size"]), (&json!("exact"), &json!(1024)), "{info}");
    let truth = demo.entropies(&prompt, &ids(&reply), &params);
    assert_close(&all_numbers(&meta["output_token_entropy"]), &truth, 1e-4, "exact");
    assert_close(&all_numbers(&meta["output_token_entropy_upper"]), &truth, 1e-4, "the bounds meet");
}

/// Greedy by `top_k` at a temperature that is not 1.
fn greedy() -> SamplingParams {
    SamplingParams { top_k: Some(1), ..params(0.4) }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_k_1_request_is_sent_with_temperature_1() {
    let upstream = Upstream::start(EngineProfile::default(), |_| {
        let reply = json!({"text": "a", "output_ids": [7], "meta_info": {
            "id": "r", "finish_reason": {"type": "length", "length": 1}, "prompt_tokens": 1,
            "output_token_logprobs": [[-0.5, 7, null]], "output_top_logprobs": [[[-0.5, 7, null], [-1.5, 8, null]]],
            "completion_tokens": 1,
        }});
        FakeReply::KeepAlive(vec![message(200, &[("content-type", "application/json")], reply.to_string().as_bytes())])
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let ask = async |extra: Value| {
        let mut body = json!({"input_ids": [1], "sampling_params": sampling(&greedy())});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = crate::support::client::post(proxy.data, "/generate", body.to_string().as_bytes()).await.json();
        let asked = upstream.generations().pop().unwrap();
        (answer["meta_info"]["entropy_info"].clone(), asked)
    };
    let (info, asked) = ask(json!({})).await;
    assert_eq!(info["temperature"], 1.0, "{info}");
    assert_eq!(asked["sampling_params"]["temperature"], 1.0, "temperature 1 is sent in place of 0.4");
    assert_eq!(asked["sampling_params"]["top_k"], 1, "the argmax is still sampled");
    let (info, asked) = ask(json!({"return_logprob": true})).await;
    assert_eq!(asked["sampling_params"]["temperature"], 0.4, "requested logprobs are sent unchanged");
    assert_eq!((&info["temperature"], &info["reason"]), (&Value::Null, &json!("top_k_1")));
    let (info, asked) = ask(json!({"return_entropy": false})).await;
    assert_eq!((info, &asked["sampling_params"]["temperature"]), (Value::Null, &json!(0.4)), "nothing is forced");
}

#[tokio::test(flavor = "multi_thread")]
async fn top_k_1_entropies_are_those_of_temperature_1() {
    let demo = Demo::start(EngineOptions { allowed: few(), ..EngineOptions::default() }, &[]).await;
    let (prompt, mut body) = body(&demo, &greedy(), json!({}));
    let at_one = SamplingParams { temperature: 1.0, ..greedy() };
    let reply = demo.ask(&body).await;
    let truth = demo.entropies(&prompt, &ids(&reply), &at_one);
    let entropies = all_numbers(&reply["meta_info"]["output_token_entropy"]);
    assert_close(&entropies, &truth, 1e-4, "at temperature 1");
    let info = &reply["meta_info"]["entropy_info"];
    assert_eq!(info["temperature"], 1.0, "{info}");
    assert_eq!(info.get("reason"), None, "{info}");
    body["return_logprob"] = json!(true);
    let reply = demo.ask(&body).await;
    let info = &reply["meta_info"]["entropy_info"];
    assert_eq!((&info["temperature"], &info["reason"]), (&Value::Null, &json!("top_k_1")), "{info}");
    assert_eq!(
        all_numbers(&reply["meta_info"]["output_token_entropy"]).len(),
        truth.len(),
        "entropies are still returned"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_with_greedy_and_sampled_items_is_supported() {
    let demo = Demo::start(EngineOptions { allowed: few(), ..EngineOptions::default() }, &[]).await;
    let (prompt, mut body) = body(&demo, &greedy(), json!({}));
    let all = [greedy(), params(0.4), params(0.0)];
    body["input_ids"] = json!([prompt, prompt, prompt]);
    body["sampling_params"] = all.iter().map(sampling).collect();
    let replies = demo.ask(&body).await;
    for ((reply, params), temperature) in replies.as_array().unwrap().iter().zip(all).zip([1.0, 0.4, 1.0]) {
        let meta = &reply["meta_info"];
        assert_eq!(meta["entropy_info"]["temperature"], temperature, "{}", sampling(&params));
        let truth = demo.entropies(&prompt, &ids(reply), &SamplingParams { temperature, ..params });
        assert_close(&all_numbers(&meta["output_token_entropy"]), &truth, 1e-4, "each at its temperature");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deterministic_policy_leaves_the_temperature_unknown() {
    let one = Some(vec![300]);
    let (stop, stopped) = tokio::sync::watch::channel(tokentap::serve::connection::Phase::Serving);
    let engine = tokentap::demo::Engine::new(EngineOptions { allowed: one, ..EngineOptions::default() });
    let (addr, _) = tokentap::cli::demo::engine(engine, stopped).await.unwrap();
    let proxy = Proxy::start(addr, &[]).await;
    proxy.until(|found| found.flat).await;
    let body = json!({"input_ids": [1], "sampling_params": {"max_new_tokens": 3, "temperature": 0.5}});
    let reply = crate::support::client::post(proxy.data, "/generate", body.to_string().as_bytes()).await.json();
    assert_eq!(reply["meta_info"]["output_token_entropy"], json!([0.0, 0.0, 0.0]));
    assert_eq!(proxy.parts.upstream.borrow().original_logprobs, None, "masked tokens show no temperature");
    assert_eq!(reply["meta_info"]["entropy_info"]["temperature"], Value::Null);
    drop(stop);
}
