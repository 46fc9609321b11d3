// SPDX-License-Identifier: Apache-2.0
//! Generations that tokentap could not record, and how every export reports them.

use serde_json::{Value, json};

use crate::support::client::{get, post, request};
use crate::support::engine;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, UpstreamRequest, json_message};

const FORMATS: [&str; 8] = ["verl", "miles", "areal", "slime", "tunix", "strands", "rllm", "jsonl"];

/// An engine that also serves chats.
async fn start() -> (Upstream, Proxy) {
    let script = |asked: &UpstreamRequest| match asked.path.as_str() {
        "/generate" => engine::answer(asked),
        _ => json_message(200, b"{\"choices\":[]}"),
    };
    let upstream = Upstream::start(EngineProfile::default(), script).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    (upstream, proxy)
}

async fn generate(proxy: &Proxy, session: &str, prompt: Value) {
    let mut body = json!({"sampling_params": {"max_new_tokens": 4}});
    for (name, value) in prompt.as_object().unwrap() {
        body[name] = value.clone();
    }
    let headers = [("x-session-id", session)];
    let answer = request(proxy.data, "POST", "/generate", &headers, body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn exported(proxy: &Proxy, session: &str, format: &str) -> Vec<u8> {
    let body = json!({"sessions": [session], "format": format}).to_string();
    let answer = post(proxy.control, "/v1/samples", body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{format}: {}", answer.text());
    answer.body
}

#[tokio::test(flavor = "multi_thread")]
async fn session_with_an_unrecorded_generation_is_incomplete_in_every_export() {
    let (_upstream, proxy) = start().await;
    for session in ["whole", "holed"] {
        generate(&proxy, session, json!({"input_ids": [1, 2, 3]})).await;
    }
    let headers = [("x-session-id", "holed")];
    let answer = request(proxy.data, "POST", "/v1/chat/completions", &headers, b"{\"messages\":[]}").await;
    assert_eq!(answer.text(), "{\"choices\":[]}", "the reply is forwarded unchanged");
    for (session, incomplete) in [("whole", false), ("holed", true)] {
        let listed = get(proxy.control, &format!("/v1/sessions/{session}")).await.json();
        assert_eq!(listed["incomplete"], incomplete, "{session}");
        let all = get(proxy.control, &format!("/v1/sessions/{session}/trajectories")).await.json();
        assert_eq!(all["incomplete"], incomplete, "{session}");
        let flags = &all["trajectories"][0]["flags"];
        assert_eq!(*flags, if incomplete { json!(["incomplete"]) } else { json!([]) }, "{session}");
        for format in FORMATS {
            let bytes = exported(&proxy, session, format).await;
            // jsonl has the member in every row
            let marked = memchr::memmem::find(&bytes, b"\"incomplete\"]").is_some()
                || (format != "jsonl" && memchr::memmem::find(&bytes, b"incomplete").is_some());
            assert_eq!(marked, incomplete, "{format} of {session}: {}", String::from_utf8_lossy(&bytes));
        }
        let freeze = post(proxy.control, &format!("/v1/sessions/{session}/freeze"), b"").await;
        assert_eq!(freeze.status, 200, "{}", freeze.text());
    }
    let finished = get(proxy.control, "/v1/trajectories").await.text();
    let finished: Vec<Value> = finished.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let flags: Vec<(&Value, &Value)> = finished.iter().map(|line| (&line["session"], &line["flags"])).collect();
    assert_eq!(flags, [(&json!("whole"), &json!([])), (&json!("holed"), &json!(["incomplete"]))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn untokenised_text_prompt_is_refused_as_prompt_unknown() {
    let (_upstream, proxy) = start().await;
    generate(&proxy, "text", json!({"text": "who knows"})).await;
    generate(&proxy, "text", json!({"input_ids": [1, 2, 3]})).await;
    let listed = get(proxy.control, "/v1/sessions/text").await.json();
    assert_eq!(listed["faults"], json!({"prompt_unknown": 1}));
    let causes: Vec<&Value> = listed["list"].as_array().unwrap().iter().map(|turn| &turn["cause"]).collect();
    assert_eq!(causes.len(), 2);
    assert_eq!(causes[0], "unplaced", "it has no place and no continuation");
    let lines = String::from_utf8(exported(&proxy, "text", "jsonl").await).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["token_ids"], json!([1, 2, 3, 10, 10, 10, 10]), "the other turn is exported");
    let all = get(proxy.control, "/v1/sessions/text/trajectories").await.json();
    assert_eq!(all["refused"], json!([{"leaf": 0, "reason": "prompt_unknown"}]));
    let path = &all["trajectories"][0];
    assert_eq!(path["token_ids"], json!([10, 10, 10, 10]), "the sampled tokens are readable");
    assert_eq!(path["loss_mask"], json!([0, 0, 0, 0]), "and are not trained");
}
