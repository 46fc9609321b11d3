// SPDX-License-Identifier: Apache-2.0
//! The events of a streamed response.

use proptest::prelude::*;
use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Streaming};

use super::super::chat::{Chat, with_say};
use super::super::support::client::{Connection, post};
use super::{PATH, call, events, function, message, parse, request, start, types};

/// Builds the response from its events, as the SDKs do. Checks the order and the ids of the events.
pub(super) fn accumulate(events: &[Value]) -> Value {
    let (first, last) = (&events[0], &events[events.len() - 1]);
    assert_eq!((&first["type"], &first["response"]["output"]), (&json!("response.created"), &json!([])));
    let mut output: Vec<Value> = Vec::new();
    // the item that has begun, and its text
    let mut open: Option<(Value, String)> = None;
    for event in &events[1..events.len() - 1] {
        let kind = event["type"].as_str().unwrap().trim_start_matches("response.");
        if let Some((item, _)) = &open
            && kind != "in_progress"
        {
            assert_eq!(event["output_index"], output.len(), "{event}");
            if kind != "output_item.done" {
                assert_eq!(event["item_id"], item["id"], "{event}");
            }
        }
        let (group, step) = kind.rsplit_once('.').unwrap_or((kind, ""));
        match (group, step) {
            ("in_progress", _) => assert_eq!(event["response"]["id"], first["response"]["id"]),
            ("output_item", "added") => {
                assert!(open.is_none(), "two items are open: {event}");
                assert_eq!(
                    (&event["output_index"], &event["item"]["status"]),
                    (&json!(output.len()), &json!("in_progress"))
                );
                open = Some((event["item"].clone(), String::new()));
            }
            ("content_part", "added") => assert_eq!(event["part"]["text"], ""),
            ("output_text" | "reasoning_text" | "function_call_arguments" | "custom_tool_call_input", "delta") => {
                open.as_mut().expect("an item is open").1.push_str(event["delta"].as_str().unwrap());
            }
            ("output_text" | "reasoning_text", "done") => assert_eq!(event["text"], json!(open.as_ref().unwrap().1)),
            ("function_call_arguments", "done") => assert_eq!(event["arguments"], json!(open.as_ref().unwrap().1)),
            ("custom_tool_call_input", "done") => assert_eq!(event["input"], json!(open.as_ref().unwrap().1)),
            ("content_part", "done") => assert_eq!(event["part"]["text"], json!(open.as_ref().unwrap().1)),
            ("output_item", "done") => {
                let (item, text) = open.take().expect("an item is open");
                let done = &event["item"];
                assert_eq!((&done["id"], &done["type"]), (&item["id"], &item["type"]));
                let shown = match item["type"].as_str().unwrap() {
                    "function_call" => &done["arguments"],
                    "custom_tool_call" => &done["input"],
                    _ => &done["content"][0]["text"],
                };
                assert_eq!(shown, &json!(text));
                output.push(done.clone());
            }
            _ => panic!("{event}"),
        }
    }
    assert!(open.is_none(), "{events:?}");
    assert_eq!(last["response"]["output"], json!(output), "the items of the response are those of the events");
    let status = last["response"]["status"].as_str().unwrap();
    assert_eq!(last["type"], format!("response.{status}"));
    assert_eq!(last["response"]["id"], first["response"]["id"]);
    last["response"].clone()
}

/// A response without what differs between two replies with the same tokens.
fn comparable(mut response: Value) -> Value {
    for name in ["id", "created_at", "completed_at"] {
        response[name] = Value::Null;
    }
    for item in response["output"].as_array_mut().unwrap() {
        item["id"] = Value::Null;
        item["call_id"] = Value::Null;
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    response
}

#[tokio::test]
async fn events_of_a_response_are_in_order() {
    let chat = start().await;
    let mut body = request("Oslo?");
    body["tools"] = json!([function("weather")]);
    let say = format!("<think>\nHm.\n</think>\n\nI look.\n{}<|im_end|>", call("weather", r#"{"city": "Oslo"}"#));
    let events = events(&chat, &body, &say).await;
    let text = |name: &str| {
        vec![
            "output_item.added".to_owned(),
            "content_part.added".to_owned(),
            format!("{name}.delta"),
            format!("{name}.done"),
            "content_part.done".to_owned(),
            "output_item.done".to_owned(),
        ]
    };
    let call =
        ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"];
    let call = call.map(str::to_owned).to_vec();
    let begin = vec!["created".to_owned(), "in_progress".to_owned()];
    let end = vec!["completed".to_owned()];
    assert_eq!(types(&events), [begin, text("reasoning_text"), text("output_text"), call, end].concat());
    let response = accumulate(&events);
    let usage = &response["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap())
    );
    assert!(
        usage["input_tokens_details"]["cached_tokens"].is_u64()
            && usage["output_tokens_details"]["reasoning_tokens"].is_u64()
    );
}

#[tokio::test]
async fn streamed_response_equals_the_whole_one() {
    let chat = start().await;
    let calls = format!(
        "{}\n{}",
        call("weather", r#"{"city": "Os\"lo", "days": [1, 2.5, null]}"#),
        call("patch", r#"{"input": "x"}"#)
    );
    for say in [
        "It rains.<|im_end|>".to_owned(),
        "<think>\nHm.\n</think>\n\nIt rains.<|im_end|>".to_owned(),
        format!("<think>\nHm.\n</think>\n\nI look.\n{calls}<|im_end|>"),
        format!("{calls}<|im_end|>"),
        // invalid calls, and one that is cut off
        format!("{}<|im_end|>", call("weather", r#"{"city": Oslo}"#)),
        format!("{}<|im_end|>", call("patch", r#"{"input": x}"#)),
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Os<|im_end|>".to_owned(),
        "<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"Os<|im_end|>".to_owned(),
        "<|im_end|>".to_owned(),
    ] {
        let mut body = request("Oslo?");
        body["tools"] = json!([function("weather"), {"type": "custom", "name": "patch"}]);
        let whole = chat.say(&body, &say).await;
        let streamed = accumulate(&events(&chat, &body, &say).await);
        assert_eq!(comparable(streamed), comparable(whole), "{say}");
    }
}

#[tokio::test]
async fn response_that_ends_by_length_is_the_same_streamed_and_whole() {
    let chat = start().await;
    let city = call("weather", r#"{"city": "Oslo, and a place with a long name"}"#);
    let patch = call("patch", r#"{"input": "a long patch of many words"}"#);
    for say in
        [format!("<think>\nHm.\n</think>\n\nI look.\n{city}\n{patch}<|im_end|>"), format!("{patch}\n{city}<|im_end|>")]
    {
        for length in 1..48 {
            let mut body = request("Oslo?");
            body["tools"] = json!([function("weather"), {"type": "custom", "name": "patch"}]);
            body["max_output_tokens"] = json!(length);
            let whole = chat.say(&body, &say).await;
            let streamed = accumulate(&events(&chat, &body, &say).await);
            // a stream makes text after a call a separate item
            let parts = |response: Value| {
                let (calls, others): (Vec<Value>, Vec<Value>) = comparable(response)["output"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .cloned()
                    .partition(|item| item["type"].as_str().unwrap().ends_with("call"));
                let text = |item: &Value| item["content"][0]["text"].as_str().unwrap().trim().to_owned();
                let cut = others.iter().filter(|item| item["status"] == "incomplete").count();
                (calls, others.iter().map(text).collect::<String>(), cut)
            };
            assert_eq!(streamed["status"], whole["status"]);
            assert_eq!(parts(streamed), parts(whole), "{length}: {say}");
        }
    }
}

#[tokio::test]
async fn line_ends_of_the_request_are_not_in_the_events() {
    let chat = start().await;
    let mut body = request("Oslo?");
    body["tools"] = json!([function("weather")]);
    body["metadata"] = json!({"a": "b", "c": "d\r\n\n"});
    body["stream"] = json!(true);
    let text = serde_json::to_string_pretty(&with_say(&body, "Rain.<|im_end|>")).unwrap();
    for text in [text.replace('\n', "\n\n"), text.replace('\n', "\r"), text] {
        let answer = post(chat.demo.proxy.data, PATH, text.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let response = accumulate(&parse(&answer.text()));
        assert_eq!(
            (&response["metadata"], &response["tools"][0]["parameters"]),
            (&body["metadata"], &body["tools"][0]["parameters"])
        );
    }
}

#[tokio::test]
async fn length_is_incomplete_and_for_codex_completed() {
    let chat = start().await;
    let long = "It rains and rains and rains and rains and rains. ".repeat(20);
    let mut body = request("Oslo?");
    body["max_output_tokens"] = json!(5);
    let whole = chat.say(&body, &long).await;
    let streamed = accumulate(&events(&chat, &body, &long).await);
    for response in [&whole, &streamed] {
        assert_eq!(
            (&response["status"], &response["incomplete_details"]["reason"]),
            (&json!("incomplete"), &json!("max_output_tokens"))
        );
        assert_eq!(
            (&response["output"][0]["status"], &response["usage"]["output_tokens"]),
            (&json!("incomplete"), &json!(5))
        );
    }
    let mut body = with_say(&body, &long);
    body["stream"] = json!(true);
    for header in ["originator: codex_exec", "user-agent: codex_cli_rs/0.169.0"] {
        let mut connection = Connection::open(chat.demo.proxy.data).await;
        let text = body.to_string();
        let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\n{header}\r\ncontent-length: {}\r\n\r\n", text.len());
        connection.send(format!("{head}{text}").as_bytes()).await;
        let response = accumulate(&parse(&connection.answer().await.text()));
        assert_eq!((&response["status"], &response["incomplete_details"]), (&json!("completed"), &Value::Null));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_reply_has_well_ordered_events(
        parts in prop::collection::vec(prop_oneof![
            Just("<think>"), Just("</think>"), Just("<tool_call>"), Just("</tool_call>"), Just("\n"), Just("It rains."),
            Just(r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#), Just(r#"{"name": "patch", "arguments": {"input": "é"}}"#),
            Just(r#"{"name": "weather""#), Just("\u{1f327}"),
        ], 0..9),
        cumulative in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let streaming = if cumulative { Streaming::Cumulative } else { Streaming::Incremental };
            let options = EngineOptions { streaming, ..EngineOptions::default() };
            let chat = Chat { path: PATH.to_owned(), ..Chat::with(options, &[]).await };
            let mut body = request(json!([message("user", "Oslo?")]));
            body["tools"] = json!([function("weather"), {"type": "custom", "name": "patch"}]);
            let say = format!("{}<|im_end|>", parts.concat());
            let streamed = accumulate(&events(&chat, &body, &say).await);
            let whole = chat.say(&body, &say).await;
            let calls = |response: &Value| {
                let output = response["output"].as_array().unwrap().clone();
                let calls = output.into_iter().filter(|item| item.get("call_id").is_some());
                calls.map(|call| (call["name"].clone(), call["arguments"].clone(), call["input"].clone())).collect::<Vec<_>>()
            };
            let texts = |response: &Value, kind: &str| -> String {
                let output = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == kind);
                output.map(|item| item["content"][0]["text"].as_str().unwrap()).collect::<Vec<_>>().concat()
            };
            assert_eq!(calls(&streamed), calls(&whole), "{say}");
            assert_eq!(streamed["status"], whole["status"], "{say}");
            for kind in ["reasoning", "message"] {
                assert_eq!(texts(&streamed, kind).trim(), texts(&whole, kind).trim(), "{say}");
            }
        });
    }
}
