// SPDX-License-Identifier: Apache-2.0
//! Requests that name a LoRA adapter.

use serde_json::{Value, json};

use super::support::client::{get, post};
use super::support::proxy::Proxy;
use super::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message};
use super::teacher::column;

/// The tokens that the engine samples for every prompt.
const SAMPLED: [u32; 2] = [10, 11];

fn engine(asked: &UpstreamRequest) -> FakeReply {
    let body = asked.json();
    if asked.path.ends_with("_lora_adapter") || asked.path.ends_with("_from_tensors") {
        // a path that begins with `/nonexistent` cannot be loaded
        let is_loaded = !body["lora_path"].as_str().is_some_and(|path| path.starts_with("/nonexistent"));
        let status = if is_loaded { 200 } else { 400 };
        return json_message(status, json!({"success": is_loaded, "loaded_adapters": {}}).to_string().as_bytes());
    }
    if asked.path != "/generate" {
        return json_message(200, br#"{"success":true}"#);
    }
    let ids = &body["input_ids"];
    if let (Some(0), Some(start)) =
        (body["sampling_params"]["max_new_tokens"].as_u64(), body["logprob_start_len"].as_u64())
    {
        // each adapter has another logprob
        let nats = match body["lora_path"].as_str() {
            None => -1.0,
            Some("a") => -2.0,
            Some(_) => -3.0,
        };
        let asked = ids.as_array().unwrap().iter().skip(start as usize).enumerate();
        let rows: Vec<Value> = asked.map(|(at, id)| json!([(at > 0).then_some(nats), id, null])).collect();
        let reply = json!({"text": "", "meta_info": {"id": "scored", "input_token_logprobs": rows}});
        return json_message(200, reply.to_string().as_bytes());
    }
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

    async fn control(&self, path: &str, body: &Value) -> u16 {
        post(self.proxy.control, path, body.to_string().as_bytes()).await.status
    }

    /// Asks for the next turn of a session of the adapter. `ids` is the path so far.
    async fn extend(&self, session: &str, adapter: Option<&str>, ids: &mut Vec<u32>) {
        let body = json!({"input_ids": ids, "lora_path": adapter, "sampling_params": {"max_new_tokens": 2}});
        self.ask(&format!("/sessions/{session}/generate"), &body).await;
        ids.extend(SAMPLED);
        ids.push(8);
    }

    /// The flags and the spans of the only row of a session.
    async fn row(&self, session: &str) -> (Value, Vec<Value>) {
        let path = format!("/v1/sessions/{session}/trajectories");
        let list = get(self.proxy.control, &path).await.json();
        let rows = list["trajectories"].as_array().unwrap();
        assert_eq!(rows.len(), 1, "{list}");
        (rows[0]["flags"].clone(), rows[0]["policy"].as_array().unwrap().clone())
    }

    async fn policy(&self) -> Value {
        get(self.proxy.control, "/v1/policy").await.json()
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
async fn row_of_two_adapters_is_flagged() {
    let tap = Tap::start().await;
    let mixed = json!(["crosses_versions", "mixed_adapters"]);
    for (session, adapters, flags) in [
        ("one", [json!("a"), json!("a"), json!("a")], json!([])),
        ("none", [Value::Null, Value::Null, json!("")], json!([])),
        ("three", [json!("a"), json!("b"), json!("c")], mixed.clone()),
        ("some", [json!("a"), Value::Null, json!("a")], mixed),
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
async fn own_engine_scores_each_turn_with_its_adapter() {
    let tap = Tap::start().await;
    let mut ids = vec![5, 6, 7];
    for adapter in [Some("a"), Some("b"), None] {
        tap.extend("s", adapter, &mut ids).await;
    }
    for scored in [6, 0] {
        let answer = post(tap.proxy.control, "/v1/teacher-scores", br#"{"teacher":"self","sessions":["s"]}"#).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["rows"][0]["scored"], scored, "{}", answer.text());
    }
    let query = br#"{"sessions":["s"],"format":"jsonl","scores":"self"}"#;
    let exported = post(tap.proxy.control, "/v1/samples", query).await;
    assert_eq!(column(&exported).unwrap(), [-2.0, -2.0, -3.0, -3.0, -1.0, -1.0]);
    // an adapter that is loaded again has other weights
    for (path, body) in [
        ("/unload_lora_adapter", r#"{"lora_name":"b"}"#),
        ("/load_lora_adapter", r#"{"lora_name":"b","lora_path":"/b2"}"#),
    ] {
        assert_eq!(post(tap.proxy.control, path, body.as_bytes()).await.status, 200, "{path}");
    }
    let answer = post(tap.proxy.control, "/v1/teacher-scores", br#"{"teacher":"self","sessions":["s"]}"#).await;
    assert_eq!(answer.json()["rows"][0]["scored"], 2, "{}", answer.text());
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

/// The epoch of the base weights, and the adapter with its epoch and version.
fn short(span: &Value) -> (u64, Value, Value, Value) {
    let [adapter, epoch, version] = ["adapter", "adapter_epoch", "adapter_version"].map(|key| span[key].clone());
    (span["epoch"].as_u64().unwrap(), adapter, epoch, version)
}

#[tokio::test]
async fn calls_of_an_adapter_begin_an_epoch_of_this_adapter_only() {
    let tap = Tap::start().await;
    let start = tap.policy().await["epoch"].as_u64().unwrap();
    let (mut a, mut b, mut base) = (vec![5], vec![6], vec![7]);
    let turns = async |a: &mut Vec<u32>, b: &mut Vec<u32>, base: &mut Vec<u32>| {
        tap.extend("a", Some("a"), a).await;
        tap.extend("b", Some("b"), b).await;
        tap.extend("base", None, base).await;
    };
    turns(&mut a, &mut b, &mut base).await;
    assert_eq!(tap.control("/unload_lora_adapter", &json!({"lora_name": "a"})).await, 200);
    assert_eq!(tap.control("/load_lora_adapter", &json!({"lora_path": "/a2", "lora_name": "a"})).await, 200);
    turns(&mut a, &mut b, &mut base).await;
    let refused = json!({"lora_name": "b", "lora_path": "/nonexistent"});
    assert_eq!(tap.control("/load_lora_adapter", &refused).await, 400, "it changes nothing");
    let tensors =
        json!({"config_dict": {"lora_name": "no"}, "serialized_tensors": "x".repeat(300_000), "lora_name": "b"});
    assert_eq!(tap.control("/load_lora_adapter_from_tensors", &tensors).await, 200);
    assert_eq!(tap.control("/v1/policy", &json!({"version": 7, "adapter": "b"})).await, 200);
    turns(&mut a, &mut b, &mut base).await;
    let update = json!({"model_path": "m", "weight_version": "w"});
    assert_eq!(tap.control("/update_weights_from_disk", &update).await, 200);
    turns(&mut a, &mut b, &mut base).await;
    let (at, next) = (start, start + 1);
    let span = |epoch: u64, name: &str, number: u64, version: Value| (epoch, json!(name), json!(number), version);
    for (session, expected) in [
        (
            "a",
            [
                span(at, "a", 0, json!(null)),
                span(at, "a", 2, json!(null)),
                span(at, "a", 2, json!(null)),
                span(next, "a", 2, json!(null)),
            ],
        ),
        (
            "b",
            [
                span(at, "b", 0, json!(null)),
                span(at, "b", 0, json!(null)),
                span(at, "b", 2, json!("7")),
                span(next, "b", 2, json!("7")),
            ],
        ),
        ("base", [at, at, at, next].map(|epoch| (epoch, json!(null), json!(null), json!(null)))),
    ] {
        let (flags, spans) = tap.row(session).await;
        assert_eq!(spans.iter().map(short).collect::<Vec<_>>(), expected, "{session}");
        assert_eq!(flags, json!(["crosses_versions"]), "{session}");
    }
    let adapters = json!([{"name": "a", "epoch": 2, "version": null}, {"name": "b", "epoch": 2, "version": "7"}]);
    assert_eq!((&tap.policy().await["epoch"], &tap.policy().await["adapters"]), (&json!(next), &adapters));
    let metrics = get(tap.proxy.control, "/metrics").await.text();
    for line in [
        "tokentap_adapter_calls_total{call=\"load\",outcome=\"refused\"} 1",
        "tokentap_adapter_calls_total{call=\"load\",outcome=\"succeeded\"} 2",
        "tokentap_adapter_calls_total{call=\"unload\",outcome=\"succeeded\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
}

#[tokio::test]
async fn call_without_a_name_begins_an_epoch_of_every_adapter() {
    let tap = Tap::start().await;
    tap.control("/load_lora_adapter", &json!({"lora_name": "a", "lora_path": "/a"})).await;
    tap.control("/load_lora_adapter", &json!({"lora_path": "/a"})).await;
    for (session, adapter) in [("s1", "a"), ("s2", "b")] {
        tap.extend(session, Some(adapter), &mut vec![5]).await;
        assert_eq!(tap.row(session).await.1[0]["adapter_epoch"], json!(2));
    }
    for body in [json!({"version": "1", "adapter": ""}), json!({"version": "1", "adapter": "x".repeat(300)})] {
        assert_eq!(tap.control("/v1/policy", &body).await, 400);
    }
}
