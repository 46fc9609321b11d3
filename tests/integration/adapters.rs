//! Requests that name a LoRA adapter.

use serde_json::{Value, json};

use super::support::client::{get, post};
use super::support::proxy::Proxy;
use super::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message};

/// The tokens that the engine samples for every prompt.
const SAMPLED: [u32; 2] = [10, 11];

fn engine(asked: &UpstreamRequest) -> FakeReply {
    let body = asked.json();
    let ids = &body["input_ids"];
    let object = |prompt: &Value, rid: String| {
        let rows: Vec<Value> = SAMPLED.iter().map(|id| json!([-0.5, id, null])).collect();
        json!({"text": "", "output_ids": SAMPLED, "meta_info": {"id": rid, "finish_reason": {"type": "stop"},
            "prompt_tokens": prompt.as_array().unwrap().len(), "completion_tokens": 2, "output_token_logprobs": rows}})
    };
    let rid = body["rid"].as_str().unwrap_or("engine").to_owned();
    let reply = match ids[0].is_array() {
        true => {
            let prompts = ids.as_array().unwrap().iter().enumerate();
            prompts.map(|(at, prompt)| object(prompt, format!("{rid}_{at}"))).collect()
        }
        false => object(ids, rid),
    };
    json_message(200, reply.to_string().as_bytes())
}

struct Tap {
    proxy: Proxy,
    _engine: Upstream,
}

impl Tap {
    async fn start() -> Self {
        let engine = Upstream::start(EngineProfile::default(), engine).await;
        Self { proxy: Proxy::probed(engine.addr, &[]).await, _engine: engine }
    }

    async fn ask(&self, path: &str, body: &Value) {
        let answer = post(self.proxy.data, path, body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// The flags of each row of a session, and the adapters of its turns.
    async fn rows(&self, session: &str) -> Vec<(Value, Vec<Value>)> {
        let path = format!("/v1/sessions/{session}/trajectories");
        let mut list = get(self.proxy.control, &path).await.json()["trajectories"].take();
        let row = |row: &mut Value| {
            let turns = row["turns"].as_array().unwrap().iter();
            let adapters = turns.map(|turn| turn.get("lora_path").cloned().expect("a member"));
            (row["flags"].clone(), adapters.collect())
        };
        list.as_array_mut().unwrap().iter_mut().map(row).collect()
    }
}

#[tokio::test]
async fn row_of_two_adapters_is_policy_uncertain() {
    let tap = Tap::start().await;
    let uncertain = json!(["policy_uncertain"]);
    for (session, adapters, flags) in [
        ("one", [json!("a"), json!("a"), json!("a")], json!([])),
        ("none", [Value::Null, Value::Null, json!("")], json!([])),
        ("three", [json!("a"), json!("b"), json!("c")], uncertain.clone()),
        ("some", [json!("a"), Value::Null, json!("a")], uncertain),
    ] {
        let mut ids = vec![5, 6, 7];
        for adapter in &adapters {
            let body = json!({"input_ids": ids, "lora_path": adapter, "sampling_params": {"max_new_tokens": 2}});
            tap.ask(&format!("/sessions/{session}/generate"), &body).await;
            ids.extend(SAMPLED);
            ids.push(8);
        }
        let shown = adapters.map(|adapter| if adapter == "" { Value::Null } else { adapter });
        assert_eq!(tap.rows(session).await, [(flags, shown.to_vec())], "{session}");
    }
}

#[tokio::test]
async fn adapter_of_each_item_and_of_the_model_name_is_in_its_turn() {
    let tap = Tap::start().await;
    let body = json!({"input_ids": [[5, 6], [7, 8], [9, 9]], "lora_path": ["a", null, "b"], "sampling_params": {"max_new_tokens": 2}});
    tap.ask("/sessions/batch/generate", &body).await;
    let rows = tap.rows("batch").await;
    let adapters: Vec<&Value> = rows.iter().flat_map(|(_, adapters)| adapters).collect();
    assert_eq!(adapters, [&json!("a"), &Value::Null, &json!("b")]);
    assert!(rows.iter().all(|(flags, _)| *flags == json!([])), "each row has one adapter: {rows:?}");
    for (session, model, lora_path, expected) in [
        ("s1", "tiny:a", Value::Null, json!("a")),
        ("s2", "tiny", json!("b"), json!("b")),
        ("s3", "tiny", Value::Null, Value::Null),
    ] {
        let body = json!({"model": model, "lora_path": lora_path, "prompt": [5, 6, 7], "max_tokens": 2});
        tap.ask(&format!("/sessions/{session}/v1/completions"), &body).await;
        assert_eq!(tap.rows(session).await, [(json!([]), vec![expected])], "{session}");
    }
}
