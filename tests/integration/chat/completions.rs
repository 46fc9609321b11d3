// SPDX-License-Identifier: Apache-2.0
//! `POST /v1/completions`, which needs no tokenizer.

use serde_json::{Value, json};

use super::super::support::client::Answer;
use super::super::support::fixture::Fixture;
use super::Chat;

async fn complete(chat: &Chat, body: Value) -> Answer {
    chat.demo.post("/sessions/c/v1/completions", &body).await
}

#[tokio::test]
async fn prompts_of_every_type_are_answered_in_order() {
    let chat = Chat::start(&[]).await;
    let ids = chat.demo.encode("The lamp");
    let with_say = |body: Value| {
        let mut body = body;
        body["custom_params"] = json!({"say": "is lit.<|im_end|>"});
        body
    };
    for (prompt, choices) in
        [(json!("The lamp"), 1), (json!(["The lamp", "A light"]), 2), (json!(ids), 1), (json!([ids, ids, ids]), 3)]
    {
        for n in [1, 2] {
            let body = with_say(json!({"prompt": prompt, "n": n, "max_tokens": 20, "temperature": 0.9}));
            let reply = complete(&chat, body.clone()).await.json();
            let list = reply["choices"].as_array().unwrap();
            assert_eq!(list.len(), choices * n, "{reply}");
            for (at, choice) in list.iter().enumerate() {
                assert_eq!((&choice["index"], &choice["text"]), (&json!(at), &json!("is lit.")));
                assert_eq!(choice["finish_reason"], "stop");
            }
            assert_eq!(reply["usage"]["prompt_tokens"], choices * prompt_tokens(&prompt, &ids));
            let mut streamed = body;
            streamed["stream"] = json!(true);
            streamed["stream_options"] = json!({"include_usage": true});
            let answer = complete(&chat, streamed).await;
            assert!(answer.text().ends_with("data: [DONE]\n\n"));
            let events = answer.events();
            for at in 0..choices * n {
                let own = events.iter().filter(|event| event["choices"][0]["index"] == at);
                let text: String = own.filter_map(|event| event["choices"][0]["text"].as_str()).collect();
                assert_eq!(text, "is lit.");
            }
            assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], reply["usage"]["completion_tokens"]);
        }
    }
}

/// The number of tokens of one prompt: "A light" has as many as "The lamp".
fn prompt_tokens(prompt: &Value, ids: &[u32]) -> usize {
    assert!(prompt.is_string() || prompt.is_array());
    ids.len()
}

#[tokio::test]
async fn default_max_tokens_is_16_and_the_turn_is_recorded() {
    let chat = Chat::start(&[]).await;
    let reply =
        complete(&chat, json!({"prompt": "The lamp", "ignore_eos": true, "return_token_ids": true})).await.json();
    assert_eq!(reply["usage"]["completion_tokens"], 16);
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let entry = chat.demo.engine.journal().pop().unwrap();
    assert_eq!(reply["choices"][0]["token_ids"], json!(entry.output()));
    assert_eq!(reply["choices"][0]["prompt_token_ids"], json!(entry.prompt));
    let shown = super::super::support::client::get(chat.demo.proxy.control, "/v1/sessions/c").await.json();
    assert_eq!(shown["list"][0]["fault"], Value::Null, "{shown}");
}

#[tokio::test]
async fn echo_prepends_the_prompt() {
    let chat = Chat::start(&[]).await;
    let body = json!({"prompt": ["The lamp", "A light"], "echo": true, "max_tokens": 3, "custom_params": {"say": " glows.<|im_end|>"}});
    let reply = complete(&chat, body).await.json();
    assert!(reply["choices"][1]["text"].as_str().unwrap().starts_with("A light glows"), "{reply}");
}

#[tokio::test]
async fn invalid_request_returns_400_with_the_cause() {
    let chat = Chat::start(&[]).await;
    for (body, expected) in [
        (json!({}), "prompt is missing"),
        (json!({"prompt": ""}), "Prompt cannot be empty"),
        (json!({"prompt": []}), "Prompt cannot be empty"),
        (json!({"prompt": 5}), "prompt must be"),
        (json!({"prompt": "x", "n": "two"}), "n must be a whole number"),
        (json!({"prompt": "x", "logprobs": -1}), "logprobs must be a count"),
        (json!({"prompt": "x", "max_tokens": "many"}), ""),
    ] {
        let answer = complete(&chat, body.clone()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert!(answer.json()["message"].as_str().unwrap().contains(expected), "{body}: {}", answer.text());
    }
}

#[tokio::test]
async fn tokens_of_logprobs_are_their_ids_if_requested() {
    let chat = Chat::start(&[]).await;
    let body = json!({
        "model": "m", "prompt": "The lamp", "max_tokens": 6, "temperature": 0, "logprobs": 2,
        "return_token_ids": true, "return_tokens_as_token_ids": true,
    });
    let choice = complete(&chat, body).await.json()["choices"][0].clone();
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
    let names: Vec<String> = ids.iter().map(|id| format!("token_id:{id}")).collect();
    assert_eq!(choice["logprobs"]["tokens"], json!(names));
    for (top, name) in choice["logprobs"]["top_logprobs"].as_array().unwrap().iter().zip(&names) {
        let top = top.as_object().unwrap();
        assert!(top.len() == 2 && top.keys().all(|name| name.starts_with("token_id:")), "{top:?}");
        assert!(top.contains_key(name), "greedy: {top:?}");
    }
}

/// SGLang's recorded reply.
fn recorded(name: &str) -> String {
    String::from_utf8(Fixture::named(name).reply).unwrap()
}

/// Compares names and order of the members with SGLang's recorded replies, not the values: the demo engine samples other text.
#[tokio::test]
async fn replies_have_the_members_of_recorded_ones() {
    let chat = Chat::start(&[]).await;
    let names = |text: &str| -> Vec<String> {
        // serde_json sorts, so the order is read from the text
        let mut found: Vec<(usize, String)> = Vec::new();
        for name in [
            "id",
            "object",
            "created",
            "model",
            "choices",
            "index",
            "text",
            "logprobs",
            "text_offset",
            "token_logprobs",
            "tokens",
            "top_logprobs",
            "finish_reason",
            "matched_stop",
            "usage",
            "prompt_tokens",
            "total_tokens",
            "completion_tokens",
            "prompt_tokens_details",
            "reasoning_tokens",
            "completion_tokens_details",
            "metadata",
            "weight_version",
        ] {
            if let Some(at) = text.find(&format!("\"{name}\":")) {
                found.push((at, name.to_owned()));
            }
        }
        found.sort();
        found.into_iter().map(|(_, name)| name).collect()
    };
    let theirs = recorded("sglang-0.5.23/default/completions-logprobs5");
    let body = json!({"model": "m", "prompt": "The lamp", "max_tokens": 6, "logprobs": 5});
    assert_eq!(names(&complete(&chat, body).await.text()), names(&theirs));
    let theirs = recorded("sglang-0.5.23/default/completions-ids-stream");
    let body = json!({"model": "m", "prompt": [1, 2, 3], "max_tokens": 4, "logprobs": 2, "stream": true});
    assert_eq!(names(&complete(&chat, body).await.text()), names(&theirs));
    let theirs = recorded("sglang-0.5.23/default/chat-plain");
    let body = json!({"model": "m", "messages": super::messages(&[("user", "x")]), "max_tokens": 4});
    assert_eq!(names(&chat.post(&body).await.text()), names(&theirs));
}
