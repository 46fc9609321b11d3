// SPDX-License-Identifier: Apache-2.0
//! Limits of conversations, drift, and streams that are kept alive.

use std::time::Duration;

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Streaming};

use super::super::support::client::get;
use super::super::support::manual_upstream::soon;
use super::{Chat, messages, tools, with_say};

#[tokio::test]
async fn conversation_over_its_limit_returns_403() {
    let chat = Chat::start(&["--chat-limits", "turns=2,tool-calls=1"]).await;
    let turns = |list: &[(&str, &str)]| json!({"messages": messages(list)});
    chat.say(&turns(&[("user", "a"), ("assistant", "b"), ("user", "c")]), "d<|im_end|>").await;
    let answer =
        chat.post(&turns(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")])).await;
    assert_eq!(answer.status, 403);
    assert!(
        answer.json()["message"].as_str().unwrap().contains("may have 2 (--chat-limits turns)"),
        "{}",
        answer.text()
    );
    let call = json!({"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}});
    let looped = json!({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ], "tools": tools()});
    assert_eq!(chat.post(&looped).await.status, 403);
    assert_eq!(chat.demo.proxy.metric("tokentap_chat_refusals_total{limit=\"turns\"}").await, 1.0);
    assert_eq!(chat.demo.proxy.metric("tokentap_chat_refusals_total{limit=\"tool_calls\"}").await, 1.0);
}

/// Waits for a series to reach a value.
async fn wait_for_metric(chat: &Chat, series: &str, value: f64) {
    soon(series, async {
        while chat.demo.proxy.metric(series).await < value {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_counted_by_kind() {
    let chat = Chat::start(&["limit:drift-sample", "1"]).await;
    let next = |reply: &Value, body: &Value| {
        let mut body = body.clone();
        let list = body["messages"].as_array_mut().unwrap();
        list.push(reply["choices"][0]["message"].clone());
        list.push(json!({"role": "user", "content": "And?"}));
        body
    };
    let body = json!({"messages": messages(&[("user", "Say it.")])});
    let reply = chat.say(&body, "The lamp is lit.<|im_end|>").await;
    chat.say(&next(&reply, &body), "x<|im_end|>").await;
    wait_for_metric(&chat, "tokentap_chat_drift_total{drift=\"none\"}", 1.0).await;
    // the same text in other tokens
    let mut odd = body.clone();
    odd["messages"][0]["content"] = json!("Say it otherwise.");
    let letters: Vec<u32> = "The lamp".chars().flat_map(|letter| chat.demo.encode(&letter.to_string())).collect();
    let end = chat.demo.encode("<|im_end|>");
    let mut asked = odd.clone();
    let ids = [letters, end].concat();
    asked["custom_params"] = json!({ "say": ids });
    let reply = chat.post(&asked).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "The lamp");
    chat.say(&next(&reply, &odd), "x<|im_end|>").await;
    wait_for_metric(&chat, "tokentap_chat_drift_total{drift=\"sampled_text\"}", 1.0).await;
    // thinking that the template drops removes no control token of this model
    let mut thought = body.clone();
    thought["messages"][0]["content"] = json!("Think.");
    let reply = chat.say(&thought, "<think>\nHm.\n</think>\n\nDone.<|im_end|>").await;
    chat.say(&next(&reply, &thought), "x<|im_end|>").await;
    wait_for_metric(&chat, "tokentap_chat_drift_total{drift=\"sampled_text\"}", 2.0).await;
    let metrics = get(chat.demo.proxy.control, "/metrics").await.text();
    assert!(metrics.contains("tokentap_chat_prompts_total{how=\"extended\"} 3"), "{metrics}");
    assert!(!metrics.contains("special_count") && !metrics.contains("other_text"));
}

#[tokio::test]
async fn silent_stream_gets_keepalive_comments() {
    let options = EngineOptions {
        streaming: Streaming::Incremental,
        token_delay: Some(Duration::from_millis(40)),
        ..EngineOptions::default()
    };
    let chat = Chat::with(options, &["--sse-keepalive", "5ms"]).await;
    let mut body = with_say(&json!({"messages": messages(&[("user", "x")])}), "The lamp.<|im_end|>");
    body["stream"] = json!(true);
    let text = chat.post(&body).await.text();
    assert!(text.starts_with(": keep-alive\n\n") && text.ends_with("data: [DONE]\n\n"), "{text}");
}
