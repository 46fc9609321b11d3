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
