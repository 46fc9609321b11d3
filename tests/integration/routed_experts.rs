// SPDX-License-Identifier: Apache-2.0
//! Routing replay: routed experts that tokentap requests, joined along paths, against the routing of the demo engine.

use std::net::SocketAddr;
use std::time::Duration;

use base64_simd::STANDARD;
use serde_json::{Value, json};
use tokentap::demo::experts::{ExpertRouter, ExpertRow};
use tokentap::demo::{EngineOptions, Streaming};

use super::chat::Chat;
use super::support::binary::output as run;
use super::support::client::{get, post};
use super::support::demo::Demo;
use super::support::proxy::Proxy;
use super::support::upstream::{EngineProfile, Upstream, json_message};

const FLAGS: [&str; 4] = ["--columns", "routed_experts", "--moe-shape", "3x2x8"];

async fn demo(options: EngineOptions, flags: &[&str]) -> Demo {
    Demo::start(EngineOptions { routed_experts: true, ..options }, &[&FLAGS, flags].concat()).await
}

/// The routing of all tokens but the last, with the weights of this number.
fn truth(tokens: &[u32], weights: u64) -> Vec<ExpertRow> {
    let mut router = ExpertRouter::default();
    tokens[..tokens.len() - 1].iter().for_each(|token| router.process(*token, weights));
    router.rows().to_vec()
}

fn ids(row: &Value) -> Vec<u32> {
    serde_json::from_value(row["token_ids"].clone()).unwrap()
}

/// The rows of a session in JSON.
async fn rows(control: SocketAddr, session: &str) -> Vec<Value> {
    let mut found = get(control, &format!("/v1/sessions/{session}/trajectories")).await.json();
    serde_json::from_value(found["trajectories"].take()).unwrap()
}

/// The experts of a row by token; `None` where it has none.
fn experts(row: &Value) -> Vec<Option<Vec<i32>>> {
    let [column] = &row["columns"].as_array().unwrap_or_else(|| panic!("no columns: {row}"))[..] else {
        panic!("{row}")
    };
    assert_eq!((&column["name"], &column["type"]), (&json!("routed_experts"), &json!("u8")));
    assert_eq!(column["shape"], json!([3, 2]));
    let data = STANDARD.decode_to_vec(column["data"].as_str().unwrap()).unwrap();
    let mut each = data.chunks_exact(6).map(|row| row.iter().map(|expert| i32::from(*expert)).collect());
    let mut found = vec![None; ids(row).len()];
    for range in column["tokens"].as_array().unwrap() {
        let at = |name: &str| usize::try_from(range[name].as_u64().unwrap()).unwrap();
        found[at("start")..at("end")].iter_mut().for_each(|slot| *slot = each.next());
    }
    assert_eq!(each.next(), None);
    found
}

/// Checks that all tokens but the last have the experts of the first weights.
fn check(row: &Value, about: &str) {
    let mut expected: Vec<Option<Vec<i32>>> = truth(&ids(row), 0).iter().map(|row| Some(row.to_vec())).collect();
    expected.push(None);
    assert_eq!(experts(row), expected, "{about}: {row}");
    assert!(!row["flags"].to_string().contains("column"), "{about}: {row}");
}

async fn ask(demo: &Demo, session: &str, prompt: &[u32], more: Value) -> Value {
    let mut body = json!({"input_ids": prompt, "sampling_params": {"max_new_tokens": 5, "temperature": 0.9}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = demo.post(&format!("/sessions/{session}/generate"), &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let asks = more.get("return_routed_experts").is_some();
    assert_eq!(text.contains("routed_experts"), asks, "only a client that asks for it gets it: {text}");
    if more.get("stream").is_some() { answer.events().pop().unwrap() } else { answer.json() }
}

fn output(reply: &Value) -> Vec<u32> {
    serde_json::from_value(reply["output_ids"].clone()).unwrap()
}

#[tokio::test]
async fn pieces_of_a_path_fit_together_in_every_mode_of_stream() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let demo = demo(EngineOptions { streaming, journal: true, ..EngineOptions::default() }, &[]).await;
        let mut prompt = demo.encode("The ship went down the river");
        for (at, more) in
            [json!({}), json!({"stream": true}), json!({"return_logprob": true}), json!({})].into_iter().enumerate()
        {
            ask(&demo, "s", &prompt, more).await;
            let row = rows(demo.proxy.control, "s").await.remove(0);
            check(&row, &format!("{streaming:?}, turn {at}"));
            prompt = ids(&row);
            prompt.extend(demo.encode(" and then"));
        }
        let row = rows(demo.proxy.control, "s").await.remove(0);
        let turns = row["turns"].as_array().unwrap();
        assert!(turns.iter().all(|turn| turn["extras"] == json!({})), "{turns:?}");
    }
}

#[tokio::test]
async fn client_that_asks_itself_gets_its_own_start() {
    let demo = demo(EngineOptions::default(), &[]).await;
    let prompt = demo.encode("The ship went down the river");
    let reply = ask(&demo, "s", &prompt, json!({"return_routed_experts": true, "routed_experts_start_len": 2})).await;
    let data = STANDARD.decode_to_vec(reply["meta_info"]["routed_experts"].as_str().unwrap()).unwrap();
    assert_eq!(data.len(), 4 * 6 * (prompt.len() + output(&reply).len() - 1 - 2));
    let row = rows(demo.proxy.control, "s").await.remove(0);
    assert_eq!(row["turns"][0]["missing_columns"], json!([{"name": "routed_experts", "reason": "client_start"}]));
    assert_eq!(row["flags"], json!(["column_missing"]));
    let found = experts(&row);
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>()[..3], [false, false, true]);
    // the next turn of the path asks for nothing twice
    let next = [prompt, output(&reply), demo.encode(" and")].concat();
    ask(&demo, "s", &next, json!({})).await;
    let row = rows(demo.proxy.control, "s").await.remove(0);
    assert_eq!(row["turns"][1].get("missing_columns"), None, "{row}");
    assert_eq!(row["flags"], json!(["extends_length", "column_missing"]));
    let expected = truth(&ids(&row), 0);
    for (at, found) in experts(&row).into_iter().enumerate() {
        assert_eq!(found, expected.get(at).filter(|_| at >= 2).map(|row| row.to_vec()), "token {at}");
    }
}

/// A client that counts the tokens of the path itself, as strands-sglang does.
#[tokio::test]
async fn row_is_whole_where_the_start_of_the_client_is_that_of_the_path() {
    let demo = demo(EngineOptions::default(), &[]).await;
    let mut prompt = demo.encode("The ship went down the river");
    let mut start = 0;
    for _ in 0..3 {
        let more = json!({"return_routed_experts": true, "routed_experts_start_len": start});
        let reply = ask(&demo, "s", &prompt, more).await;
        prompt.extend(output(&reply));
        start = prompt.len() - 1;
        prompt.extend(demo.encode(" and then"));
    }
    check(&rows(demo.proxy.control, "s").await[0], "the client's starts");
}

/// SGLang before it had `routed_experts_start_len`: each turn returns the experts of the whole path.
#[tokio::test]
async fn rows_of_an_engine_that_ignores_the_start_are_those_of_their_tokens() {
    for (flags, width) in [(&FLAGS[..], 6), (&FLAGS[..2], 12)] {
        let options = EngineOptions { routed_experts: true, ignores_experts_start: true, ..EngineOptions::default() };
        let demo = Demo::start(options, flags).await;
        let mut prompt = demo.encode("The ship went down the river");
        for _ in 0..2 {
            // the payload of the second turn has twice as many rows as it should: they could be half as many of twice the width
            let params = json!({"max_new_tokens": prompt.len() - 1, "ignore_eos": true, "top_k": 1});
            ask(&demo, "s", &prompt, json!({"sampling_params": params})).await;
            prompt = ids(&rows(demo.proxy.control, "s").await[0]);
        }
        let row = rows(demo.proxy.control, "s").await.remove(0);
        assert_eq!((&row["flags"], row["turns"].as_array().unwrap().len()), (&json!([]), 2), "{row}");
        let column = &row["columns"][0];
        assert_eq!(column["tokens"], json!([{"start": 0, "end": prompt.len() - 1}]));
        let data = STANDARD.decode_to_vec(column["data"].as_str().unwrap()).unwrap();
        let found: Vec<i32> = data.chunks(width / 6).map(|number| i32::from(number[0])).collect();
        assert_eq!(found, truth(&prompt, 0).concat(), "{flags:?}");
    }
}

/// A client disconnects, and the next turn reports the experts of its tokens.
#[tokio::test]
async fn row_whose_gap_a_later_turn_closed_lacks_no_column() {
    let options = EngineOptions {
        streaming: Streaming::Incremental,
        token_delay: Some(Duration::from_millis(5)),
        journal: true,
        ..EngineOptions::default()
    };
    let demo = demo(options, &[]).await;
    let prompt = demo.encode("The ship went down the river");
    let body = json!({"input_ids": prompt, "rid": "r", "stream": true, "sampling_params": {"max_new_tokens": 200, "ignore_eos": true}});
    let cut_off = async || -> Option<Value> {
        let row = rows(demo.proxy.control, "s").await.pop()?;
        (row["turns"][0]["missing_columns"] == json!([{"name": "routed_experts", "reason": "cut_off"}])).then_some(row)
    };
    tokio::select! {
        _ = demo.post("/sessions/s/generate", &body) => unreachable!("it has no end"),
        () = async {
            while !demo.engine.journal().iter().any(|entry| entry.rid == "r" && entry.sampled.len() >= 3) {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    let row = loop {
        if let Some(row) = cut_off().await {
            break row;
        }
    };
    assert!(row["flags"].to_string().contains("column_missing"), "{row}");
    ask(&demo, "s", &[ids(&row), demo.encode(" and then")].concat(), json!({})).await;
    let row = rows(demo.proxy.control, "s").await.remove(0);
    check(&row, "the gap is closed");
    assert_eq!(row["turns"][0]["missing_columns"], json!([{"name": "routed_experts", "reason": "cut_off"}]));
}

/// SGLang's reply to an abort in its waiting queue has no routed experts.
#[tokio::test]
async fn columns_of_a_request_that_is_aborted_in_the_queue_are_cut_off() {
    let profile =
        EngineProfile { server_info: json!({"enable_return_routed_experts": true}), ..EngineProfile::default() };
    let finish = json!({"type": "abort", "message": "Abort in waiting queue"});
    let meta =
        json!({"id": "r", "finish_reason": finish, "weight_version": "w", "e2e_latency": 0.5, "completion_tokens": 0});
    let reply = json!({"text": "", "output_ids": [], "meta_info": meta}).to_string();
    let engine = Upstream::start(profile, move |_| json_message(200, reply.as_bytes())).await;
    let proxy = Proxy::probed(engine.addr, &FLAGS).await;
    let answer = post(proxy.data, "/sessions/s/generate", br#"{"input_ids":[1,2,3]}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let metrics = get(proxy.control, "/metrics").await.text();
    let line = r#"tokentap_missing_columns_total{column="routed_experts",reason="cut_off"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn samples_and_batches_have_their_own_experts() {
    let demo = demo(EngineOptions::default(), &[]).await;
    let (one, two) = (demo.encode("The ship went down"), demo.encode("A house"));
    let body = json!({"input_ids": [one, two], "sampling_params": {"n": 2, "max_new_tokens": 4, "temperature": 1.0}});
    let answer = demo.post("/sessions/s/generate", &body).await;
    assert!(!answer.text().contains("routed_experts"), "{}", answer.text());
    let found = rows(demo.proxy.control, "s").await;
    assert_eq!(found.len(), 4);
    found.iter().for_each(|row| check(row, "a batch"));
}

#[tokio::test]
async fn aborted_turn_has_its_experts_and_is_continued() {
    let options = EngineOptions {
        streaming: Streaming::Incremental,
        token_delay: Some(Duration::from_millis(5)),
        journal: true,
        ..EngineOptions::default()
    };
    let demo = demo(options, &[]).await;
    let prompt = demo.encode("The ship went down the river");
    let body = json!({"input_ids": prompt, "rid": "r", "stream": true, "sampling_params": {"max_new_tokens": 200, "ignore_eos": true}});
    let aborts = async {
        while !demo.engine.journal().iter().any(|entry| entry.rid == "r" && entry.sampled.len() >= 3) {
            tokio::task::yield_now().await;
        }
        loop {
            post(demo.proxy.control, "/abort_request", br#"{"rid":"r"}"#).await;
        }
    };
    let answer = tokio::select! {
        answer = demo.post("/sessions/s/generate", &body) => answer,
        () = aborts => unreachable!("it has no end"),
    };
    let events = answer.events();
    assert_eq!(events.last().unwrap()["meta_info"]["finish_reason"]["type"], "abort");
    let sampled: Vec<u32> = events.iter().flat_map(output).collect();
    let next = [prompt, sampled, demo.encode(" and then")].concat();
    ask(&demo, "s", &next, json!({})).await;
    let row = rows(demo.proxy.control, "s").await.remove(0);
    let mut expected: Vec<Option<Vec<i32>>> = truth(&ids(&row), 0).iter().map(|row| Some(row.to_vec())).collect();
    expected.push(None);
    assert_eq!(experts(&row), expected);
}

#[tokio::test]
async fn rows_of_the_earlier_weights_are_kept_after_an_update() {
    let demo = demo(EngineOptions::default(), &[]).await;
    let prompt = demo.encode("The ship went down the river");
    let first = ask(&demo, "s", &prompt, json!({})).await;
    let known = [prompt, output(&first)].concat();
    let body = json!({"model_path": "other", "weight_version": "w2"});
    let answer = post(demo.proxy.control, "/update_weights_from_disk", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let next = [known.clone(), demo.encode(" and then")].concat();
    ask(&demo, "s", &next, json!({})).await;
    let row = rows(demo.proxy.control, "s").await.remove(0);
    let (old, new) = (truth(&ids(&row), 0), truth(&ids(&row), 1));
    assert_ne!(old, new, "the routing depends on the weights");
    for (at, found) in experts(&row).into_iter().enumerate() {
        let expected = if at < known.len() - 1 { &old } else { &new };
        assert_eq!(found, expected.get(at).map(|row| row.to_vec()), "token {at}");
    }
    assert!(!row["flags"].to_string().contains("column"), "the engine retracted nothing: {row}");
}

/// A generation during which a trainer pauses the engine in this mode, changes the weights, and continues. The session has the name of the
/// mode. Returns its row.
async fn updated_during(demo: &Demo, mode: &str) -> Value {
    let prompt = demo.encode("The ship went down the river");
    let params = json!({"max_new_tokens": 200, "ignore_eos": true, "temperature": 0.9});
    let body = json!({"input_ids": prompt, "rid": mode, "sampling_params": params});
    let trainer = async {
        while !demo.engine.journal().iter().any(|entry| entry.rid == mode && entry.sampled.len() >= 3) {
            tokio::task::yield_now().await;
        }
        // the engine cannot flush the state of generations that it holds in place
        let update = json!({"model_path": "other", "weight_version": mode, "flush_cache": false});
        for (path, body) in [
            ("/pause_generation", json!({"mode": mode})),
            ("/update_weights_from_disk", update),
            ("/continue_generation", json!({})),
        ] {
            let answer = post(demo.proxy.control, path, body.to_string().as_bytes()).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
    };
    let path = format!("/sessions/{mode}/generate");
    let (answer, ()) = tokio::join!(demo.post(&path, &body), trainer);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let row = rows(demo.proxy.control, mode).await.remove(0);
    let flags = row["flags"].as_array().unwrap();
    assert!(flags.contains(&json!("crosses_versions")), "{mode}: {flags:?}");
    row
}

/// The engine processes the tokens of a retracted generation again, so those before the update may have the experts of either weights.
#[tokio::test(flavor = "multi_thread")]
async fn turn_that_was_retracted_across_an_update_is_uncertain() {
    let options =
        EngineOptions { token_delay: Some(Duration::from_millis(5)), journal: true, ..EngineOptions::default() };
    let demo = demo(options, &[]).await;
    for (mode, is_uncertain) in [("retract", true), ("in_place", false)] {
        let row = updated_during(&demo, mode).await;
        let flags = row["flags"].as_array().unwrap();
        assert_eq!(flags.contains(&json!("column_uncertain")), is_uncertain, "{mode}: {flags:?}");
        assert_eq!(row["turns"][0].get("missing_columns"), None, "{mode}: the column is complete");
        assert_eq!(experts(&row).iter().flatten().count(), ids(&row).len() - 1, "{mode}");
    }
    // a trainer that needs certain values leaves the row out
    let query = json!({"sessions": ["retract", "in_place"], "format": "jsonl", "exclude": ["column_uncertain"]});
    let export = post(demo.proxy.control, "/v1/samples", query.to_string().as_bytes()).await;
    assert_eq!(export.header("tokentap-refused"), Some(r#"{"column_uncertain":1}"#), "{}", export.text());
    let kept: Vec<Value> = export.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kept.iter().map(|row| &row["session"]).collect::<Vec<_>>(), [&json!("in_place")]);
}

#[tokio::test]
async fn column_that_the_engine_does_not_return_is_missing_with_a_reason() {
    let demo = Demo::start(EngineOptions::default(), &FLAGS).await;
    let prompt = demo.encode("The ship");
    for _ in 0..2 {
        ask(&demo, "s", &prompt, json!({})).await;
    }
    let row = rows(demo.proxy.control, "s").await.remove(0);
    assert_eq!(row["turns"][0]["missing_columns"], json!([{"name": "routed_experts", "reason": "not_returned"}]));
    assert_eq!(row["flags"], json!(["column_missing"]));
    assert_eq!(row.get("columns"), None);
    let metrics = get(demo.proxy.control, "/metrics").await.text();
    let line = r#"tokentap_missing_columns_total{column="routed_experts",reason="not_returned"} 2"#;
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn experts_that_do_not_fit_the_reply_are_not_requested() {
    let flags = ["--columns", "routed_experts", "--moe-shape", "1000x100x128"];
    let demo = Demo::start(EngineOptions { routed_experts: true, ..EngineOptions::default() }, &flags).await;
    let prompt = demo.encode("The ship");
    ask(&demo, "s", &prompt, json!({"sampling_params": {"max_new_tokens": 1000, "top_k": 1, "stop": "e"}})).await;
    let row = rows(demo.proxy.control, "s").await.remove(0);
    assert_eq!(row["turns"][0]["missing_columns"], json!([{"name": "routed_experts", "reason": "reply_budget"}]));
    // a shape that is not the engine's
    ask(&demo, "t", &prompt, json!({"sampling_params": {"max_new_tokens": 5}})).await;
    let row = rows(demo.proxy.control, "t").await.remove(0);
    assert_eq!(row["turns"][0]["missing_columns"], json!([{"name": "routed_experts", "reason": "length"}]));
    assert_eq!(row["turns"][0]["extras"], json!({}), "the client did not ask for it");
}

/// The routed experts in the `sglext` of each object of a reply.
fn sglext(objects: &[Value]) -> Vec<&Value> {
    objects.iter().filter_map(|object| object.get("sglext")?.get("routed_experts")).collect()
}

#[tokio::test]
async fn chats_and_completions_return_experts_in_sglext_as_sglang_does() {
    let demo = Chat::with(EngineOptions { routed_experts: true, ..EngineOptions::default() }, &FLAGS).await.demo;
    let (chat, completion) = ("/v1/chat/completions", "/v1/completions");
    for (path, prompt) in
        [(chat, json!({"messages": [{"role": "user", "content": "hi"}]})), (completion, json!({"prompt": "The ship"}))]
    {
        for (stream, asks, n) in [(false, true, 2), (true, true, 2), (false, false, 1), (true, false, 1)] {
            let session = format!("s{}-{stream}-{asks}", path.len());
            let mut body = json!({"model": "m", "max_tokens": 4, "stream": stream, "n": n, "stream_options": {"include_usage": true}});
            body.as_object_mut().unwrap().extend(prompt.as_object().unwrap().clone());
            if asks {
                body["return_routed_experts"] = json!(true);
            }
            let answer = demo.post(&format!("/sessions/{session}{path}"), &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let objects = if stream { answer.events() } else { vec![answer.json()] };
            let found = sglext(&objects);
            assert_eq!(found.len(), usize::from(asks), "{path}, stream {stream}: {}", answer.text());
            let saved = rows(demo.proxy.control, &session).await;
            saved.iter().for_each(|row| check(row, path));
            let Some(found) = found.first() else { continue };
            let data = STANDARD.decode_to_vec(found.as_str().unwrap()).unwrap();
            let integers: Vec<i32> =
                data.chunks(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap())).collect();
            let is_of = |row: &Value| truth(&ids(row), 0).concat() == integers;
            assert!(saved.iter().any(is_of), "those of one choice");
            if stream {
                let at = objects.iter().position(|object| object.get("sglext").is_some()).unwrap();
                assert_eq!(objects[at]["choices"], json!([]));
                assert!(objects[at + 1]["usage"].is_object(), "the usage follows");
            }
        }
    }
}

/// The experts of a file of miles are those of all rows or of none, so the export says which rows lack them, and can leave them out.
#[tokio::test(flavor = "multi_thread")]
async fn incomplete_rows_are_reported_and_excluded() {
    let demo = demo(EngineOptions::default(), &[]).await;
    let prompt = demo.encode("The ship went down the river");
    ask(&demo, "whole", &prompt, json!({})).await;
    ask(&demo, "part", &prompt, json!({"return_routed_experts": true, "routed_experts_start_len": 2})).await;
    let incomplete = r#"{"partial_routed_experts":1}"#;
    for (format, name) in [
        ("miles", "rollout_routed_experts.0"),
        ("verl", "routed_experts"),
        ("slime", "rollout_routed_experts"),
        ("skyrl", r#""rollout_expert_indices":[["#),
    ] {
        let export = async |more: Value| {
            let mut body = json!({"sessions": ["whole", "part"], "format": format});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let answer = post(demo.proxy.control, "/v1/samples", body.to_string().as_bytes()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer
        };
        let holds = |body: &[u8]| body.windows(name.len()).any(|part| part == name.as_bytes());
        let mixed = export(json!({})).await;
        assert!(!holds(&mixed.body), "{format}");
        assert_eq!(mixed.header("tokentap-incomplete"), Some(incomplete), "{format}");
        let whole = export(json!({"exclude": ["column_uncertain", "partial_routed_experts"]})).await;
        assert!(holds(&whole.body), "{format}");
        assert_eq!(whole.header("tokentap-incomplete"), Some("{}"), "{format}");
        assert_eq!(whole.header("tokentap-refused"), Some(incomplete), "{format}");
    }
    let url = format!("http://{}", demo.proxy.control);
    let done = run(&["export", "--control", &url, "--format", "miles", "--out", "-"]).await;
    let line = "tokentap: warning: partial_routed_experts in 1 row: ";
    assert!(String::from_utf8_lossy(&done.stderr).contains(line), "{}", String::from_utf8_lossy(&done.stderr));
    let excluded =
        ["export", "--control", &url, "--format", "miles", "--out", "-", "--exclude", "partial_routed_experts"];
    let stderr = String::from_utf8(run(&excluded).await.stderr).unwrap();
    assert!(stderr.contains("refused: 1 partial_routed_experts") && !stderr.contains("warning"), "{stderr}");
}

/// `check` compares the shape with what the engine returns, which is 3 layers of 2 experts.
#[tokio::test(flavor = "multi_thread")]
async fn check_compares_the_shape_with_a_generation() {
    let demo = demo(EngineOptions::default(), &[]).await;
    let url = format!("http://{}", demo.direct);
    for (shape, code, part) in [
        ("3x2x8", 0, "; the engine returns 6 numbers, and that they are 3 x 2 and not 2 x 3 cannot be detected"),
        ("48x8x128", 1, "the engine returns 6 numbers for each token, and 48 x 8 are 384; correct --moe-shape"),
        ("3x2x4", 1, "the engine returns an expert above the last, 3; correct --moe-shape"),
        ("2x3x8", 0, "that they are 2 x 3 and not 3 x 2 cannot be detected"),
    ] {
        let done = run(&["check", "--upstream", &url, "--columns", "routed_experts", "--moe-shape", shape]).await;
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(text.contains(part), "{shape}: {text}");
        assert_eq!(done.status.code(), Some(code), "{shape}: {text}");
    }
}
