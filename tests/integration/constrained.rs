// SPDX-License-Identifier: Apache-2.0
//! Generations of the demo engine under a JSON schema: their text follows it, and their entropies are those of the masked distribution.

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Grammar, SamplingParams};

use crate::chat::{Chat, messages, tools};
use crate::support::demo::{Demo, all_numbers, ids};

const SCHEMA: &str = r#"{"properties": {"city": {"type": "string"}, "days": {"items": {"type": "integer"}, "type": "array"},
    "unit": {"enum": ["C", "F"]}}, "required": ["city", "days", "unit"], "type": "object"}"#;

/// Whether a text has the members that SCHEMA requires.
fn follows_schema(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let days = value["days"].as_array();
    value["city"].is_string()
        && days.is_some_and(|days| days.iter().all(Value::is_u64))
        && matches!(value["unit"].as_str(), Some("C" | "F"))
}

#[tokio::test]
async fn constrained_reply_follows_its_schema_and_has_masked_entropies() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let prompt = demo.encode("The weather of the coast");
    for seed in 0..6 {
        let greedy = seed == 0;
        let sampling = json!({"max_new_tokens": 400, "json_schema": SCHEMA, "sampling_seed": seed,
            "temperature": if greedy { 0.0 } else { 0.8 }});
        let body = json!({"input_ids": prompt, "sampling_params": sampling, "entropy_options": {"bounds": true}});
        let reply = demo.ask(&body).await;
        assert!(follows_schema(reply["text"].as_str().unwrap()), "{}", reply["text"]);
        assert_eq!(reply["meta_info"]["finish_reason"]["type"], "stop");
        let params = SamplingParams {
            grammar: Some(Grammar::from_schema(SCHEMA).unwrap()),
            temperature: if greedy { 0.0 } else { 0.8 },
            ..SamplingParams::default()
        };
        let truth = demo.entropies(&prompt, &ids(&reply), &params);
        let meta = &reply["meta_info"];
        let [lower, upper] =
            ["output_token_entropy_lower", "output_token_entropy_upper"].map(|name| all_numbers(&meta[name]));
        assert_eq!((lower.len(), upper.len()), (truth.len(), truth.len()));
        for (at, truth) in truth.iter().enumerate() {
            assert!(
                lower[at] - 1e-4 <= *truth && *truth <= upper[at] + 1e-4,
                "{at}: {} {truth} {}",
                lower[at],
                upper[at]
            );
        }
        assert!(truth.contains(&0.0), "the entropy is 0 where the schema allows one token");
    }
}

#[tokio::test]
async fn chat_follows_its_response_format() {
    let chat = Chat::start(&[]).await;
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let format = json!({"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, "strict": true}});
    for stream in [false, true] {
        let body = json!({"messages": messages(&[("user", "Weather?")]), "response_format": format, "stream": stream});
        let answer = chat.post(&body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let text = match stream {
            false => answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
            true => {
                let events = answer.events();
                events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
            }
        };
        assert!(follows_schema(&text), "{text}");
    }
    let body = json!({"messages": messages(&[("user", "Weather?")]), "response_format": {"type": "json_object"}});
    let reply = chat.post(&body).await.json();
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap().is_object(), "{text}");
}

#[tokio::test]
async fn required_tool_choice_calls_a_tool() {
    let chat = Chat::start(&[]).await;
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "weather"}})] {
        let body = json!({"messages": messages(&[("user", "Weather?")]), "tools": tools(), "tool_choice": choice});
        let reply = chat.post(&body).await.json();
        let choice = &reply["choices"][0];
        let call = &choice["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap_or_default()).unwrap_or_default();
        assert_eq!((&call["name"], &choice["finish_reason"]), (&json!("weather"), &json!("tool_calls")), "{reply}");
        assert!(arguments["city"].is_string(), "{reply}");
    }
}

/// A call in a reply of Chat Completions, Messages or Responses: the name of the tool, and its arguments.
fn forced_call(reply: &Value) -> (String, Value) {
    let chat = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
    let mut items = [&reply["content"], &reply["output"]].into_iter().filter_map(Value::as_array).flatten();
    let call = items.rfind(|item| item["name"].is_string()).unwrap_or(chat);
    let text = call["arguments"].as_str().and_then(|text| serde_json::from_str(text).ok());
    (call["name"].as_str().unwrap_or_default().to_owned(), text.unwrap_or_else(|| call["input"].clone()))
}

#[tokio::test]
async fn forced_call_follows_the_definitions_of_its_tool() {
    let mut chat = Chat::start(&[]).await;
    let parameters = |unit: &str| {
        let properties = json!({"unit": {"$ref": "#/$defs/Unit"}, "other": {"$ref": "#/properties/unit"}});
        json!({"type": "object", "properties": properties, "required": ["unit", "other"], "additionalProperties": false,
            "$defs": {"Unit": {"enum": [unit]}}})
    };
    let tools = [("weather", parameters("C")), ("forecast", parameters("K"))];
    let list = |tool: &dyn Fn(&str, &Value) -> Value| -> Value {
        tools.iter().map(|(name, parameters)| tool(name, parameters)).collect()
    };
    let chat_tools =
        list(&|name, parameters| json!({"type": "function", "function": {"name": name, "parameters": parameters}}));
    let messages_tools = list(&|name, parameters| json!({"name": name, "input_schema": parameters}));
    let responses_tools = list(&|name, parameters| json!({"type": "function", "name": name, "parameters": parameters}));
    let user = messages(&[("user", "Weather?")]);
    for (path, mut body, required, named) in [
        (
            "chat/completions",
            json!({"messages": user, "tools": chat_tools}),
            json!("required"),
            json!({"type": "function", "function": {"name": "forecast"}}),
        ),
        (
            "messages",
            json!({"model": "m", "max_tokens": 512, "messages": user, "tools": messages_tools}),
            json!({"type": "any"}),
            json!({"type": "tool", "name": "forecast"}),
        ),
        (
            "responses",
            json!({"input": user, "tools": responses_tools}),
            json!("required"),
            json!({"type": "function", "name": "forecast"}),
        ),
    ] {
        chat.path = format!("/sessions/s/v1/{path}");
        for choice in [required, named.clone()] {
            body["tool_choice"] = choice.clone();
            let answer = chat.post(&body).await;
            assert_eq!(answer.status, 200, "{path} {choice}: {}", answer.text());
            let (name, arguments) = forced_call(&answer.json());
            let unit = match &*name {
                "weather" if choice != named => "C",
                "forecast" => "K",
                _ => panic!("{path} {choice}: {}", answer.text()),
            };
            assert_eq!(arguments, json!({"unit": unit, "other": unit}), "{path}");
        }
    }
}

#[tokio::test]
async fn deprecated_function_members_are_rejected_by_name() {
    let chat = Chat::start(&[]).await;
    for (older, value, newer) in
        [("functions", json!([{"name": "f"}]), "tools"), ("function_call", json!("auto"), "tool_choice")]
    {
        let answer = chat.post(&json!({"messages": messages(&[("user", "x")]), older: value})).await;
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(answer.status, 400);
        assert!(message.contains(older) && message.ends_with(&format!("send {newer}")), "{message}");
    }
}
