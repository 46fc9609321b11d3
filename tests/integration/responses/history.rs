// SPDX-License-Identifier: Apache-2.0
//! The calls of an agent's loop extend the recorded turns.

use serde_json::{Value, json};

use super::super::support::client::get;
use super::{append, call, function, items, message, of_type, output, request, start};

#[tokio::test]
async fn loop_of_an_agent_is_one_path() {
    let chat = start().await;
    let mut body = request(json!([message("developer", "You are an agent."), message("user", "Oslo?")]));
    body["tools"] = json!([
        function("weather"),
        {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [function("spawn")]},
    ]);
    body["include"] = json!(["reasoning.encrypted_content"]);
    let thinks = |text: &str| format!("<think>\nLook first.\n</think>\n\n{text}<|im_end|>");
    let oslo = r#"{"city": "Oslo"}"#;
    let says = [
        thinks(&call("weather", oslo)),
        format!("I look.\n{}\n{}<|im_end|>", call("weather", oslo), call("agents__spawn", oslo)),
        thinks(&call("apply_patch", r#"{"input": "*** Begin Patch\n+\"é\"\n"}"#)),
        // the tool gets what the model wrote
        format!("{}<|im_end|>", call("apply_patch", r#"{"patch": "x"}"#)),
        // not JSON
        format!("{}<|im_end|>", call("apply_patch", r#"{"input": x}"#)),
        format!("{}<|im_end|>", call("weather", r#"{"city": Oslo}"#)),
        thinks("It rains."),
        "Yes.<|im_end|>".to_owned(),
    ];
    let mut replies = Vec::new();
    for (turn, say) in says.iter().enumerate() {
        let reply = chat.say(&body, say).await;
        let mut returned = items(&reply);
        let calls: Vec<Value> = returned.iter().filter(|item| item.get("call_id").is_some()).cloned().collect();
        // what clients drop
        for item in &mut returned {
            let is_reasoning = item["type"] == "reasoning";
            let item = item.as_object_mut().unwrap();
            item.remove("status");
            if is_reasoning && turn % 2 == 0 {
                item.remove("content");
            }
        }
        append(&mut body, returned);
        append(&mut body, calls.iter().map(|call| output(call, "rain")));
        if calls.is_empty() {
            append(&mut body, [message("user", "And now?")]);
        }
        replies.push(reply);
    }
    let turns = chat.turns().await;
    let causes: Vec<&Value> = turns.iter().map(|turn| &turn["cause"]).collect();
    assert_eq!(causes[0], "first");
    assert!(causes[1..].iter().all(|cause| *cause == "extends"), "{causes:?}");
    assert!(turns.iter().all(|turn| turn["fault"].is_null() && turn["context_retokenised"] == false), "{turns:?}");
    let reasoning = &items(&replies[0])[0];
    assert_eq!(reasoning["content"][0]["text"], "Look first.", "{reasoning}");
    assert!(reasoning["encrypted_content"].as_str().unwrap().starts_with("turn_"), "{reasoning}");
    let inputs = [2, 3, 4].map(|turn: usize| of_type(&replies[turn], "custom_tool_call")[0]["input"].clone());
    assert_eq!(inputs[0], "*** Begin Patch\n+\"é\"\n");
    assert_eq!(inputs[1], r#"{"patch": "x"}"#);
    assert!(inputs[2].as_str().unwrap().contains(r#"{"input": x}"#), "{inputs:?}");
    let ids: std::collections::HashSet<String> =
        replies.iter().flat_map(items).map(|item| item["id"].to_string()).collect();
    assert_eq!(ids.len(), replies.iter().map(|reply| items(reply).len()).sum::<usize>(), "ids are unique");
}

#[tokio::test]
async fn counted_tokens_are_those_of_the_prompt() {
    let mut chat = start().await;
    let mut body = request(json!([message("user", "Oslo?")]));
    body["tools"] = json!([function("weather")]);
    let reply = chat.say(&body, "<think>\nHm.\n</think>\n\nIt rains.<|im_end|>").await;
    append(&mut body, items(&reply));
    append(&mut body, [message("user", "And Bergen?")]);
    chat.path = "/sessions/s/v1/responses/input_tokens".to_owned();
    let counted = chat.post(&body).await;
    assert_eq!(counted.status, 200, "{}", counted.text());
    let asked = chat.journal().len();
    chat.path = super::PATH.to_owned();
    let reply = chat.say(&body, "Sun.<|im_end|>").await;
    assert_eq!(chat.journal().len(), asked + 1, "counting generates nothing");
    let prompt = chat.last().prompt.len();
    assert_eq!(counted.json(), json!({"object": "response.input_tokens", "input_tokens": prompt}));
    assert_eq!(reply["usage"]["input_tokens"], json!(prompt));
}

#[tokio::test]
async fn key_of_another_session_is_ignored() {
    let mut chat = start().await;
    let mut body = request(json!([message("user", "Oslo?")]));
    body["tools"] = json!([function("weather")]);
    let reply = chat.say(&body, &format!("{}<|im_end|>", call("weather", r#"{"city": Oslo}"#))).await;
    append(&mut body, items(&reply));
    append(&mut body, [output(&items(&reply)[0], "rain")]);
    // the other session has a turn with the same text, and other tokens
    chat.path = "/sessions/other/v1/responses".to_owned();
    let first = json!({"model": "m", "input": [message("user", "Oslo?")], "tools": body["tools"]});
    chat.say(&first, &format!("{}<|im_end|>", call("weather", r#"{"city": Bergen}"#))).await;
    chat.say(&body, "It rains.<|im_end|>").await;
    let shown = get(chat.demo.proxy.control, "/v1/sessions/other").await.json();
    assert_eq!(shown["list"][1]["foreign_assistant_text"], true, "{shown}");
}

#[tokio::test]
async fn results_of_parallel_calls_may_be_between_the_calls() {
    let chat = start().await;
    let mut body = request(json!([message("user", "Oslo and Bergen?")]));
    body["tools"] = json!([function("weather"), {"type": "custom", "name": "patch"}]);
    let city = |name: &str| call("weather", &format!(r#"{{"city": "{name}"}}"#));
    let say = format!(
        "<think>\nTwo.\n</think>\n\n{}\n{}\n{}<|im_end|>",
        city("Oslo"),
        city("Bergen"),
        call("patch", r#"{"x": 1}"#)
    );
    let reply = chat.say(&body, &say).await;
    for item in items(&reply) {
        append(&mut body, [item.clone()]);
        if item.get("call_id").is_some() {
            append(&mut body, [output(&item, "rain")]);
        }
    }
    chat.say(&body, "It rains.<|im_end|>").await;
    let turns = chat.turns().await;
    assert_eq!((&turns[1]["cause"], &turns[1]["foreign_assistant_text"]), (&json!("extends"), &json!(false)));
}

#[tokio::test]
async fn custom_call_without_an_input_is_recognised_without_its_item_id() {
    let chat = start().await;
    let mut body = request(json!([message("user", "Patch!")]));
    body["tools"] = json!([{"type": "custom", "name": "patch"}]);
    let reply = chat.say(&body, &format!("{}<|im_end|>", call("patch", r#"{"x": 1}"#))).await;
    let mut returned = items(&reply)[0].clone();
    assert_eq!(returned["input"], r#"{"x": 1}"#);
    returned.as_object_mut().unwrap().remove("id");
    append(&mut body, [returned.clone(), output(&returned, "done")]);
    chat.say(&body, "Done.<|im_end|>").await;
    assert_eq!(chat.turns().await[1]["cause"], "extends");
}

#[tokio::test]
async fn changed_history_begins_a_branch() {
    let chat = start().await;
    let mut body = request(json!([message("user", "Oslo?")]));
    body["tools"] = json!([function("weather")]);
    let reply = chat.say(&body, &format!("{}<|im_end|>", call("weather", r#"{"city": "Oslo"}"#))).await;
    append(&mut body, items(&reply));
    append(&mut body, [output(&items(&reply)[0], "rain")]);
    body["input"][1]["arguments"] = json!(r#"{"city": "Bergen"}"#);
    chat.say(&body, "It rains.<|im_end|>").await;
    let turns = chat.turns().await;
    assert_eq!(turns[1]["parent"], Value::Null, "{turns:?}");
}
