// SPDX-License-Identifier: Apache-2.0
//! The plugin `tokentap-sglang`, simulated by the demo engine.

use serde_json::{Value, json};
use tokentap::demo::{Dialect, EngineOptions, Plugin, SamplingParams, Streaming};
use tokentap::engine::capabilities::PluginState;

use crate::support::binary::output;
use crate::support::client::get;
use crate::support::demo::{Demo, all_numbers, assert_close, ids, numbers, sampling};

const WITH_PLUGIN: EngineOptions = EngineOptions {
    routed_experts: false,
    ignores_experts_start: false,
    plugin: Plugin::Full,
    streaming: Streaming::Cumulative,
    dialect: Dialect::Sglang0523,
    original_logprob: false,
    hide_vocab: false,
    metrics: false,
    seed: 0,
    token_delay: None,
    allowed: None,
    journal: false,
    context_length: 4096,
};

fn params(temperature: f64) -> SamplingParams {
    SamplingParams {
        temperature,
        max_new_tokens: Some(12),
        sampling_seed: Some(4),
        ignore_eos: true,
        ..SamplingParams::default()
    }
}

/// Asserts that a generation's entropies are the engine's own, to the precision of a float32.
fn check(demo: &Demo, prompt: &[u32], params: &SamplingParams, reply: &Value, about: &str) {
    let meta = &reply["meta_info"];
    let info = &meta["entropy_info"];
    assert_eq!((&info["source"], &info["estimator"]), (&json!("exact"), &json!("exact")), "{about}: {info}");
    let temperature = params.clone().normalised().temperature;
    assert_eq!((info["temperature"].as_f64(), &info["top_k"]), (Some(temperature), &Value::Null), "{about}: {info}");
    let truth: Vec<f64> = demo.entropies(prompt, &ids(reply), params);
    assert_close(&all_numbers(&meta["output_token_entropy"]), &truth, 1e-6, about);
}

#[tokio::test(flavor = "multi_thread")]
async fn entropies_equal_those_of_the_engine() {
    let demo = Demo::start(WITH_PLUGIN, &[]).await;
    assert_eq!(demo.proxy.parts.upstream.borrow().plugin, PluginState::Exact, "the probe finds it");
    let prompt = demo.encode("the lamp");
    let bias = vec![(300, 4.0), (40, -2.0)];
    let some = [
        params(0.0),
        params(0.3),
        params(1.0),
        params(1.5),
        SamplingParams { top_k: Some(3), top_p: 0.7, min_p: 0.1, ..params(0.9) },
        SamplingParams { frequency_penalty: 1.0, presence_penalty: 0.5, repetition_penalty: 1.2, ..params(0.8) },
        SamplingParams { logit_bias: bias, min_new_tokens: 3, ..params(0.7) },
    ];
    for params in some {
        let about = sampling(&params).to_string();
        let mut body = json!({"input_ids": prompt, "sampling_params": sampling(&params)});
        check(&demo, &prompt, &params, &demo.ask(&body).await, &about);
        for event in demo.stream(&body).await {
            let list = numbers(&event["meta_info"]["output_token_entropy"]);
            assert_eq!(list.len(), ids(&event).len(), "{about}: one a token in every event");
        }
        check(&demo, &prompt, &params, demo.stream(&body).await.last().unwrap(), &about);
        body["return_logprob"] = json!(true);
        let own = demo.ask(&body).await;
        check(&demo, &prompt, &params, &own, &format!("{about}, own logprobs"));
        assert_eq!(
            own["meta_info"]["output_token_logprobs"].as_array().unwrap().len(),
            12,
            "the client's logprobs stay"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_any_type_and_length_are_exact() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let demo = Demo::start(EngineOptions { streaming, ..WITH_PLUGIN }, &[]).await;
        let prompt = demo.encode("the sea");
        // longer than the limit for top-k on a cumulative stream
        let params = SamplingParams { max_new_tokens: Some(700), ..params(1.0) };
        let events = demo.stream(&json!({"input_ids": prompt, "sampling_params": sampling(&params)})).await;
        let mut lists = events.iter().map(|event| all_numbers(&event["meta_info"]["output_token_entropy"]));
        let (output, entropies) = match streaming {
            Streaming::Cumulative => (ids(events.last().unwrap()), lists.next_back().unwrap()),
            Streaming::Incremental => (events.iter().flat_map(ids).collect(), lists.flatten().collect()),
        };
        assert_eq!(output.len(), 700);
        assert_close(&entropies, &demo.entropies(&prompt, &output, &params), 1e-6, &format!("{streaming:?}"));
        let meta = &events.last().unwrap()["meta_info"];
        assert_eq!(meta["entropy_info"]["source"], "exact");
        assert!(meta.get("output_token_logprobs").is_none(), "members that tokentap added are removed");
        let samples = json!({"input_ids": [prompt, [40, 41]], "sampling_params": {"n": 3, "max_new_tokens": 9}});
        for event in demo.stream(&samples).await {
            let meta = &event["meta_info"];
            assert_eq!(all_numbers(&meta["output_token_entropy"]).len(), ids(&event).len(), "{meta}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_batch_item_and_sample_has_its_own_entropies() {
    let demo = Demo::start(WITH_PLUGIN, &[]).await;
    let prompts = [demo.encode("the lamp"), demo.encode("a dark night")];
    let kinds = [params(0.4), SamplingParams { max_new_tokens: Some(5), ..params(1.3) }];
    let replies =
        demo.ask(&json!({"input_ids": prompts, "sampling_params": [sampling(&kinds[0]), sampling(&kinds[1])]})).await;
    for (at, reply) in replies.as_array().unwrap().iter().enumerate() {
        check(&demo, &prompts[at], &kinds[at], reply, &format!("item {at}"));
    }
    let many = SamplingParams { n: 3, ..params(1.0) };
    let replies = demo.ask(&json!({"input_ids": prompts, "sampling_params": sampling(&many)})).await;
    for (at, reply) in replies.as_array().unwrap().iter().enumerate() {
        check(&demo, &prompts[at / 3], &many, reply, &format!("sample {at}"));
    }
    let none = demo.ask(&json!({"input_ids": prompts[0]})).await;
    assert_eq!(
        none["meta_info"]["entropy_info"]["source"], "exact",
        "a request without parameters uses the plugin, too"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_need_top_k_request_it() {
    let demo = Demo::start(WITH_PLUGIN, &[]).await;
    let prompt = demo.encode("the lamp");
    // the reply, and the k that is recorded with the turn
    let ask = async |options: Value| {
        let sampling = sampling(&params(0.9));
        let body =
            json!({"input_ids": prompt, "sampling_params": sampling, "entropy_options": options, "session_id": "run"});
        let reply = demo.ask(&body).await;
        let recorded = get(demo.proxy.control, "/v1/sessions/run/trajectories").await.json();
        let newest = recorded["trajectories"].as_array().unwrap().last().unwrap();
        (reply, newest["turns"][0]["measured"]["top_k"].clone())
    };
    let (with_stats, recorded) = ask(json!({"stats": true, "bounds": true})).await;
    let meta = &with_stats["meta_info"];
    assert_eq!((&meta["entropy_info"]["source"], &meta["entropy_info"]["top_k"]), (&json!("exact"), &json!(20)));
    assert_eq!(recorded, json!(null), "no entropy is of these rows");
    let truth = demo.entropies(&prompt, &ids(&with_stats), &params(0.9));
    for list in ["output_token_entropy", "output_token_entropy_lower", "output_token_entropy_upper"] {
        assert_close(&all_numbers(&meta[list]), &truth, 1e-6, list);
    }
    assert!(all_numbers(&meta["output_token_stats"]["tail_mass"]).iter().any(|mass| *mass > 0.0), "rows were read");
    let estimators = [json!({"estimator": "renormalized"}), json!({"estimator": "lower"})];
    for (k, options) in
        [(7, json!({"top_k": 7})), (20, json!({"top_k": 20}))].into_iter().chain(estimators.map(|one| (20, one)))
    {
        let (reply, recorded) = ask(options.clone()).await;
        let info = &reply["meta_info"]["entropy_info"];
        assert_eq!((&info["source"], &info["top_k"], recorded), (&json!("top_k"), &json!(k), json!(k)), "{options}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn greedy_by_top_k_has_a_temperature() {
    let demo = Demo::start(WITH_PLUGIN, &[]).await;
    let body = |logprob: bool| json!({"text": "a", "return_logprob": logprob, "sampling_params": {"top_k": 1, "temperature": 0.5, "max_new_tokens": 3}});
    let own = demo.ask(&body(true)).await;
    let info = &own["meta_info"]["entropy_info"];
    assert_eq!((&info["temperature"], info.get("reason")), (&json!(0.5), None), "the plugin divides by it: {info}");
    let forced = demo.ask(&body(false)).await;
    assert_eq!(forced["meta_info"]["entropy_info"]["temperature"], 1.0, "as it is without the plugin");
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_plugin_loses_the_entropies_of_one_reply_and_is_disabled() {
    for (plugin, lost) in [(Plugin::Mute, "missing"), (Plugin::Short, "misaligned")] {
        let demo = Demo::start(EngineOptions { plugin, ..WITH_PLUGIN }, &[]).await;
        let body = json!({"text": "the lamp", "sampling_params": {"max_new_tokens": 6}});
        let first = demo.ask(&body).await;
        let meta = &first["meta_info"];
        assert_eq!(numbers(&meta["output_token_entropy"]), vec![None; 6], "{plugin:?}");
        let info = &meta["entropy_info"];
        assert_eq!((&info["source"], &info["reason"]), (&json!("none"), &json!("missing_values")), "{plugin:?}");
        let counted = format!("tokentap_exact_lost_total{{reason=\"{lost}\"}}");
        assert_eq!(demo.proxy.metric(&counted).await, 1.0, "{plugin:?}");
        let skipped = "tokentap_entropy_skipped_total{reason=\"missing_values\"}";
        assert_eq!(demo.proxy.metric(skipped).await, 1.0, "{plugin:?}");
        let second = demo.ask(&body).await;
        assert_eq!(
            second["meta_info"]["entropy_info"]["source"], "top_k",
            "{plugin:?}: the next request has estimates"
        );
        // a request with its own top-k rows falls back to estimates
        let demo = Demo::start(EngineOptions { plugin, ..WITH_PLUGIN }, &[]).await;
        let mut own = body.clone();
        (own["return_logprob"], own["top_logprobs_num"]) = (json!(true), json!(5));
        let reply = demo.ask(&own).await;
        let info = &reply["meta_info"]["entropy_info"];
        assert_eq!((&info["source"], &info["estimator"]), (&json!("top_k"), &json!("estimate")), "{plugin:?}: {info}");
        assert_eq!(all_numbers(&reply["meta_info"]["output_token_entropy"]).len(), 6);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_plugin_is_not_used_and_check_reports_why() {
    for (options, expected) in [
        (EngineOptions { plugin: Plugin::TopK(20), ..WITH_PLUGIN }, "TOKENTAP_ENTROPY_TOP_K"),
        (EngineOptions { plugin: Plugin::Absent, ..WITH_PLUGIN }, "the plugin `python/tokentap-sglang`"),
        (EngineOptions { dialect: Dialect::Sglang056, ..WITH_PLUGIN }, "estimates from top-k"),
        (WITH_PLUGIN, "inside the engine"),
    ] {
        let demo = Demo::start(options.clone(), &[]).await;
        let reply = demo.ask(&json!({"text": "the lamp", "sampling_params": {"max_new_tokens": 3}})).await;
        let source = if options == WITH_PLUGIN { "exact" } else { "top_k" };
        assert_eq!(reply["meta_info"]["entropy_info"]["source"], source, "{options:?}");
        let upstream = format!("http://{}", demo.direct);
        let done = output(&["check", "--upstream", &upstream]).await;
        let text = String::from_utf8(done.stdout).unwrap();
        let line = text.lines().find(|line| line.contains("exact")).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains(expected), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trajectories_and_metrics_have_the_exact_entropies() {
    let demo = Demo::start(WITH_PLUGIN, &[]).await;
    let body = json!({"input_ids": [299, 467], "sampling_params": {"max_new_tokens": 6, "temperature": 0.7}});
    let reply = demo
        .ask(&json!({"session_id": "run", "input_ids": body["input_ids"], "sampling_params": body["sampling_params"]}))
        .await;
    let answer = get(demo.proxy.control, "/v1/sessions/run/trajectories").await.json();
    let path = &answer["trajectories"][0];
    let text = path.to_string();
    assert!(text.contains("\"source\":\"exact\"") && text.contains("\"estimator\":\"exact\""), "{text}");
    let entropies = all_numbers(&reply["meta_info"]["output_token_entropy"]);
    let recorded: Vec<f64> = numbers(&path["entropy"]).into_iter().flatten().collect();
    assert_close(&recorded, &entropies, 0.0, "the recorded entropies equal those of the reply");
    let count = "tokentap_token_entropy_nats_count{model_name=\"tokentap-demo\",estimator=\"exact\"}";
    assert_eq!(demo.proxy.metric(count).await, 6.0);
}
