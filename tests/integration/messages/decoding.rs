// SPDX-License-Identifier: Apache-2.0
//! The prompts of requests with blocks of all types.

use serde_json::{Value, json};

use super::{request, start, text, tools, user};

#[tokio::test]
async fn blocks_become_messages_in_their_order() {
    let chat = start().await;
    let mut body = request(&[
        user("One?"),
        json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            text("I look."),
            {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Oslo"}},
        ]}),
        user(json!([
            text("Before."),
            {"type": "tool_result", "tool_use_id": "a", "content": [text("rain"), text("wind")]},
            {"type": "search_result", "title": "T", "source": "S", "content": [text("C")]},
        ])),
    ]);
    body["system"] = json!([text("A"), text("B")]);
    body["tools"] = tools();
    chat.say(&body, "Two.<|im_end|>").await;
    let prompt = chat.decode(&chat.last().prompt);
    let mut at = 0;
    for part in [
        "A\nB",
        "\"name\": \"weather\"",
        "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n",
        "I look.",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call><|im_end|>\n",
        "<|im_start|>user\nBefore.<|im_end|>\n",
        "rain",
        "wind",
        "Title: T\nSource: S\nContent: C<|im_end|>\n<|im_start|>assistant\n",
    ] {
        let found = prompt[at..].find(part);
        at += found.unwrap_or_else(|| panic!("{part:?} is not behind byte {at} of {prompt}"));
    }
}

#[tokio::test]
async fn last_assistant_message_is_continued() {
    let chat = start().await;
    let body = request(&[user("Oslo?"), json!({"role": "assistant", "content": "It rains in"})]);
    let reply = chat.say(&body, " Oslo.<|im_end|>").await;
    assert_eq!(reply["content"], json!([text(" Oslo.")]), "{reply}");
    assert!(chat.decode(&chat.last().prompt).ends_with("<|im_start|>assistant\nIt rains in"));
}

#[tokio::test]
async fn forced_calls_and_schemas_constrain_the_reply() {
    let chat = start().await;
    let mut body = request(&[user("Oslo?")]);
    body["tools"] = tools();
    body["tool_choice"] = json!({"type": "tool", "name": "forecast"});
    let reply = chat.say(&body, r#"[{"name": "forecast", "parameters": {"city": "Oslo"}}]<|im_end|>"#).await;
    let block = &reply["content"][0];
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("forecast")), "{reply}");
    assert_eq!((&block["input"], &reply["stop_reason"]), (&json!({"city": "Oslo"}), &json!("tool_use")));
    body["output_config"] = json!({"format": {"type": "json_schema", "schema": {"type": "object"}}});
    assert_eq!(chat.post(&body).await.status, 400);
    body["tool_choice"] = Value::Null;
    assert_eq!(chat.say(&body, "{}<|im_end|>").await["content"][0]["text"], "{}");
}

/// Anthropic's tools that the client executes: the type, the name, and members of its input.
const CLIENT_TOOLS: [(&str, &str, &[&str]); 10] = [
    ("bash_20241022", "bash", &["command", "restart"]),
    ("bash_20250124", "bash", &["command", "restart"]),
    ("text_editor_20241022", "str_replace_editor", &["path", "undo_edit", "old_str", "view_range"]),
    ("text_editor_20250124", "str_replace_editor", &["path", "undo_edit", "new_str"]),
    ("text_editor_20250429", "str_replace_based_edit_tool", &["path", "new_str", "insert_line"]),
    ("text_editor_20250728", "str_replace_based_edit_tool", &["path", "file_text", "insert_text"]),
    ("memory_20250818", "memory", &["path", "old_path", "new_path", "rename"]),
    ("computer_20241022", "computer", &["screenshot", "coordinate", "1024 pixels wide and 768 pixels high"]),
    ("computer_20250124", "computer", &["scroll_direction", "duration", "triple_click"]),
    ("computer_20251124", "computer", &["scroll_amount", "zoom", "region"]),
];

#[tokio::test]
async fn tools_that_the_client_executes_have_their_published_schema() {
    for (kind, name, parts) in CLIENT_TOOLS {
        let chat = start().await;
        let mut body = request(&[user("Do it.")]);
        body["tools"] = json!([{"type": kind, "name": name, "display_width_px": 1024, "display_height_px": 768,
            "enable_zoom": true, "max_characters": 100, "cache_control": {"type": "ephemeral"}}]);
        let say = format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"command\": \"view\"}}}}\n</tool_call><|im_end|>"
        );
        let reply = chat.say(&body, &say).await;
        let block = &reply["content"][0];
        assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!(name)), "{kind}: {reply}");
        assert_eq!(block["input"], json!({"command": "view"}), "{kind}");
        let prompt = chat.decode(&chat.last().prompt);
        for part in [&[&*format!("\"name\": \"{name}\""), "\"description\""][..], parts].concat() {
            assert!(prompt.contains(part), "{kind}: {part}: {prompt}");
        }
        assert_eq!(chat.demo.proxy.metric("tokentap_chat_skipped_parts_total").await, 0.0, "{kind}");
        let result = json!({"type": "tool_result", "tool_use_id": block["id"], "content": "ok"});
        body["messages"]
            .as_array_mut()
            .unwrap()
            .extend([json!({"role": "assistant", "content": reply["content"]}), user(json!([result]))]);
        body["tool_choice"] = json!({"type": "tool", "name": name});
        let answer = chat.post(&body).await;
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text());
        assert_eq!(chat.turns().await[1]["cause"], "extends", "{kind}");
    }
}

#[tokio::test]
async fn zoom_is_shown_only_if_the_client_allows_it() {
    let chat = start().await;
    let mut body = request(&[user("Do it.")]);
    body["tools"] = json!([{"type": "computer_20251124", "name": "computer"}]);
    chat.say(&body, "No.<|im_end|>").await;
    let prompt = chat.decode(&chat.last().prompt);
    assert!(prompt.contains("scroll_amount") && !prompt.contains("zoom"), "{prompt}");
}

#[tokio::test]
async fn unknown_version_of_a_tool_that_the_client_executes_is_refused() {
    let chat = start().await;
    for kind in ["bash_20990101", "text_editor_20990101", "memory_20990101", "computer_toolset_20260801"] {
        let mut body = request(&[user("Do it.")]);
        body["tools"] = json!([{"type": kind, "name": "x"}]);
        let answer = chat.post(&body).await;
        let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(answer.status, 400, "{kind}: {}", answer.text());
        assert!(
            message.starts_with("tools.0.type") && message.contains(kind) && message.contains("input_schema"),
            "{message}"
        );
        body["tools"][0]["input_schema"] = json!({"type": "object"});
        chat.say(&body, "No.<|im_end|>").await;
    }
}

#[tokio::test]
async fn thinking_and_effort_set_the_switches_of_the_template() {
    let chat = start().await;
    let prompt = async |thinking: Value| {
        let mut body = request(&[user("Oslo?")]);
        body["thinking"] = thinking;
        body["output_config"] = json!({"effort": "high"});
        chat.say(&body, "Rain.<|im_end|>").await;
        chat.decode(&chat.last().prompt)
    };
    let disabled = prompt(json!({"type": "disabled"})).await;
    let adaptive = prompt(json!({"type": "adaptive", "display": "omitted"})).await;
    assert!(disabled.ends_with("<think>\n\n</think>\n\n"), "{disabled}");
    assert!(adaptive.ends_with("<|im_start|>assistant\n<think>\n"), "{adaptive}");
}
