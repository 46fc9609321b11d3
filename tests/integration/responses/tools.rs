// SPDX-License-Identifier: Apache-2.0
//! Custom tools, namespaces and choices of tools.

use serde_json::{Value, json};

use super::{append, call, events, function, items, message, of_type, output, request, sampling, start};

#[tokio::test]
async fn namespaced_call_comes_back_with_its_namespace() {
    let chat = start().await;
    let mut body = request(json!([message("user", "Oslo?")]));
    body["tools"] = json!([{"type": "namespace", "name": "crm", "description": "x", "tools": [function("find"), {"type": "custom", "name": "note"}]}]);
    let say =
        format!("{}\n{}<|im_end|>", call("crm__find", r#"{"city": "Oslo"}"#), call("crm__note", r#"{"input": "x"}"#));
    let reply = chat.say(&body, &say).await;
    let prompt = chat.decode(&chat.last().prompt);
    assert!(prompt.contains("\"crm__find\"") && prompt.contains("\"crm__note\""), "{prompt}");
    let names: Vec<Value> =
        items(&reply).iter().map(|item| json!([item["type"], item["namespace"], item["name"]])).collect();
    assert_eq!(json!(names), json!([["function_call", "crm", "find"], ["custom_tool_call", "crm", "note"]]));
    append(&mut body, items(&reply));
    append(&mut body, items(&reply).iter().map(|call| output(call, "rain")).collect::<Vec<_>>());
    chat.say(&body, "Done.<|im_end|>").await;
    assert_eq!(chat.turns().await[1]["cause"], "extends");
}

#[tokio::test]
async fn call_of_an_unknown_tool_is_a_function_call() {
    let chat = start().await;
    let mut body = request("Oslo?");
    body["tools"] = json!([function("weather")]);
    let reply = chat.say(&body, &format!("{}<|im_end|>", call("other", "{}"))).await;
    assert_eq!(of_type(&reply, "function_call")[0]["name"], "other", "{reply}");
}

#[tokio::test]
async fn tool_choice_constrains_the_engine() {
    let chat = start().await;
    let mut body = request("Oslo?");
    body["tools"] = json!([function("weather"), function("forecast"), {"type": "custom", "name": "patch"}]);
    let allowed = |mode: &str| json!({"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "forecast"}]});
    for (choice, names) in [
        (json!("auto"), &[][..]),
        (json!("none"), &[]),
        (json!("required"), &["weather", "forecast", "patch"]),
        (json!({"type": "function", "name": "weather"}), &["weather"]),
        (json!({"type": "custom", "name": "patch"}), &["patch"]),
        (allowed("required"), &["forecast"]),
        (allowed("auto"), &[]),
    ] {
        body["tool_choice"] = choice.clone();
        body["parallel_tool_calls"] = json!(false);
        let reply = chat.say(&body, "x").await;
        let schema = sampling(&chat)["json_schema"].as_str().unwrap_or_default().to_owned();
        for name in ["weather", "forecast", "patch"] {
            assert_eq!(schema.contains(&format!("\"{name}\"")), names.contains(&name), "{choice}: {schema}");
        }
        assert_eq!(schema.contains("\"maxItems\": 1"), !names.is_empty(), "{schema}");
        let prompt = chat.decode(&chat.last().prompt);
        assert_eq!(prompt.contains("\"forecast\""), choice != "none", "{prompt}");
        assert_eq!(reply["tool_choice"], choice);
    }
}

#[tokio::test]
async fn custom_tool_streams_its_input() {
    let chat = start().await;
    let mut body = request("Oslo?");
    body["tools"] = json!([{"type": "custom", "name": "patch"}]);
    let events = events(&chat, &body, &format!("{}<|im_end|>", call("patch", r#"{"input": "a\nb"}"#))).await;
    let of = |kind: &str| events.iter().find(|event| event["type"] == kind).cloned().unwrap_or_default();
    assert_eq!(of("response.output_item.added")["item"]["input"], "");
    assert_eq!(of("response.custom_tool_call_input.delta")["delta"], "a\nb");
    assert_eq!(of("response.custom_tool_call_input.done")["input"], "a\nb");
    assert_eq!(of("response.output_item.done")["item"]["input"], "a\nb");
}
