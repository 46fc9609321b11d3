// SPDX-License-Identifier: Apache-2.0
//! Advantages of recorded paths: `POST /v1/advantages`, and exports that carry them.

use serde_json::{Value, json};
use tokentap::demo::EngineOptions;

use crate::support::client::{Answer, post};
use crate::support::demo::{Demo, all_numbers};

/// A demo without a tokenizer, so that no think tokens are known.
async fn demo() -> Demo {
    Demo::start(EngineOptions::default(), &["--chat", "passthrough"]).await
}

/// Samples `tokens` tokens in a session; returns the reply.
async fn sample(demo: &Demo, session: &str, seed: u32, tokens: usize) -> Value {
    let sampling = json!({"max_new_tokens": tokens, "ignore_eos": true, "temperature": 5, "sampling_seed": seed});
    let body = json!({"input_ids": [299, 467], "sampling_params": sampling});
    let answer = demo.post(&format!("/sessions/{session}/generate"), &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn control(demo: &Demo, path: &str, body: &Value) -> Answer {
    post(demo.proxy.control, path, body.to_string().as_bytes()).await
}

async fn reward(demo: &Demo, session: &str, reward: Value) {
    let answer = control(demo, &format!("/v1/sessions/{session}/reward"), &json!({"reward": reward})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn advantages(demo: &Demo, body: &Value) -> Value {
    let answer = control(demo, "/v1/advantages", body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.json()
}

fn error(answer: &Answer) -> (u16, String, String) {
    let error = &answer.json()["error"];
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    (answer.status, text("code"), text("message"))
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_rewards_are_used_where_the_request_has_none() {
    let demo = demo().await;
    for (seed, session) in ["a", "b", "c"].into_iter().enumerate() {
        sample(&demo, session, u32::try_from(seed).unwrap(), 4).await;
    }
    reward(&demo, "a", json!(1)).await;
    reward(&demo, "b", json!({"score": 0.25, "note": "x"})).await;
    let group = |samples: Value| json!({"groups": [{"id": 1, "samples": samples}]});
    let stored = group(json!([{"session": "a"}, {"session": "b", "reward": null}, {"session": "c", "reward": 0}]));
    let given = json!([{"session": "a", "reward": 1}, {"session": "b", "reward": 0.25}, {"session": "c", "reward": 0}]);
    let found = advantages(&demo, &stored).await;
    assert_eq!(found, advantages(&demo, &group(given)).await);
    assert_eq!(found["groups"][0]["samples"][1]["reward"], 0.25);

    let missing = control(&demo, "/v1/advantages", &group(json!([{"session": "a"}, {"session": "c"}]))).await;
    let (status, code, message) = error(&missing);
    assert_eq!((status, &*code), (400, "missing_reward"), "{message}");
    assert!(message.starts_with("groups[0].samples[1].reward: ") && message.contains("session \"c\""), "{message}");
    let unusable = control(&demo, "/v1/sessions/c/reward", &json!({"reward": {"style": "terse"}})).await;
    let (status, code, message) = error(&unusable);
    assert_eq!((status, &*code), (400, "bad_request"), "{message}");
    assert!(message.contains("`reward` or `score`"), "{message}");
}

/// The samples `a` and `c` have one seed, as on two ranks of SGLang's `--dp`; `d` has it for another prompt.
#[tokio::test(flavor = "multi_thread")]
async fn equal_samples_of_a_prompt_are_flagged() {
    let demo = demo().await;
    for (session, seed) in [("a", 7), ("b", 8), ("c", 7)] {
        sample(&demo, session, seed, 8).await;
    }
    // as in one session
    for seed in [8, 9] {
        sample(&demo, "d", seed, 8).await;
    }
    let sessions = ["a", "b", "c", "d"];
    let flagged = |flags: &Value| flags.as_array().unwrap().contains(&json!("repeats_sample"));
    let expected = [false, false, true, true, false];
    let samples = |format: &str| json!({"sessions": sessions, "format": format});
    let slime = control(&demo, "/v1/samples", &samples("slime")).await.json();
    let of_slime = slime["samples"].as_array().unwrap().iter().map(|sample| flagged(&sample["metadata"]["flags"]));
    assert_eq!(of_slime.collect::<Vec<bool>>(), expected, "{slime}");
    let lines = control(&demo, "/v1/samples", &samples("jsonl")).await.text();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(lines.map(|line| flagged(&line["flags"])).collect::<Vec<bool>>(), expected);
    let leaves = [("a", 0), ("b", 0), ("c", 0), ("d", 0), ("d", 1)];
    let group = leaves.map(|(session, leaf)| json!({"session": session, "leaf": leaf, "reward": leaf}));
    let found = advantages(&demo, &json!({"groups": [{"id": 1, "samples": group}]})).await;
    let of_group =
        found["groups"][0]["samples"].as_array().unwrap().iter().map(|sample| sample["repeats_sample"] == true);
    assert_eq!(of_group.collect::<Vec<bool>>(), expected);
    sample(&demo, "d", 9, 8).await;
    let paths = crate::support::client::get(demo.proxy.control, "/v1/sessions/d/trajectories").await.json();
    let of_session = paths["trajectories"].as_array().unwrap().iter().map(|path| flagged(&path["flags"]));
    assert_eq!(of_session.collect::<Vec<bool>>(), [false, false, true], "a session alone");
    let path = crate::support::client::get(demo.proxy.control, "/v1/sessions/d/paths/2").await.json();
    assert!(flagged(&path["flags"]), "{path}");
}

#[tokio::test(flavor = "multi_thread")]
async fn egpo_takes_the_entropy_of_the_whole_response_on_request() {
    let demo = demo().await;
    let mut means = Vec::new();
    for (seed, session) in ["a", "b"].into_iter().enumerate() {
        let reply = sample(&demo, session, u32::try_from(seed).unwrap(), 6).await;
        let nats = all_numbers(&reply["meta_info"]["output_token_entropy"]);
        means.push(nats.iter().sum::<f64>() / nats.len() as f64);
    }
    let request = |over: Value| {
        let samples = json!([{"session": "a", "reward": 1}, {"session": "b", "reward": 0}]);
        json!({"groups": [{"id": "g", "samples": samples}], "estimator": "egpo", "entropy_over": over})
    };
    let found = advantages(&demo, &request(json!("response"))).await;
    assert_eq!(found["entropy_over"], "response");
    for (sample, mean) in found["groups"][0]["samples"].as_array().unwrap().iter().zip(&means) {
        let number = |name: &str| sample[name].as_f64().unwrap();
        assert!((number("H") - mean).abs() < 1e-6, "{} for {mean}", sample["H"]);
        assert_eq!((&sample["incomplete"], &sample["think"]["present"]), (&json!(false), &json!(false)));
        let grpo = number("grpo_advantage");
        let shaped = grpo + 0.4 * mean.min(grpo.abs() / 2.0);
        assert!((number("advantage") - shaped).abs() < 1e-6, "{} for {shaped}", sample["advantage"]);
    }
    // the mask is never chosen silently
    let (status, code, message) = error(&control(&demo, "/v1/advantages", &request(json!("thinking"))).await);
    assert_eq!((status, &*code), (400, "invalid_parameter"), "{message}");
    assert!(message.contains("\"entropy_over\": \"response\""), "{message}");
}

/// The rows of an export as JSON: the samples of `slime`, `tunix` and `strands`, or the lines of `jsonl`.
async fn rows(demo: &Demo, body: &Value) -> Vec<Value> {
    let answer = control(demo, "/v1/samples", body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    if body["format"] == "jsonl" {
        return answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    }
    answer.json()["samples"].as_array().unwrap().clone()
}

/// The float32 numbers of a tensor, and its shape.
async fn tensor(demo: &Demo, body: &Value, name: &str) -> (Vec<usize>, Vec<f32>) {
    let answer = control(demo, "/v1/samples", body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    let file = safetensors::SafeTensors::deserialize(&answer.body).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
    let numbers = tensor.data().chunks_exact(4).map(|cell| f32::from_le_bytes(cell.try_into().unwrap()));
    (tensor.shape().to_vec(), numbers.collect())
}

fn singles(list: &Value) -> Vec<f32> {
    all_numbers(list).into_iter().map(|number| number as f32).collect()
}

/// Two samples of one prompt, the second one continued by a second turn and with a branch, and a sample of another prompt.
async fn rollouts(demo: &Demo) {
    let call = async |session: &str, ids: Vec<u32>, tokens: usize| {
        let sampling = json!({"max_new_tokens": tokens, "ignore_eos": true, "temperature": 1.2});
        let body = json!({"input_ids": ids, "sampling_params": sampling, "return_logprob": true});
        let answer = demo.post(&format!("/sessions/{session}/generate"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        crate::support::demo::ids(&answer.json())
    };
    call("a", vec![299, 467], 4).await;
    let output = call("b", vec![299, 467], 5).await;
    for next in [11, 12] {
        call("b", [&[299, 467][..], &output, &[next]].concat(), 3).await;
    }
    call("c", vec![300, 11, 12], 4).await;
    for (session, number) in [("a", 1.0), ("b", 0.25), ("c", 2.0)] {
        reward(demo, session, json!(number)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_carry_the_advantages_of_their_rows() {
    let demo = demo().await;
    rollouts(&demo).await;
    let egpo = json!({"estimator": "egpo", "entropy_over": "response", "lambda": 0.3});
    // rows with the same first prompt are a group
    let mut request = egpo.clone();
    request["groups"] = json!([
        {"id": 0, "samples": [{"session": "a", "leaf": 0}, {"session": "b", "leaf": 1}, {"session": "b", "leaf": 2}]},
        {"id": 1, "samples": [{"session": "c"}]},
    ]);
    let computed = advantages(&demo, &request).await;
    let expected: Vec<Vec<f32>> = computed["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["samples"].as_array().unwrap())
        .map(|sample| singles(&sample["advantages"]))
        .collect();
    assert!(expected.iter().all(|row| row.iter().any(|advantage| *advantage != 0.0)), "{expected:?}");
    let prompts = [2, 2, 2, 3];
    let body = |format: &str| json!({"sessions": ["a", "b", "c"], "format": format, "advantages": egpo});
    for (format, from_response) in [("jsonl", false), ("strands", false), ("tunix", true), ("slime", true)] {
        let rows = rows(&demo, &body(format)).await;
        assert_eq!(rows.len(), 4, "{format}");
        for ((row, expected), prompt) in rows.iter().zip(&expected).zip(prompts) {
            let row = if format == "slime" { &row["train_metadata"] } else { row };
            let expected = if from_response { &expected[prompt..] } else { &expected[..] };
            assert_eq!(singles(&row["advantages"]), expected, "{format}");
        }
    }
    // padded on the right; verl has the response side only
    let padded = |from: &[usize], width: usize| -> Vec<f32> {
        let row = |(row, from): (&Vec<f32>, &usize)| {
            let mut row: Vec<f32> = row[*from..].iter().copied().take(width).collect();
            row.resize(width, 0.0);
            row
        };
        expected.iter().zip(from).flat_map(row).collect()
    };
    let (shape, found) = tensor(&demo, &body("verl"), "advantages").await;
    assert_eq!((shape, found), (vec![4, 9], padded(&prompts, 9)));
    let (shape, found) = tensor(&demo, &body("areal"), "advantages").await;
    assert_eq!((shape, found), (vec![4, 11], padded(&[0; 4], 11)));
    let mut cut = body("verl");
    cut["max_response_length"] = json!(7);
    assert_eq!(tensor(&demo, &cut, "advantages").await, (vec![4, 7], padded(&prompts, 7)), "cut as the row is");
    // a named group wins over the prompt, and its rewards over the stored ones
    let mut named = body("jsonl");
    let samples = json!([{"session": "a", "reward": 4}, {"session": "b"}, {"session": "c", "reward": null}]);
    named["advantages"] = json!({"groups": [{"id": "all", "samples": samples}], "normalize_std": false});
    let (status, code, message) = error(&control(&demo, "/v1/samples", &named).await);
    assert_eq!((status, &*code), (400, "invalid_parameter"), "{message}");
    assert!(message.starts_with("advantages.groups: ") && message.contains("session \"b\""), "{message}");
    named["include_branches"] = json!(false);
    let found = rows(&demo, &named).await;
    let first = |row: &Value| singles(&row["advantages"]).into_iter().find(|advantage| *advantage != 0.0).unwrap();
    // the mean of 4, 0.25 and 2
    let centred: Vec<f32> = found.iter().map(first).collect();
    assert!(centred.iter().zip([1.9167, -1.8333, -0.0833]).all(|(a, b)| (a - b).abs() < 1e-3), "{centred:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn advantages_of_an_export_are_refused_where_they_cannot_be_right() {
    let demo = demo().await;
    rollouts(&demo).await;
    sample(&demo, "unrewarded", 1, 4).await;
    for (session, format, options, code, part) in [
        ("a", "miles", json!({}), "bad_request", "advantages: miles does not use it, only verl, areal, "),
        ("a", "rllm", json!({}), "bad_request", "advantages: rllm does not use it"),
        ("a", "verl", json!({"estimator": "egpo"}), "invalid_parameter", "advantages.think_start: "),
        ("a", "verl", json!({"version": 1}), "bad_request", "unknown field `version`"),
        ("unrewarded", "jsonl", json!({}), "missing_reward", "advantages.reward: "),
        ("a", "jsonl", json!({"groups": [{"id": 1, "samples": []}]}), "empty_group", "advantages.groups[0].samples: "),
    ] {
        let body = json!({"sessions": [session], "format": format, "advantages": options});
        let (status, found, message) = error(&control(&demo, "/v1/samples", &body).await);
        assert_eq!((status, &*found), (400, code), "{body}: {message}");
        assert!(message.contains(part), "{message}");
    }
    let unknown = json!({"groups": [{"id": 1, "samples": [{"session": "z", "reward": 1}]}]});
    let body = json!({"sessions": ["a"], "format": "jsonl", "advantages": unknown});
    let (status, code, message) = error(&control(&demo, "/v1/samples", &body).await);
    assert_eq!((status, &*code), (404, "not_found"), "{message}");
    let plain = rows(&demo, &json!({"sessions": ["a"], "format": "jsonl"})).await;
    assert_eq!(plain[0]["advantages"], json!(null));
}

#[tokio::test(flavor = "multi_thread")]
async fn row_whose_advantage_lacks_entropies_is_flagged() {
    let demo = demo().await;
    rollouts(&demo).await;
    let sampling = json!({"max_new_tokens": 4, "ignore_eos": true});
    let body =
        json!({"input_ids": [299, 467], "sampling_params": sampling, "return_logprob": true, "return_entropy": false});
    assert_eq!(demo.post("/sessions/d/generate", &body).await.status, 200);
    reward(&demo, "d", json!(5)).await;
    for (estimator, flagged) in [("egpo", true), ("grpo", false)] {
        let options = json!({"estimator": estimator, "entropy_over": "response"});
        let body = json!({"sessions": ["a", "d"], "format": "jsonl", "advantages": options});
        let found = rows(&demo, &body).await;
        let flags = |row: &Value| row["flags"].as_array().unwrap().contains(&json!("advantage_lacks_entropy"));
        assert_eq!(found.iter().map(flags).collect::<Vec<_>>(), [false, flagged], "{estimator}: {found:?}");
    }
}
