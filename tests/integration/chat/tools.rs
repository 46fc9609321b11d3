// SPDX-License-Identifier: Apache-2.0
//! Custom tools and choices of tools, as OpenAI's API has them.

use serde_json::{Value, json};

use super::{Chat, messages, with_say};

/// A function, and a custom tool with a grammar.
fn tools() -> Value {
    let grammar = json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+"}});
    let patch = json!({"name": "patch", "description": "Edits files.", "format": grammar});
    json!([super::tools()[0], {"type": "custom", "custom": patch}])
}

fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// The sampling parameters of the last turn.
fn sampling(chat: &Chat) -> Value {
    let session = chat.demo.proxy.parts.sessions.session("s").unwrap();
    let last = (0..).map_while(|turn| session.turn(turn)).last().unwrap();
    serde_json::from_str(last.about.sampling.as_deref().unwrap()).unwrap()
}

#[tokio::test]
async fn custom_call_comes_back_as_custom_and_the_session_continues() {
    for stream in [false, true] {
        let chat = Chat::start(&[]).await;
        let mut body = json!({"messages": messages(&[("user", "Patch!")]), "tools": tools(), "stream": stream});
        // arguments that hold no input, and a call of a function, stay what they are
        let say = [
            call("patch", r#"{"input": "a\nb"}"#),
            call("patch", r#"{"x": 1}"#),
            call("weather", r#"{"city": "Oslo"}"#),
        ]
        .join("\n");
        let answer = chat.post(&with_say(&body, &format!("{say}<|im_end|>"))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let (calls, finish) = match stream {
            false => {
                let choice = answer.json()["choices"][0].clone();
                (choice["message"]["tool_calls"].clone(), choice["finish_reason"].clone())
            }
            true => assemble(&answer.events()),
        };
        let shown: Vec<Value> = calls.as_array().unwrap().iter().map(without_ids).collect();
        let custom = |input: &str| json!({"type": "custom", "custom": {"name": "patch", "input": input}});
        let function = json!({"type": "function", "function": {"name": "weather", "arguments": r#"{"city": "Oslo"}"#}});
        assert_eq!(json!(shown), json!([custom("a\nb"), custom(r#"{"x": 1}"#), function]), "stream: {stream}");
        assert_eq!(finish, "tool_calls");
        let prompt = chat.decode(&chat.last().prompt);
        for part in ["\"patch\"", "Edits files.\\n\\nThe input must match this regex grammar:\\n[a-z]+", "\"input\""] {
            assert!(prompt.contains(part), "{part}: {prompt}");
        }
        let list = body["messages"].as_array_mut().unwrap();
        list.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
        for call in calls.as_array().unwrap() {
            list.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "done"}));
        }
        body["stream"] = json!(false);
        chat.say(&body, "Done.<|im_end|>").await;
        let turns = chat.turns().await;
        assert_eq!(
            (&turns[1]["cause"], &turns[1]["foreign_assistant_text"]),
            (&json!("extends"), &json!(false)),
            "stream: {stream}"
        );
    }
}

/// A call without its id and its index.
fn without_ids(call: &Value) -> Value {
    let mut call = call.clone();
    let members = call.as_object_mut().unwrap();
    assert!(members.remove("id").is_some_and(|id| id.is_string()));
    members.remove("index");
    call
}

/// The calls of a stream, and its finish reason.
fn assemble(events: &[Value]) -> (Value, Value) {
    let mut calls: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    for choice in events.iter().map(|event| &event["choices"][0]) {
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
        for part in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let at = part["index"].as_u64().unwrap() as usize;
            match calls.get_mut(at) {
                None => calls.push(part.clone()),
                Some(call) => {
                    let more = part["function"]["arguments"].as_str().unwrap();
                    let arguments = call["function"]["arguments"].as_str().unwrap().to_owned() + more;
                    call["function"]["arguments"] = json!(arguments);
                }
            }
        }
    }
    (json!(calls), finish)
}

#[tokio::test]
async fn custom_call_that_is_cut_off_is_sent_with_its_raw_arguments() {
    for stream in [false, true] {
        let chat = Chat::start(&[]).await;
        let body = json!({"messages": messages(&[("user", "Patch!")]), "tools": tools(), "stream": stream});
        // the stop token ends the reply inside the call
        let say = "<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"a<|im_end|>";
        let answer = chat.post(&with_say(&body, say)).await;
        let calls = match stream {
            false => answer.json()["choices"][0]["message"]["tool_calls"].clone(),
            true => assemble(&answer.events()).0,
        };
        let custom = &calls[0]["custom"];
        assert_eq!(custom["name"], "patch", "{}", answer.text());
        assert!(custom["input"].as_str().unwrap().starts_with("{\"input\": \"a"), "{custom}");
    }
}

#[tokio::test]
async fn tool_choice_constrains_the_engine() {
    let chat = Chat::start(&[]).await;
    let forecast = json!({"type": "function", "function": {"name": "forecast"}});
    let mut all = tools();
    all.as_array_mut().unwrap().push(forecast.clone());
    let custom = json!({"type": "custom", "custom": {"name": "patch"}});
    let allowed =
        |mode: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [forecast, custom]}});
    for (choice, names) in [
        (json!("auto"), &[][..]),
        (json!("none"), &[]),
        (json!("required"), &["weather", "forecast", "patch"]),
        (forecast.clone(), &["forecast"]),
        (custom.clone(), &["patch"]),
        (allowed("required"), &["forecast", "patch"]),
        (allowed("auto"), &[]),
    ] {
        let body = json!({"messages": messages(&[("user", "x")]), "tools": all, "tool_choice": choice});
        chat.say(&body, "x<|im_end|>").await;
        let schema = sampling(&chat)["json_schema"].as_str().unwrap_or_default().to_owned();
        for name in ["weather", "forecast", "patch"] {
            assert_eq!(schema.contains(&format!("\"{name}\"")), names.contains(&name), "{choice}: {schema}");
        }
        let prompt = chat.decode(&chat.last().prompt);
        assert_eq!(prompt.contains("\"weather\""), choice != "none", "all tools stay in the prompt: {prompt}");
    }
    for (choice, words) in [
        (
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}),
            "none of the allowed tools",
        ),
        (json!({"type": "allowed_tools", "allowed_tools": {"mode": "some", "tools": [forecast]}}), "auto or required"),
        (json!({"type": "allowed_tools"}), "auto or required"),
        (json!({"type": "custom", "custom": {"name": "x"}}), "Tool 'x' not found"),
        (json!({"type": "web_search"}), "tool_choice.type \"web_search\" is not one of"),
    ] {
        let body = json!({"messages": messages(&[("user", "x")]), "tools": all, "tool_choice": choice});
        let answer = chat.post(&body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.json()["message"].as_str().unwrap().contains(words), "{}", answer.text());
    }
}

#[tokio::test]
async fn forced_call_and_a_response_format_are_refused_with_the_reason() {
    let chat = Chat::start(&[]).await;
    let body = json!({"messages": messages(&[("user", "x")]), "tools": tools(), "tool_choice": "required",
        "response_format": {"type": "json_object"}});
    let answer = chat.post(&body).await;
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(answer.status, 400, "{message}");
    for words in ["response_format", "SGLang refuses it too", "tool_choice \"auto\""] {
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn names_of_custom_tools_are_checked() {
    let chat = Chat::start(&[]).await;
    for (tools, words) in [
        (json!([{"type": "custom", "custom": {}}]), "tools[0].custom.name must be a string"),
        (
            json!([super::tools()[0], {"type": "custom", "custom": {"name": "weather"}}]),
            "tools[1].custom.name: another tool",
        ),
    ] {
        let answer = chat.post(&json!({"messages": messages(&[("user", "x")]), "tools": tools})).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.json()["message"].as_str().unwrap().starts_with(words), "{}", answer.text());
    }
}

#[tokio::test]
async fn refusals_and_modalities_stay_on_the_token_path() {
    let chat = Chat::start(&[]).await;
    let mut body = json!({"messages": messages(&[("user", "x")]), "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "wav"}});
    let reply = chat.say(&body, "I cannot help with that.<|im_end|>").await;
    let text = &reply["choices"][0]["message"]["content"];
    let refusal = json!({"role": "assistant", "content": [{"type": "refusal", "refusal": text}]});
    body["messages"].as_array_mut().unwrap().extend([refusal, json!({"role": "user", "content": "Why?"})]);
    chat.say(&body, "No.<|im_end|>").await;
    let turns = chat.turns().await;
    assert_eq!((&turns[1]["cause"], &turns[1]["foreign_assistant_text"]), (&json!("extends"), &json!(false)));
    let mut audio = body.clone();
    audio["modalities"] = json!(["audio"]);
    let answer = chat.post(&audio).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("modalities"), "{}", answer.text());
    body["messages"][1]["content"][0] = json!({"type": "refusal"});
    let answer = chat.post(&body).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
}
