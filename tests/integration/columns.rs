// SPDX-License-Identifier: Apache-2.0
//! The schema of jsonl, arrow and parquet: stable row keys, and text on request.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::chat::{Chat, messages};
use crate::crash::StandaloneEngine;
use crate::crash::trainers::generate_turn;
use crate::support::binary::output;
use crate::support::client::{Answer, get, post};

async fn samples(control: SocketAddr, body: &Value) -> Answer {
    post(control, "/v1/samples", body.to_string().as_bytes()).await
}

fn rows(text: &[u8]) -> Vec<Value> {
    std::str::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The leaves and keys of these rows.
fn keys(rows: &[Value]) -> Vec<(Value, Value)> {
    rows.iter().map(|row| (row["leaf"].clone(), row["row_key"].clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn row_key_is_stable_across_restarts_logs_and_versions() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &[]).await;
    generate_turn(binary.data, "s", &[1, 2, 3], "").await;
    generate_turn(binary.data, "s", &[9, 8, 7], "").await;
    let query = json!({"sessions": ["s"], "format": "jsonl"});
    let first = rows(&samples(binary.control, &query).await.body);
    assert!(first.len() == 2 && first[0]["row_key"] != first[1]["row_key"], "{first:?}");
    assert_eq!(post(binary.control, "/v1/sessions/s/freeze", b"{}").await.status, 200);
    generate_turn(binary.data, "s", &[4, 4], "").await;
    binary.kill();

    let binary = alone.start_binary(&dir, &[]).await;
    let later = rows(&samples(binary.control, &json!({"sessions": ["s"], "format": "jsonl", "version": 2})).await.body);
    assert_eq!((later.len(), &later[0]["version"]), (3, &json!(2)));
    assert_eq!(keys(&later[..2]), keys(&first), "earlier rows keep their keys");
    let args = ["export", "--format", "jsonl", "--out", "-", "--data-dir", dir.path().to_str().unwrap()];
    let done = output(&args).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(keys(&rows(&done.stdout)), keys(&first), "an export from the log has the same keys");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_columns_decode_the_ids_on_request() {
    let chat = Chat::start(&[]).await;
    chat.say(&json!({"model": "m", "messages": messages(&[("user", "What is lit?")])}), "The lamp.").await;
    let control = chat.demo.proxy.control;
    let query = |text: bool, format: &str| json!({"sessions": ["s"], "format": format, "text": text});
    let plain = rows(&samples(control, &query(false, "jsonl")).await.body).remove(0);
    assert_eq!((&plain["prompt_text"], &plain["response_text"]), (&Value::Null, &Value::Null));
    let mut row = rows(&samples(control, &query(true, "jsonl")).await.body).remove(0);
    let ids: Vec<u32> = serde_json::from_value(row["token_ids"].clone()).unwrap();
    let (prompt, response) = ids.split_at(row["prompt_length"].as_u64().unwrap() as usize);
    let (prompt, response) = (chat.decode(prompt), chat.decode(response));
    assert_eq!((&row["prompt_text"], &row["response_text"]), (&json!(prompt), &json!(response)));
    assert!(prompt.contains("<|im_end|>") && response.contains("The lamp."), "special tokens stay: {prompt}{response}");
    (row["prompt_text"], row["response_text"]) = (Value::Null, Value::Null);
    assert_eq!(row, plain, "nothing else changes");

    let refused = samples(control, &query(true, "verl")).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (400, Some("bad_request")));
    let url = format!("http://{control}");
    let done = output(&["export", "--format", "jsonl", "--out", "-", "--control", &url, "--text"]).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(rows(&done.stdout).iter().any(|row| row["response_text"] == response), "--text adds the text");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_refused_without_a_tokenizer() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let binary = alone.start_binary(&dir, &["--chat", "passthrough"]).await;
    generate_turn(binary.data, "s", &[1, 2, 3], "").await;
    let refused = samples(binary.control, &json!({"sessions": ["s"], "format": "jsonl", "text": true})).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (409, Some("no_tokenizer")));
    assert_eq!(get(binary.control, "/v1/sessions/s").await.status, 200);
    let log = ["export", "--format", "jsonl", "--out", "-", "--text", "--data-dir", dir.path().to_str().unwrap()];
    let done = output(&log).await;
    let line = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() != Some(0) && line.contains("--text needs --control"), "{line}");
}
