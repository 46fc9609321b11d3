// SPDX-License-Identifier: Apache-2.0
//! Compares entropies of recorded exchanges with a reference: the same weights in float64 over the whole vocabulary.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::oracle::measure as naive;
use crate::recordings::{Replay, recordings};
use crate::support::client::Answer;
use crate::support::fixture::Fixture;

const VOCAB: u32 = 151_936;
/// Rounding error of float32 on both sides, in nats.
const SLACK: f64 = 2e-4;

/// The numbers of one sequence, from its events or its only object.
#[derive(Debug, Default)]
struct Numbers {
    entropy: Vec<f64>,
    lower: Vec<f64>,
    upper: Vec<f64>,
    rows: Vec<Vec<f32>>,
    chosen: Vec<f32>,
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect()
}

/// The top-k rows of an object, in either format.
fn rows(meta: &Value) -> Vec<Vec<f32>> {
    let f32s = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect::<Vec<_>>();
    if let Some(shape) = meta["output_top_logprobs_shape"].as_array() {
        let k = shape[1].as_u64().unwrap() as usize;
        let flat = match meta["output_top_logprobs_val_flat_b64"].as_str() {
            Some(text) => {
                let raw = base64_simd::STANDARD.decode_to_vec(text).unwrap();
                raw.chunks(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect()
            }
            None => f32s(floats(&meta["output_top_logprobs_val_flat"])),
        };
        return flat.chunks(k).map(<[f32]>::to_vec).collect();
    }
    let row =
        |row: &Value| row.as_array().map(|row| f32s(row.iter().map(|triple| triple[0].as_f64().unwrap()).collect()));
    meta["output_top_logprobs"].as_array().into_iter().flatten().map(|entry| row(entry).unwrap_or_default()).collect()
}

/// The sequences of an answer, by index.
fn sequences(fixture: &Fixture, answer: &Answer) -> BTreeMap<usize, Numbers> {
    let incremental = fixture.name.contains("/incremental/");
    let objects = if fixture.is_stream() {
        answer.events()
    } else {
        answer.json().as_array().cloned().unwrap_or_else(|| vec![answer.json()])
    };
    let mut found: BTreeMap<usize, Numbers> = BTreeMap::new();
    for (at, object) in objects.iter().enumerate() {
        let index = if fixture.is_stream() { object["index"].as_u64().unwrap_or(0) as usize } else { at };
        let numbers = found.entry(index).or_default();
        if !incremental {
            *numbers = Numbers::default();
        }
        let meta = &object["meta_info"];
        numbers.entropy.extend(floats(&meta["output_token_entropy"]));
        numbers.lower.extend(floats(&meta["output_token_entropy_lower"]));
        numbers.upper.extend(floats(&meta["output_token_entropy_upper"]));
        numbers.rows.extend(rows(meta));
        let chosen = meta["output_token_logprobs"].as_array().into_iter().flatten();
        numbers.chosen.extend(chosen.map(|triple| triple[0].as_f64().unwrap_or(f64::NAN) as f32));
    }
    found
}

#[derive(Debug, Default)]
struct Errors {
    positions: usize,
    estimate: f64,
    renormalized: f64,
    width: f64,
    outside: f64,
}

/// Replays every recording of a server and adds its errors to `by_k`.
async fn measure(server: &str, incremental: bool, by_k: &mut BTreeMap<u64, Errors>) {
    let replay = Replay::start(server, incremental, &[]).await;
    for fixture in recordings(server, incremental) {
        let mut body = fixture.request();
        let k = body["top_logprobs_num"].as_u64().unwrap_or(0);
        let Some(truth) = fixture.truth.as_ref().filter(|_| fixture.is_success() && [2, 5, 20, 128].contains(&k))
        else {
            continue;
        };
        body["entropy_options"] = json!({"bounds": true});
        let estimated = sequences(&fixture, &replay.ask(&fixture, body.to_string().as_bytes()).await);
        body["entropy_options"] = json!({"estimator": "renormalized"});
        let renormalized = sequences(&fixture, &replay.ask(&fixture, body.to_string().as_bytes()).await);
        for item in truth["items"].as_array().unwrap() {
            let index = item["index"].as_u64().unwrap() as usize;
            let (true_request, true_one) = (floats(&item["H_treq"]), floats(&item["H_t1"]));
            let numbers = &estimated[&index];
            if numbers.rows.is_empty() {
                continue; // this item of the batch requested no logprobs
            }
            assert_eq!(numbers.entropy.len(), true_request.len(), "{}: one entropy a token", fixture.name);
            let errors = by_k.entry(k).or_default();
            for at in 0..true_request.len() {
                let oracle = naive(&numbers.rows[at], numbers.chosen[at], Some(VOCAB));
                let name = format!("{} token {at}", fixture.name);
                let (lower, upper) = (numbers.lower[at], numbers.upper[at]);
                assert!((lower - oracle.lower).abs() < 1e-5, "{name}: lower {lower}, reference {}", oracle.lower);
                assert!((upper - oracle.upper).abs() < 1e-5, "{name}: upper {upper}, reference {}", oracle.upper);
                let plain = renormalized[&index].entropy[at];
                assert!(
                    (plain - oracle.renormalized).abs() < 1e-5,
                    "{name}: {plain}, reference {}",
                    oracle.renormalized
                );
                // with top_k 1 the engine's answer depends on its batch
                let (at_request, at_one) = (true_request[at], true_one[at]);
                let miss = |truth: f64| (lower - truth).max(truth - upper).max(0.0);
                let sampling = &body["sampling_params"];
                let greedy = sampling["top_k"] == 1 || sampling[index]["top_k"] == 1;
                let truth = if greedy && miss(at_one) < miss(at_request) { at_one } else { at_request };
                assert!(miss(truth) < SLACK, "{name}: [{lower}, {upper}] lacks {truth}");
                errors.outside = errors.outside.max(miss(truth));
                errors.positions += 1;
                errors.estimate += (numbers.entropy[at] - truth).abs();
                errors.renormalized += (plain - truth).abs();
                errors.width += upper - lower;
            }
        }
    }
}

fn print_table(name: &str, by_k: &BTreeMap<u64, Errors>) {
    eprintln!(
        "\n{name}: mean absolute error in nats\n| k | tokens | renormalised | estimate | interval | truth outside |\n|---|---|---|---|---|---|"
    );
    for (k, errors) in by_k {
        let mean = |sum: f64| sum / errors.positions as f64;
        let (renormalized, estimate, width) = (mean(errors.renormalized), mean(errors.estimate), mean(errors.width));
        eprintln!(
            "| {k} | {} | {renormalized:.3} | {estimate:.3} | {width:.3} | {:.1e} |",
            errors.positions, errors.outside
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn intervals_contain_the_truth_and_estimates_are_close() {
    let mut by_k: BTreeMap<u64, Errors> = BTreeMap::new();
    for (server, incremental, least) in
        [("sglang-0.5.23", false, 400), ("sglang-0.5.23", true, 30), ("sglang-0.5.6.post2", false, 200)]
    {
        let before: usize = by_k.values().map(|errors| errors.positions).sum();
        measure(server, incremental, &mut by_k).await;
        let after: usize = by_k.values().map(|errors| errors.positions).sum();
        assert!(after - before >= least, "{server}, incremental {incremental}: only {} tokens", after - before);
    }
    print_table("SGLang 0.5.23 and 0.5.6.post2", &by_k);
    let mean = |k: u64| by_k[&k].estimate / by_k[&k].positions as f64;
    assert!(by_k[&20].positions > 300 && by_k[&128].positions > 30, "enough tokens: {by_k:?}");
    assert!(mean(20) <= 0.16, "k = 20: {}", mean(20));
    assert!(mean(128) <= 0.05, "k = 128: {}", mean(128));
}

#[tokio::test(flavor = "multi_thread")]
async fn intervals_contain_the_truth_for_sglang_jax() {
    let mut by_k: BTreeMap<u64, Errors> = BTreeMap::new();
    measure("sglang-jax", false, &mut by_k).await;
    print_table("sglang-jax", &by_k);
    assert!(by_k.values().map(|errors| errors.positions).sum::<usize>() > 350, "enough tokens: {by_k:?}");
}
