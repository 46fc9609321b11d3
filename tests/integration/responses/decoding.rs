// SPDX-License-Identifier: Apache-2.0
//! How items become messages of the prompt.

use serde_json::{Value, json};

use super::{append, call, function, items, message, request, sampling, start};

/// The text of the prompt that a request becomes.
async fn prompt(body: &Value) -> String {
    let chat = start().await;
    chat.say(body, "Yes.<|im_end|>").await;
    chat.decode(&chat.last().prompt)
}

#[tokio::test]
async fn string_and_items_become_the_same_prompt() {
    let string = prompt(&request("Oslo?")).await;
    for input in [
        json!([{"role": "user", "content": "Oslo?"}]),
        json!([message("user", "Oslo?")]),
        json!([{"type": "message", "id": "u1", "status": "completed", "role": "user", "content": [{"type": "input_text", "text": "Oslo?"}]}]),
    ] {
        assert_eq!(prompt(&request(input)).await, string);
    }
}

#[tokio::test]
async fn instructions_and_developer_messages_lead_the_prompt() {
    let mut body = request(json!([
        {"role": "developer", "content": "Use the shell."},
        message("user", "Oslo?"),
        message("assistant", "Rain."),
        {"role": "developer", "content": "Be brief."},
        message("user", "And now?"),
    ]));
    body["instructions"] = json!("You are an agent.");
    let prompt = prompt(&body).await;
    assert!(prompt.starts_with("<|im_start|>system\nYou are an agent.<|im_end|>"), "{prompt}");
    let places: Vec<usize> = ["Use the shell.", "Oslo?", "Rain.", "Be brief.", "And now?"]
        .iter()
        .map(|text| prompt.find(text).unwrap())
        .collect();
    assert!(places.is_sorted(), "a later message stays where it is: {prompt}");
}

#[tokio::test]
async fn every_item_of_a_text_agent_is_part_of_the_prompt() {
    let mut body = request(json!([
        message("user", "u1"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t1"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\": \"a1\"}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "a2"},
        {"type": "function_call_output", "call_id": "c1", "output": "o1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "o2"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "left out"}], "content": [{"type": "reasoning_text", "text": "t2"}]},
        {"type": "local_shell_call", "id": "l1", "call_id": "c3", "status": "completed", "action": {"type": "exec", "command": ["a3"], "env": {}}},
        {"type": "local_shell_call_output", "id": "l1", "output": "o3"},
        {"type": "agent_message", "author": "/lead/b", "recipient": "/lead", "content": [{"type": "input_text", "text": "m1"}]},
        {"type": "compaction", "encrypted_content": "m2"},
        {"type": "additional_tools", "role": "developer", "tools": [function("forecast")]},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "hologram"},
        message("user", "u2"),
    ]));
    body["tools"] = json!([function("weather"), {"type": "custom", "name": "apply_patch"}, {"type": "web_search"}]);
    let prompt = prompt(&body).await;
    for shown in [
        "u1",
        "a1",
        "a2",
        "o1",
        "o2",
        "a3",
        "o3",
        "<agent_message author=\"/lead/b\" recipient=\"/lead\">\nm1",
        "m2",
        "u2",
    ] {
        assert!(prompt.contains(shown), "{shown} in {prompt}");
    }
    assert!(!prompt.contains("left out") && !prompt.contains("hologram") && !prompt.contains("web_search"), "{prompt}");
    let tools: Vec<usize> =
        ["\"weather\"", "\"apply_patch\"", "\"forecast\""].iter().map(|name| prompt.find(name).unwrap()).collect();
    assert!(tools.is_sorted(), "{prompt}");
}

#[tokio::test]
async fn sampling_fields_and_formats_reach_the_engine() {
    let chat = start().await;
    let mut body = request("Oslo?");
    for (name, value) in [
        ("temperature", json!(0.25)),
        ("top_p", json!(0.5)),
        ("max_output_tokens", json!(77)),
        ("reasoning", json!({"effort": "none", "summary": "auto"})),
        (
            "text",
            json!({"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"}),
        ),
        ("metadata", json!({"run": "1"})),
        ("store", json!(true)),
    ] {
        body[name] = value;
    }
    let reply = chat.say(&body, "{}<|im_end|>").await;
    for name in ["temperature", "top_p", "max_output_tokens", "reasoning", "text", "metadata"] {
        assert_eq!(reply[name], body[name], "{reply}");
    }
    assert_eq!(
        (&reply["model"], &reply["object"], &reply["status"]),
        (&json!("gpt-6"), &json!("response"), &json!("completed"))
    );
    let params = sampling(&chat);
    assert_eq!(
        (&params["temperature"], &params["top_p"], &params["max_new_tokens"]),
        (&json!(0.25), &json!(0.5), &json!(77))
    );
    assert_eq!(params["json_schema"], r#"{"type": "object"}"#);
    let thinks = chat.decode(&chat.last().prompt);
    assert!(thinks.ends_with("<think>\n\n</think>\n\n"), "effort none switches thinking off: {thinks}");
    // the defaults are those of chats, and max_output_tokens is cut to the context without the six tokens that the engine reserves
    chat.say(&request("Oslo?"), "Rain.<|im_end|>").await;
    let params = sampling(&chat);
    assert_eq!(params["temperature"], json!(1), "{params}");
    assert_eq!(params["max_new_tokens"], json!(65_536 - chat.last().prompt.len() - 6), "{params}");
    // each value has its source
    let session = chat.demo.proxy.parts.sessions.session("s").unwrap();
    let sources = [0, 1].map(|turn| session.turn(turn).unwrap().about.sampling_sources().unwrap().json());
    let sources = sources.map(|text| serde_json::from_str::<Value>(&text).unwrap());
    assert_eq!(sources[0], json!({"top_k": "default", "min_p": "default", "repetition_penalty": "default"}));
    assert_eq!((&sources[1]["temperature"], &sources[1]["max_new_tokens"]), (&json!("default"), &json!("context")));
}

#[tokio::test]
async fn response_has_the_members_that_openai_always_returns() {
    let chat = start().await;
    let mut body = request("Oslo?");
    body["presence_penalty"] = json!(0.5);
    body["service_tier"] = json!("auto");
    body["reasoning"] = json!({"effort": "low"});
    body["text"] = json!({"verbosity": "low"});
    body["tools"] = json!([{"type": "function", "name": "weather"}, {"type": "custom", "name": "patch"}]);
    let reply = chat.say(&body, "<think>\nHm.\n</think>\n\nRain.<|im_end|>").await;
    assert_eq!((&reply["presence_penalty"], &reply["frequency_penalty"]), (&json!(0.5), &json!(0)), "{reply}");
    assert_eq!(reply["service_tier"], "default", "there are no tiers: {reply}");
    assert_eq!(reply["reasoning"], json!({"effort": "low", "summary": null}));
    assert_eq!(reply["text"], json!({"verbosity": "low", "format": {"type": "text"}}));
    let function =
        json!({"type": "function", "name": "weather", "description": null, "parameters": null, "strict": null});
    assert_eq!(reply["tools"], json!([function, {"type": "custom", "name": "patch"}]));
    let reasoning = items(&reply)[0].as_object().unwrap().clone();
    assert!(!reasoning.contains_key("encrypted_content"), "it is a string or missing: {reasoning:?}");
}

#[tokio::test]
async fn items_of_consecutive_replies_stay_apart() {
    let chat = start().await;
    let mut body = request(json!([message("user", "Oslo?")]));
    body["tools"] = json!([function("weather")]);
    // the second reply has no reasoning, so that only the ids tell the replies apart
    let first = chat.say(&body, "One.<|im_end|>").await;
    append(&mut body, items(&first));
    let second = chat.say(&body, &format!("Two.\n{}<|im_end|>", call("weather", "{\"city\": \"Oslo\"}"))).await;
    append(&mut body, items(&second));
    chat.say(&body, "Three.<|im_end|>").await;
    let prompt = chat.decode(&chat.last().prompt);
    assert!(prompt.contains("One.<|im_end|>\n<|im_start|>assistant\n"), "{prompt}");
}
