// SPDX-License-Identifier: Apache-2.0
//! One entropy per token id, however a sequence ends and however its text is split.

use serde_json::{Value, json};
use tokentap::demo::{Dialect, EngineOptions, SamplingParams, Streaming};

use crate::support::demo::{Demo, all_numbers, assert_close, few_ids, ids, sampling};

fn engines(allowed: &[u32]) -> Vec<EngineOptions> {
    let plain = EngineOptions { allowed: Some(allowed.to_vec()), ..EngineOptions::default() };
    vec![
        EngineOptions { streaming: Streaming::Incremental, ..plain.clone() },
        EngineOptions { dialect: Dialect::Sglang056, ..plain.clone() },
        plain,
    ]
}

/// Sends a request with and without streaming, and checks that each object has one true entropy per id. Returns the complete reply.
async fn check(demo: &Demo, prompt: &[u32], params: &SamplingParams, about: &str) -> Value {
    let body = json!({"input_ids": prompt, "sampling_params": sampling(params)});
    let whole = demo.ask(&body).await;
    let returned = all_numbers(&whole["meta_info"]["output_token_entropy"]);
    assert_close(&returned, &demo.entropies(prompt, &ids(&whole), params), 1e-4, about);
    let (mut output, mut streamed) = (Vec::new(), Vec::new());
    for event in demo.stream(&body).await {
        let (new, numbers) = (ids(&event), all_numbers(&event["meta_info"]["output_token_entropy"]));
        assert_eq!(numbers.len(), new.len(), "{about}: one number for each id in {event}");
        if demo.engine.options().streaming == Streaming::Cumulative {
            (output, streamed) = (Vec::new(), Vec::new());
        }
        output.extend(new);
        streamed.extend(numbers);
    }
    assert_eq!(output, ids(&whole), "{about}: the stream has the same ids");
    assert_close(&streamed, &returned, 1e-6, &format!("{about}: the stream has the same numbers"));
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_tokens_have_an_entropy() {
    let allowed = few_ids("the light of the lamp comes and the sea is dark at night", true);
    for options in engines(&allowed) {
        let demo = Demo::start(options, &[]).await;
        let prompt = demo.encode("the lamp");
        let mut stops = 0;
        for seed in 0..12 {
            for no_stop_trim in [false, true] {
                let params = SamplingParams {
                    temperature: 1.6,
                    sampling_seed: Some(seed),
                    stop_token_ids: allowed[..2].to_vec(),
                    min_new_tokens: seed % 4,
                    max_new_tokens: Some(20),
                    no_stop_trim,
                    ..SamplingParams::default()
                };
                let reply = check(&demo, &prompt, &params, &format!("seed {seed}")).await;
                stops += usize::from(reply["meta_info"]["finish_reason"]["type"] == "stop");
            }
        }
        assert!(stops > 12, "{stops} of 24 stopped at a token");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_strings_cut_text_but_not_entropies() {
    let allowed = few_ids("the light of the lamp comes and the sea is dark at night", false);
    for options in engines(&allowed) {
        let demo = Demo::start(options, &[]).await;
        let prompt = demo.encode("the lamp");
        let mut stops = 0;
        for seed in 0..12 {
            for no_stop_trim in [false, true] {
                let params = SamplingParams {
                    temperature: 1.2,
                    sampling_seed: Some(seed),
                    stop: ["e s", "night and", "mp", "sss"].map(str::to_owned).to_vec(),
                    max_new_tokens: Some(24),
                    stream_interval: Some(1 + seed as usize % 3),
                    no_stop_trim,
                    ..SamplingParams::default()
                };
                let reply = check(&demo, &prompt, &params, &format!("seed {seed}")).await;
                stops += usize::from(reply["meta_info"]["finish_reason"]["matched"].is_string());
            }
        }
        assert!(stops > 6, "{stops} of 24 stopped at a string");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_zero_and_one_token_have_matching_entropies() {
    let allowed = few_ids("the light of the lamp comes and the sea is dark at night", false);
    for options in engines(&allowed) {
        let demo = Demo::start(options, &[]).await;
        let prompt = demo.encode("the lamp");
        for tokens in [0, 1] {
            let params =
                SamplingParams { max_new_tokens: Some(tokens), sampling_seed: Some(1), ..SamplingParams::default() };
            let reply = check(&demo, &prompt, &params, &format!("max_new_tokens {tokens}")).await;
            let meta = &reply["meta_info"];
            assert_eq!(all_numbers(&meta["output_token_entropy"]).len() as i64, tokens);
            let info = &meta["entropy_info"];
            let source = if tokens == 0 { "none" } else { "top_k" };
            assert_eq!((&info["source"], info["mean"].is_null()), (&json!(source), tokens == 0), "{info}");
            let body = json!({
                "text": ["the lamp", "the sea"], "return_logprob": [true, false], "sampling_params": sampling(&params),
                "entropy_options": {"bounds": true, "stats": true},
            });
            for item in demo.ask(&body).await.as_array().unwrap() {
                let meta = &item["meta_info"];
                let rank = all_numbers(&meta["output_token_stats"]["rank"]);
                let upper = all_numbers(&meta["output_token_entropy_upper"]);
                assert_eq!((rank.len() as i64, upper.len() as i64), (tokens, tokens), "{item}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_split_over_tokens_keep_all_entropies() {
    let split = few_ids("🙂é世a", false);
    assert!(split.len() > 6, "each character is several tokens: {split:?}");
    for options in engines(&split) {
        let demo = Demo::start(options, &[]).await;
        let prompt = demo.encode("🙂");
        for seed in 0..12 {
            let params = SamplingParams {
                max_new_tokens: Some(1 + seed),
                sampling_seed: Some(seed),
                temperature: 3.0,
                stream_interval: Some(1 + seed as usize % 2),
                ..SamplingParams::default()
            };
            let reply = check(&demo, &prompt, &params, &format!("seed {seed}")).await;
            assert_eq!(ids(&reply).len() as i64, 1 + seed);
        }
    }
}
