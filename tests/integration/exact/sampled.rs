// SPDX-License-Identifier: Apache-2.0
//! The estimator `sampled`: the entropy of the distribution that tokens were drawn from, after top-k, top-p and min-p.

use serde_json::{Value, json};
use tokentap::demo::{Dialect, EngineOptions, SamplingParams, Streaming};

use crate::support::demo::{Demo, all_numbers, assert_close, ids, numbers, sampling};

/// The entropies of the filtered distributions, from the engine's full ones and a second implementation of the filters.
fn truth(demo: &Demo, prompt: &[u32], output: &[u32], params: &SamplingParams) -> Vec<f64> {
    let params = params.clone().normalised();
    let entropy = |at: usize| {
        if params.is_greedy() {
            return 0.0;
        }
        let mut sorted = demo.distribution(prompt, output, at, &params);
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted.truncate(params.top_k.unwrap());
        let (most, mut before, mut kept) = (sorted[0], 0.0, Vec::new());
        for p in sorted {
            if before >= params.top_p || p < most * params.min_p {
                break;
            }
            before += p;
            kept.push(p);
        }
        let mass: f64 = kept.iter().sum();
        kept.iter().filter(|p| **p > 0.0).map(|p| -(p / mass) * (p / mass).ln()).sum()
    };
    (0..output.len()).map(entropy).collect()
}

fn params() -> SamplingParams {
    SamplingParams {
        temperature: 0.9,
        top_k: Some(12),
        max_new_tokens: Some(10),
        sampling_seed: Some(8),
        ignore_eos: true,
        ..SamplingParams::default()
    }
}

fn body(prompt: &[u32], params: &SamplingParams) -> Value {
    json!({"input_ids": prompt, "sampling_params": sampling(params), "entropy_options": {"estimator": "sampled"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn finite_top_k_is_exact() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let prompt = demo.encode("the lamp");
    for params in [
        params(),
        SamplingParams { top_p: 0.6, ..params() },
        SamplingParams { min_p: 0.2, temperature: 1.7, ..params() },
        SamplingParams { temperature: 0.0, top_k: None, ..params() },
        SamplingParams { top_k: Some(1), temperature: 1.0, ..params() },
        SamplingParams { top_k: Some(1024), ..params() },
    ] {
        let about = sampling(&params).to_string();
        let whole = demo.ask(&body(&prompt, &params)).await;
        let events = demo.stream(&body(&prompt, &params)).await;
        for reply in [&whole, events.last().unwrap()] {
            let meta = &reply["meta_info"];
            let info = &meta["entropy_info"];
            assert_eq!((&info["source"], &info["estimator"]), (&json!("exact"), &json!("sampled")), "{about}: {info}");
            let truth = truth(&demo, &prompt, &ids(reply), &params);
            assert_close(&all_numbers(&meta["output_token_entropy"]), &truth, 1e-5, &about);
            let remaining: Vec<&String> = meta
                .as_object()
                .unwrap()
                .keys()
                .filter(|key| key.contains("sampling") || key.contains("logprob"))
                .collect();
            assert_eq!(remaining, Vec::<&String>::new(), "{about}: members that tokentap added are removed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn incremental_streams_and_batches_are_exact() {
    let options = EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() };
    let demo = Demo::start(options, &[]).await;
    let prompts = [demo.encode("the lamp"), demo.encode("a dark night")];
    let events = demo.stream(&body(&prompts[0], &params())).await;
    let output: Vec<u32> = events.iter().flat_map(ids).collect();
    let entropies: Vec<f64> =
        events.iter().flat_map(|event| all_numbers(&event["meta_info"]["output_token_entropy"])).collect();
    assert_close(&entropies, &truth(&demo, &prompts[0], &output, &params()), 1e-5, "a stream");
    let mut batch = body(&prompts[0], &SamplingParams { n: 2, ..params() });
    batch["input_ids"] = json!(prompts);
    for (at, reply) in demo.ask(&batch).await.as_array().unwrap().iter().enumerate() {
        let truth = truth(&demo, &prompts[at / 2], &ids(reply), &params());
        assert_close(&all_numbers(&reply["meta_info"]["output_token_entropy"]), &truth, 1e-5, &format!("item {at}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unbounded_support_has_no_entropy_and_a_reason() {
    let open = SamplingParams { top_k: None, ..params() };
    let older = EngineOptions { dialect: Dialect::Sglang056, ..EngineOptions::default() };
    for (options, params) in [(EngineOptions::default(), open.clone()), (older, params())] {
        let demo = Demo::start(options, &[]).await;
        let reply = demo.ask(&body(&demo.encode("the lamp"), &params)).await;
        let meta = &reply["meta_info"];
        let info = &meta["entropy_info"];
        assert_eq!((&info["source"], &info["reason"]), (&json!("none"), &json!("open_support")), "{info}");
        assert_eq!(numbers(&meta["output_token_entropy"]), vec![None; 10]);
    }
    // one estimator applies to all items of a batch
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let mixed = json!({"input_ids": [[40, 41], [42, 43]], "sampling_params": [sampling(&params()), sampling(&open)],
        "entropy_options": {"estimator": "sampled"}});
    for reply in demo.ask(&mixed).await.as_array().unwrap() {
        assert_eq!(reply["meta_info"]["entropy_info"]["reason"], "open_support");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_sampling_masks_are_returned_unchanged() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let prompt = demo.encode("the lamp");
    let mut own = body(&prompt, &params());
    own["return_sampling_mask"] = json!(true);
    let selected = demo.ask(&own).await;
    assert_eq!(
        selected["meta_info"]["entropy_info"]["reason"], "open_support",
        "the sampled token's logprob alone is not enough"
    );
    assert_eq!(all_numbers(&selected["meta_info"]["output_token_sampling_logprobs"]).len(), 10);
    own["sampling_logprobs_mode"] = json!("support");
    let support = demo.ask(&own).await;
    let meta = &support["meta_info"];
    assert_eq!(meta["entropy_info"]["source"], "exact");
    assert_eq!(meta["output_token_sampling_mask"].as_array().map(Vec::len), Some(10), "the client requested it");
    let truth = truth(&demo, &prompt, &ids(&support), &params());
    assert_close(&all_numbers(&meta["output_token_entropy"]), &truth, 1e-5, "of the client's own masks");
}
