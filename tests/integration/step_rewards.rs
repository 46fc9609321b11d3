// SPDX-License-Identifier: Apache-2.0
//! Rewards of turns: stored, exported, and in advantages.

use serde_json::{Value, json};
use tokentap::demo::EngineOptions;

use crate::support::client::{Answer, get, post};
use crate::support::demo::{Demo, all_numbers, ids};

async fn demo() -> Demo {
    Demo::start(EngineOptions::default(), &["--chat", "passthrough"]).await
}

async fn control(demo: &Demo, path: &str, body: &Value) -> Answer {
    post(demo.proxy.control, path, body.to_string().as_bytes()).await
}

/// A conversation of as many turns as there are prompts, each after what was sampled before.
async fn conversation(demo: &Demo, session: &str, seed: u32, prompts: &[&[u32]]) {
    let mut known: Vec<u32> = Vec::new();
    for prompt in prompts {
        known.extend_from_slice(prompt);
        let sampling = json!({"max_new_tokens": 3, "ignore_eos": true, "temperature": 5, "sampling_seed": seed});
        let body = json!({"input_ids": known, "sampling_params": sampling, "return_logprob": true});
        let answer = demo.post(&format!("/sessions/{session}/generate"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        known.extend(ids(&answer.json()));
    }
}

async fn reward(demo: &Demo, session: &str, body: &Value) -> Answer {
    control(demo, &format!("/v1/sessions/{session}/reward"), body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn reward_of_an_inner_turn_is_exported_and_frozen() {
    let demo = demo().await;
    conversation(&demo, "s", 1, &[&[299, 467], &[11], &[12]]).await;
    let inner = reward(&demo, "s", &json!({"reward": {"score": 0.5}, "turn": 1})).await;
    assert_eq!(inner.json(), json!({"session": "s", "leaf": null, "turn": 1, "applies": true}));
    assert_eq!(reward(&demo, "s", &json!({"reward": 2, "turn": 2})).await.status, 200);
    assert_eq!(reward(&demo, "s", &json!({"reward": 8, "leaf": 2})).await.status, 200);
    for unusable in [
        json!({}),
        json!({"foo": 1}),
        json!({"score": "x"}),
        json!({"score": null}),
        json!("1"),
        json!(true),
        json!(1e300),
    ] {
        let refused = reward(&demo, "s", &json!({"reward": unusable, "leaf": 2})).await;
        let expected = "reward: must be a finite float32, or an object with one as `reward` or `score`, not ";
        assert!(refused.status == 400 && refused.text().contains(expected), "{unusable}: {}", refused.text());
    }
    let both = reward(&demo, "s", &json!({"reward": 1, "turn": 1, "leaf": 2})).await;
    assert!(both.status == 400 && both.text().contains("turn: "), "{}", both.text());
    let unknown = reward(&demo, "s", &json!({"reward": 1, "turn": 3})).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("no_such_leaf")));
    assert!(unknown.text().contains("there is no such turn; its turns are 0 to 2"), "{}", unknown.text());
    let unknown = get(demo.proxy.control, "/v1/sessions/s?version=7").await;
    assert!(unknown.status == 404 && unknown.text().contains("the only version is 1"), "{}", unknown.text());
    let listed = get(demo.proxy.control, "/v1/sessions/s/trajectories").await.json();
    let path = &listed["trajectories"][0];
    assert_eq!(path["reward"], 8);
    let of_turns: Vec<&Value> = path["turns"].as_array().unwrap().iter().map(|turn| &turn["reward"]).collect();
    assert_eq!(of_turns, [&json!(null), &json!({"score": 0.5}), &json!(2)]);
    // at the last of the three tokens of each turn; the last one also has the reward of the path
    let body = json!({"sessions": ["s"], "format": "verl"});
    let answer = control(&demo, "/v1/samples", &body).await;
    let file = safetensors::SafeTensors::deserialize(&answer.body).unwrap();
    let scores = file.tensor("rm_scores").unwrap();
    let scores: Vec<f32> =
        scores.data().chunks_exact(4).map(|cell| f32::from_le_bytes(cell.try_into().unwrap())).collect();
    assert_eq!(scores, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 10.0]);
    let frozen = control(&demo, "/v1/sessions/s/freeze", &json!({})).await;
    assert_eq!(frozen.status, 200);
    let late = reward(&demo, "s", &json!({"reward": 1, "turn": 0})).await;
    assert_eq!((late.status, &late.json()["error"]["code"]), (409, &json!("frozen")));
    assert!(late.text().contains("groups[].samples[].reward"), "{}", late.text());
    let again = control(&demo, "/v1/samples", &body).await;
    assert_eq!(again.body, answer.body, "a frozen version is exported as before");
    // published by the freeze
    let finished = get(demo.proxy.control, "/v1/trajectories").await;
    let line: Value = serde_json::from_str(finished.text().lines().next().unwrap()).unwrap();
    assert_eq!(line["turns"][1]["reward"], json!({"score": 0.5}));
}

/// One row without a number removes the rewards of the file, so the export says so.
#[tokio::test(flavor = "multi_thread")]
async fn rows_without_rewards_are_counted_if_others_have_some() {
    let demo = demo().await;
    for (session, seed) in [("a", 1), ("b", 2)] {
        conversation(&demo, session, seed, &[&[299, 467]]).await;
    }
    for format in ["verl", "areal", "skyrl"] {
        let body = json!({"sessions": ["a", "b"], "format": format});
        assert_eq!(control(&demo, "/v1/samples", &body).await.header("tokentap-incomplete"), Some("{}"), "{format}");
    }
    assert_eq!(reward(&demo, "a", &json!({"reward": 1})).await.status, 200);
    for (format, name, lack) in [
        ("verl", "rm_scores", "missing_reward"),
        ("areal", "rewards", "missing_path_reward"),
        ("skyrl", "rewards\":[", "missing_reward"),
    ] {
        let export = async |exclude: Value| {
            let body = json!({"sessions": ["a", "b"], "format": format, "exclude": exclude});
            control(&demo, "/v1/samples", &body).await
        };
        let holds = |answer: &Answer| answer.body.windows(name.len()).any(|part| part == name.as_bytes());
        let (all, one) = (export(json!([])).await, export(json!([lack])).await);
        let counted = json!({lack: 1}).to_string();
        assert_eq!(all.header("tokentap-incomplete"), Some(&*counted), "{format}");
        assert_eq!(one.header("tokentap-refused"), Some(&*counted), "{format}");
        assert!(!holds(&all) && holds(&one), "{format}");
    }
    // areal has no place for rewards of turns
    assert_eq!(reward(&demo, "b", &json!({"reward": 1, "turn": 0})).await.status, 200);
    for (format, counted) in [("verl", "{}"), ("areal", r#"{"missing_path_reward":1}"#), ("skyrl", "{}")] {
        let body = json!({"sessions": ["a", "b"], "format": format});
        let answer = control(&demo, "/v1/samples", &body).await;
        assert_eq!(answer.header("tokentap-incomplete"), Some(counted), "{format}");
    }
}

/// The discounted returns of these rewards.
fn returns(rewards: &[f64], discount: f64) -> Vec<f64> {
    let last_first = rewards.iter().rev().scan(0.0, |value, reward| {
        *value = reward + discount * *value;
        Some(*value)
    });
    let mut values: Vec<f64> = last_first.collect();
    values.reverse();
    values
}

#[tokio::test(flavor = "multi_thread")]
async fn advantages_of_turns_are_those_of_their_discounted_returns() {
    let demo = demo().await;
    conversation(&demo, "a", 1, &[&[299, 467], &[11], &[12]]).await;
    conversation(&demo, "b", 2, &[&[299, 467], &[13]]).await;
    for (session, turn, number) in [("a", 0, 0.25), ("a", 1, -0.5), ("b", 1, 1.0)] {
        assert_eq!(reward(&demo, session, &json!({"reward": number, "turn": turn})).await.status, 200);
    }
    assert_eq!(reward(&demo, "a", &json!({"reward": 2})).await.status, 200);
    let options = json!({"rewards": "turns", "discount": 0.9});
    let mut request = options.clone();
    request["groups"] = json!([{"id": "g", "samples": [{"session": "a"}, {"session": "b"}]}]);
    let answer = control(&demo, "/v1/advantages", &request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let group = &answer.json()["groups"][0];
    let values = [returns(&[0.25, -0.5, 2.0], 0.9), returns(&[0.0, 1.0], 0.9)].concat();
    let mean = values.iter().sum::<f64>() / 5.0;
    let std = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 4.0).sqrt();
    let close = |found: &Value, expected: f64| (found.as_f64().unwrap() - expected).abs() < 1e-12;
    assert!(close(&group["mean"], mean) && close(&group["std"], std), "{group}");
    let samples = group["samples"].as_array().unwrap();
    assert_eq!((&samples[0]["reward"], &samples[1]["reward"]), (&json!(2.0), &json!(null)));
    let turns: Vec<&Value> = samples.iter().flat_map(|sample| sample["turns"].as_array().unwrap()).collect();
    for (turn, value) in turns.iter().zip(&values) {
        let advantage = (value - mean) / (std + 1e-6);
        assert!(close(&turn["return"], *value) && close(&turn["advantage"], advantage), "{turn}");
    }
    // an export has the same numbers in float32
    let body = json!({"sessions": ["a", "b"], "format": "jsonl", "advantages": options});
    let rows = control(&demo, "/v1/samples", &body).await;
    for (line, sample) in rows.text().lines().zip(samples) {
        let row: Value = serde_json::from_str(line).unwrap();
        let single = |list: &Value| all_numbers(list).into_iter().map(|number| number as f32).collect::<Vec<_>>();
        assert_eq!(single(&row["advantages"]), single(&sample["advantages"]));
    }
    // the rewards of turns are not used unless they are asked for
    let missing = control(&demo, "/v1/advantages", &json!({"groups": request["groups"]})).await;
    assert_eq!((missing.status, &missing.json()["error"]["code"]), (400, &json!("missing_reward")));
    conversation(&demo, "c", 3, &[&[299, 467]]).await;
    request["groups"] = json!([{"id": "g", "samples": [{"session": "c"}]}]);
    let missing = control(&demo, "/v1/advantages", &request).await;
    assert!(missing.status == 400 && missing.text().contains("nor one of its turns"), "{}", missing.text());
}
