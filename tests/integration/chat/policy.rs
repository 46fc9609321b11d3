// SPDX-License-Identifier: Apache-2.0
//! Branches, samples, thinking that the template drops, and restarts.

use serde_json::{Value, json};

use super::super::crash::StandaloneEngine;
use super::super::support::binary::Binary;
use super::super::support::client::post;
use super::{Chat, TOKENIZER, messages, with_say};

fn continued(body: &Value, content: &str, next: &str) -> Value {
    let mut body = body.clone();
    let list = body["messages"].as_array_mut().unwrap();
    list.push(json!({"role": "assistant", "content": content}));
    list.push(json!({"role": "user", "content": next}));
    body
}

const THOUGHT: &str = "<think>\nLong thoughts.\n</think>\n\nYes.<|im_end|>";

#[tokio::test]
async fn thinking_that_the_template_drops_is_kept() {
    let chat = Chat::start(&[]).await;
    let body = json!({"messages": messages(&[("user", "Is it?")])});
    chat.say(&body, THOUGHT).await;
    chat.say(&continued(&body, "Yes.", "Sure?"), "Sure.<|im_end|>").await;
    assert!(chat.decode(&chat.last().prompt).contains("Long thoughts."));
    assert_eq!(chat.turns().await[1]["cause"], "extends");
}

#[tokio::test]
async fn earlier_thinking_branch_drops_thinking_and_retokenises() {
    let chat = Chat::start(&["--earlier-thinking", "branch"]).await;
    let body = json!({"messages": messages(&[("user", "Is it?")])});
    chat.say(&body, THOUGHT).await;
    chat.say(&continued(&body, "Yes.", "Sure?"), "Sure.<|im_end|>").await;
    let prompt = chat.decode(&chat.last().prompt);
    assert!(!prompt.contains("Long thoughts.") && prompt.contains("Yes."), "{prompt}");
    assert_eq!(chat.turns().await[1]["context_retokenised"], true);
}

#[tokio::test]
async fn each_sample_can_be_continued() {
    let chat = Chat::start(&[]).await;
    let mut body = json!({"messages": messages(&[("user", "A number?")]), "n": 3, "temperature": 1.5, "max_tokens": 6});
    let reply = chat.post(&body).await.json();
    let choices = reply["choices"].as_array().unwrap().clone();
    assert_eq!(choices.len(), 3);
    body.as_object_mut().unwrap().remove("n");
    for (at, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], at);
        let content = choice["message"]["content"].as_str().unwrap();
        chat.say(&continued(&body, content, "More?"), "No.<|im_end|>").await;
        let turns = chat.turns().await;
        let turn = turns.last().unwrap();
        assert_eq!(turn["context_retokenised"], false, "{turn}");
        assert!(turn["parent"].as_u64().unwrap() < 3);
    }
}

#[tokio::test]
async fn rewritten_history_is_a_separate_branch() {
    let chat = Chat::start(&[]).await;
    let body = json!({"messages": messages(&[("user", "One.")])});
    chat.say(&body, "Two.<|im_end|>").await;
    let deeper = continued(&body, "Two.", "Three.");
    chat.say(&deeper, "Four.<|im_end|>").await;
    // a fork after the first turn: no text is retokenised
    chat.say(&continued(&body, "Two.", "Five."), "Six.<|im_end|>").await;
    // a new conversation
    chat.say(&json!({"messages": messages(&[("user", "Seven.")])}), "Eight.<|im_end|>").await;
    let turns = chat.turns().await;
    let causes: Vec<&str> = turns.iter().map(|turn| turn["cause"].as_str().unwrap()).collect();
    assert_eq!(causes[..3], ["first", "extends", "forks"]);
    assert_eq!(turns[2]["parent"], 0);
    assert_eq!(turns[3]["parent"], Value::Null);
    assert!(turns.iter().all(|turn| turn["context_retokenised"] == false));
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_continues_after_a_restart() {
    let alone = StandaloneEngine::start().await;
    let dir = tempfile::tempdir().unwrap();
    let start_chat = async || {
        let mut binary = alone.start_binary(&dir, &["--tokenizer", TOKENIZER]).await;
        let message = "chat completions are served from tokens";
        if !binary.skipped_lines.iter().any(|line| line["message"] == message) {
            binary.logged(message).await;
        }
        binary
    };
    let ask = async |binary: &Binary, body: &Value| {
        let answer = post(binary.data, "/sessions/s/v1/chat/completions", body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    };
    let binary = start_chat().await;
    let body = json!({"messages": messages(&[("user", "Remember.")]), "return_token_ids": true});
    let reply = ask(&binary, &with_say(&body, THOUGHT)).await;
    binary.kill();
    let binary = start_chat().await;
    let next = ask(&binary, &with_say(&continued(&body, "Yes.", "What?"), "That.<|im_end|>")).await;
    let ids = |reply: &Value, name: &str| -> Vec<u64> {
        reply["choices"][0][name].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
    };
    let before = [ids(&reply, "prompt_token_ids"), ids(&reply, "token_ids")].concat();
    assert!(ids(&next, "prompt_token_ids").starts_with(&before), "the tokens survived");
}

#[tokio::test]
async fn tool_call_id_selects_among_identical_samples() {
    let chat = Chat::start(&[]).await;
    let body = json!({"messages": messages(&[("user", "Weather?")]), "tools": super::tools()});
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call><|im_end|>";
    let mut replies = Vec::new();
    for thought in ["One.", "Two.", "Three."] {
        replies.push(chat.say(&body, &format!("<think>\n{thought}\n</think>\n\n{call}")).await);
    }
    for (at, reply) in replies.iter().enumerate() {
        let call = &reply["choices"][0]["message"]["tool_calls"][0];
        let mut next = body.clone();
        let list = next["messages"].as_array_mut().unwrap();
        // drops the thinking, as most clients do
        list.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        list.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "rain"}));
        chat.say(&next, "Rain.<|im_end|>").await;
        assert_eq!(chat.turns().await.last().unwrap()["parent"], at, "the sample whose call was answered");
    }
}

#[tokio::test]
async fn reply_cut_within_its_thinking_is_resumed_there() {
    let chat = Chat::start(&[]).await;
    let mut body = json!({"messages": messages(&[("user", "Hm?")])});
    let mut cut = with_say(&body, "<think>\nIt may be that");
    cut["max_tokens"] = json!(chat.demo.encode("<think>\nIt may be that").len());
    let reply = chat.post(&cut).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let before = chat.last();
    body["messages"].as_array_mut().unwrap().push(reply["choices"][0]["message"].clone());
    body["continue_final_message"] = json!(true);
    let resumed = chat.say(&body, " it rains.\n</think>\n\nYes.<|im_end|>").await;
    assert_eq!(chat.last().prompt, [&before.prompt[..], &before.output()].concat(), "no token in between");
    assert_eq!(resumed["choices"][0]["message"]["content"], "Yes.");
    assert_eq!(resumed["choices"][0]["message"]["reasoning_content"], "it rains.");
    assert_eq!(chat.turns().await[1]["cause"], "resumes");
}
