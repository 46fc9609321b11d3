// SPDX-License-Identifier: Apache-2.0
//! Sessions of SGLang (`/open_session`, `session_params`): the engine puts the tokens of an earlier request before the prompt.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::client::{get, post};
use crate::support::fixture::Fixture;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, UpstreamRequest, json_message, stream, torn_stream};

/// The token that begins every text.
const BOS: u32 = 1;

/// The tokens that the engine samples for each request.
const SAMPLED: [u32; 3] = [50, 51, 52];

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap_or_else(|_| panic!("{value} is a list of ids"))
}

/// The prompt of a request in a session whose requests are `known` by their ids. Without a `rid` it continues `last`, as a session does
/// that was opened with `streaming`.
fn prompt(asked: &Value, known: &HashMap<String, Vec<u32>>, last: Option<&str>) -> Vec<u32> {
    let (mut added, params) = (ids(&asked["input_ids"]), &asked["session_params"]);
    let Some(history) = params["rid"].as_str().or(last).and_then(|rid| known.get(rid)) else { return added };
    if added.first() == Some(&BOS) {
        added.remove(0);
    }
    let mut kept = history.clone();
    kept.extend(SAMPLED);
    if params["drop_previous_output"] == true {
        kept.truncate(history.len());
    }
    match params["offset"].as_i64() {
        Some(offset @ 1..) => kept.truncate(offset.try_into().unwrap()),
        Some(offset @ ..=-1) => kept.truncate(kept.len().saturating_sub(offset.unsigned_abs().try_into().unwrap())),
        _ => {}
    }
    [kept, added].concat()
}

/// A tokentap and an engine with sessions; `streaming` sessions continue their last request.
async fn start(streaming: bool) -> (Upstream, Proxy) {
    let state = Mutex::new((HashMap::new(), None::<String>));
    let script = move |asked: &UpstreamRequest| {
        let asked: Value = serde_json::from_slice(&asked.body).unwrap();
        let rid = asked["rid"].as_str().expect("tokentap names each request").to_owned();
        let mut state = state.lock();
        let last = state.1.clone().filter(|_| streaming);
        let prompt = prompt(&asked, &state.0, last.as_deref());
        let meta = json!({
            "id": rid, "finish_reason": {"type": "length", "length": SAMPLED.len()}, "prompt_tokens": prompt.len(),
            "completion_tokens": SAMPLED.len(), "output_token_logprobs": SAMPLED.map(|id| json!([-0.5, id, null])),
        });
        state.0.insert(rid.clone(), prompt);
        state.1 = Some(rid);
        let reply = json!({"text": "abc", "output_ids": SAMPLED, "meta_info": meta}).to_string();
        match asked["stream"] == true {
            true => stream(&[format!("data: {reply}\n\n").as_bytes(), b"data: [DONE]\n\n"]),
            false => json_message(200, reply.as_bytes()),
        }
    };
    let upstream = Upstream::start(EngineProfile { flat: false, ..EngineProfile::default() }, script).await;
    let proxy = Proxy::probed(upstream.addr, &["--entropy", "off"]).await;
    (upstream, proxy)
}

/// Sends a request of a session, whole or streamed; returns its id.
async fn ask(proxy: &Proxy, session: &str, input_ids: &[u32], (params, streamed): (Value, bool)) -> String {
    let mut body = json!({"input_ids": input_ids, "return_logprob": true, "session_params": params});
    if streamed {
        body["stream"] = json!(true);
    }
    let answer = post(proxy.data, &format!("/sessions/{session}/generate"), body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let reply = if streamed { answer.events().remove(0) } else { answer.json() };
    reply["meta_info"]["id"].as_str().unwrap().to_owned()
}

/// The rows of a session.
async fn rows(proxy: &Proxy, session: &str) -> Vec<Value> {
    let shown = get(proxy.control, &format!("/v1/sessions/{session}/trajectories")).await.json();
    shown["trajectories"].as_array().unwrap().clone()
}

/// The faults of a session's turns.
async fn faults(proxy: &Proxy, session: &str) -> Vec<Value> {
    let shown = get(proxy.control, &format!("/v1/sessions/{session}")).await.json();
    shown["list"].as_array().unwrap().iter().map(|turn| turn["fault"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn continued_request_is_recorded_with_the_tokens_of_its_session() {
    let (_upstream, proxy) = start(false).await;
    for streamed in [false, true] {
        let session = format!("s-{streamed}");
        let first = ask(&proxy, &session, &[BOS, 5, 6], (json!({"id": "e"}), streamed)).await;
        // the engine removes the first token, which begins every text
        let second = ask(&proxy, &session, &[BOS, 7], (json!({"id": "e", "rid": first}), streamed)).await;
        ask(&proxy, &session, &[8], (json!({"id": "e", "rid": second}), streamed)).await;
        let [row] = &rows(&proxy, &session).await[..] else { panic!("one row") };
        let [a, b, c] = SAMPLED;
        assert_eq!(ids(&row["token_ids"]), [BOS, 5, 6, a, b, c, 7, a, b, c, 8, a, b, c], "{row}");
        assert_eq!(row["loss_mask"], json!([0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1]));
        assert_eq!(row["flags"], json!(["extends_length"]));
        // an earlier request of the session, cut
        ask(&proxy, &session, &[9], (json!({"id": "e", "rid": first, "offset": -2, "replace": true}), streamed)).await;
        let params = json!({"id": "e", "rid": first, "drop_previous_output": true});
        ask(&proxy, &session, &[9], (params, streamed)).await;
        let found: Vec<Vec<u32>> = rows(&proxy, &session).await.iter().map(|row| ids(&row["token_ids"])).collect();
        assert_eq!(found[1..], [vec![BOS, 5, 6, a, 9, a, b, c], vec![BOS, 5, 6, 9, a, b, c]]);
        assert_eq!(faults(&proxy, &session).await, [const { Value::Null }; 5]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn continued_request_whose_history_is_not_recorded_has_an_unknown_prompt() {
    let (_upstream, proxy) = start(false).await;
    let elsewhere = ask(&proxy, "other", &[BOS, 5], (json!({"id": "e"}), false)).await;
    ask(&proxy, "s", &[BOS, 7], (json!({"id": "e", "rid": elsewhere}), false)).await;
    assert_eq!(faults(&proxy, "s").await, ["prompt_unknown"]);
    let [row] = &rows(&proxy, "s").await[..] else { panic!("one row") };
    assert_eq!(row["flags"], json!(["prompt_unknown"]), "{row}");
    assert!(row["loss_mask"].as_array().unwrap().iter().all(|mask| *mask == 0), "it is not trained: {row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streaming_session_of_the_engine_is_recorded_where_the_rid_is_named() {
    let (_upstream, proxy) = start(true).await;
    let first = ask(&proxy, "s", &[BOS, 5], (json!({"id": "e"}), false)).await;
    ask(&proxy, "s", &[7], (json!({"id": "e", "rid": first}), false)).await;
    ask(&proxy, "s", &[8], (json!({"id": "e"}), false)).await;
    assert_eq!(faults(&proxy, "s").await, [Value::Null, Value::Null, "prompt_unknown".into()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_session_of_sglang_is_resolved() {
    let [first, second] =
        ["session-2-first", "session-3-continue"].map(|case| Fixture::named(&format!("sglang-0.5.23/default/{case}")));
    let (prompt, added): ([u32; 5], [u32; 2]) = ([11, 12, 13, 14, 15], [21, 22]);
    let replies = [first.reply.clone(), second.reply.clone()];
    let script = move |asked: &UpstreamRequest| {
        let asked: Value = serde_json::from_slice(&asked.body).unwrap();
        json_message(200, &replies[usize::from(asked["session_params"]["rid"].is_string())])
    };
    let upstream = Upstream::start(EngineProfile { flat: false, ..EngineProfile::default() }, script).await;
    let proxy = Proxy::probed(upstream.addr, &["--entropy", "off"]).await;
    // the prompts of the recording are texts of as many tokens
    for (fixture, ids) in [(&first, &prompt[..]), (&second, &added[..])] {
        let params = serde_json::from_slice::<Value>(&fixture.body).unwrap()["session_params"].clone();
        ask(&proxy, "s", ids, (params, false)).await;
    }
    let sampled = [&first, &second].map(|fixture| ids(&fixture.objects().remove(0)["output_ids"]));
    let expected = [&prompt[..], &sampled[0][..3], &added, &sampled[1]].concat();
    let rows = rows(&proxy, "s").await;
    assert!(rows.iter().any(|row| ids(&row["token_ids"]) == expected), "the offset removes one token: {rows:?}");
    assert_eq!(faults(&proxy, "s").await, [const { Value::Null }; 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_that_breaks_off_keeps_the_prompt_that_the_engine_counted() {
    let script = |asked: &UpstreamRequest| {
        let continues = asked.json()["session_params"]["rid"].is_string();
        let (rid, prompt_tokens) = if continues { ("b", 6) } else { ("a", 2) };
        let mut meta = json!({
            "id": rid, "finish_reason": null, "prompt_tokens": prompt_tokens, "completion_tokens": SAMPLED.len(),
            "output_token_logprobs": SAMPLED.map(|id| json!([-0.5, id, null])),
        });
        let is_first = asked.json()["stream"] != true;
        if is_first {
            meta["finish_reason"] = json!({"type": "length", "length": SAMPLED.len()});
        }
        let reply = json!({"text": "abc", "output_ids": SAMPLED, "meta_info": meta}).to_string();
        match is_first {
            true => json_message(200, reply.as_bytes()),
            false => torn_stream(&[format!("data: {reply}\n\n").as_bytes()]),
        }
    };
    let upstream = Upstream::start(EngineProfile { flat: false, ..EngineProfile::default() }, script).await;
    let proxy = Proxy::probed(upstream.addr, &["--entropy", "off"]).await;
    let first = ask(&proxy, "s", &[BOS, 5], (json!({"id": "e"}), false)).await;
    for params in [json!({"id": "e", "rid": first}), json!({"id": "e"})] {
        let input_ids = if params["rid"].is_string() { [BOS, 7] } else { [BOS, 6] };
        let body = json!({"input_ids": input_ids, "return_logprob": true, "stream": true, "session_params": params});
        post(proxy.data, "/sessions/s/generate", body.to_string().as_bytes()).await;
    }
    assert_eq!(faults(&proxy, "s").await, [Value::Null, json!("broken"), json!("broken")]);
    let shown = get(proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(shown["list"][1]["parent"], 0, "it continues the turn that the engine continued: {shown}");
    assert_eq!(shown["list"][2]["prompt_tokens"], 2, "it continues nothing: {shown}");
}
