// SPDX-License-Identifier: Apache-2.0
//! The events of a streamed message.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{call, events, request, start, tools, user};

/// Builds the message from its events, as the SDKs do. Checks the order of the events.
pub(super) fn accumulate(events: &[Value]) -> Value {
    let mut message = Value::Null;
    let mut open: Option<(usize, String)> = None;
    let mut stopped = false;
    for event in events {
        assert!(!stopped, "an event after message_stop: {event}");
        match event["type"].as_str().unwrap() {
            "message_start" => {
                assert!(message.is_null());
                message = event["message"].clone();
            }
            "ping" => {}
            "content_block_start" => {
                assert!(open.is_none(), "two blocks are open: {event}");
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(event["index"], content.len());
                content.push(event["content_block"].clone());
                open = Some((content.len() - 1, String::new()));
            }
            "content_block_delta" => {
                let (at, input) = open.as_mut().expect("a block is open");
                assert_eq!(event["index"], *at);
                let delta = &event["delta"];
                let kind = delta["type"].as_str().unwrap();
                let member = match kind {
                    "text_delta" => "text",
                    "thinking_delta" => "thinking",
                    "signature_delta" => "signature",
                    "input_json_delta" => {
                        input.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    _ => panic!("{event}"),
                };
                let block = &mut message["content"][*at];
                let before = block[member].as_str().expect("the delta belongs to the block").to_owned();
                block[member] = json!(before + delta[member].as_str().unwrap());
            }
            "content_block_stop" => {
                let (at, input) = open.take().expect("a block is open");
                assert_eq!(event["index"], at);
                if message["content"][at]["type"] == "tool_use" {
                    // the input of an invalid call is incomplete
                    message["content"][at]["input"] = serde_json::from_str(&input).unwrap_or(json!({}));
                }
            }
            "message_delta" => {
                assert!(open.is_none());
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => stopped = true,
            _ => panic!("{event}"),
        }
    }
    assert!(stopped, "{events:?}");
    message
}

fn without_id(mut message: Value) -> Value {
    message.as_object_mut().unwrap().remove("id");
    // a signature names its turn
    for block in message["content"].as_array_mut().unwrap() {
        for member in ["signature", "id"] {
            if let Some(value) = block.get_mut(member) {
                assert!(value.as_str().unwrap().len() > 20, "{value}");
                *value = Value::Null;
            }
        }
    }
    message["usage"]["cache_read_input_tokens"] = Value::Null;
    message["usage"]["input_tokens"] = Value::Null;
    message
}

#[tokio::test]
async fn streamed_message_equals_the_whole_one() {
    let chat = start().await;
    let calls = format!("{}\n{}", call(r#"{"city": "Os\"lo", "days": [1, 2.5, null]}"#), call("{}"));
    for (say, stop_reason) in [
        ("It rains.<|im_end|>".to_owned(), "end_turn"),
        ("<think>\nHm.\n</think>\n\nIt rains.<|im_end|>".to_owned(), "end_turn"),
        (format!("<think>\nHm.\n</think>\n\nI look.\n{calls}<|im_end|>"), "tool_use"),
        (format!("{calls}<|im_end|>"), "tool_use"),
        ("Stop at ENDE now.".to_owned(), "stop_sequence"),
        ("<|im_end|>".to_owned(), "end_turn"),
    ] {
        let mut body = request(&[user("Oslo?")]);
        body["tools"] = tools();
        body["stop_sequences"] = json!(["ENDE"]);
        let whole = chat.say(&body, &say).await;
        let streamed = accumulate(&events(&chat, &body, &say).await);
        assert_eq!(whole["stop_reason"], stop_reason, "{whole}");
        assert_eq!(whole["stop_sequence"], if stop_reason == "stop_sequence" { json!("ENDE") } else { Value::Null });
        assert_eq!(without_id(streamed), without_id(whole), "{say}");
    }
}

#[tokio::test]
async fn length_is_max_tokens_or_the_context() {
    let chat = start().await;
    let long = "It rains and rains and rains and rains and rains. ".repeat(20);
    let mut body = request(&[user("Oslo?")]);
    body["max_tokens"] = json!(5);
    assert_eq!(chat.say(&body, &long).await["stop_reason"], "max_tokens");
    let streamed = accumulate(&events(&chat, &body, &long).await);
    assert_eq!((&streamed["stop_reason"], &streamed["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(5)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_reply_has_well_ordered_events(parts in prop::collection::vec(prop_oneof![
        Just("<think>"), Just("</think>"), Just("<tool_call>"), Just("</tool_call>"), Just("\n"), Just("It rains."),
        Just(r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#), Just(r#"{"name": "weather""#), Just("\u{e9}"),
    ], 0..9)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let chat = start().await;
            let mut body = request(&[user("Oslo?")]);
            body["tools"] = tools();
            let say = format!("{}<|im_end|>", parts.concat());
            let streamed = accumulate(&events(&chat, &body, &say).await);
            let whole = chat.say(&body, &say).await;
            let kinds = |message: &Value| {
                let blocks = message["content"].as_array().unwrap().clone();
                let text = |kind: &str, member: &str| {
                    blocks.iter().filter(|block| block["type"] == kind).map(|block| block[member].to_string()).collect::<Vec<_>>()
                };
                (text("tool_use", "input"), message["stop_reason"].clone())
            };
            assert_eq!(kinds(&streamed), kinds(&whole), "{say}");
        });
    }
}
