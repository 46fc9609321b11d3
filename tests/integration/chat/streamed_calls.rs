// SPDX-License-Identifier: Apache-2.0
//! Tool calls of streamed chats: their chunks, and the next turn after calls that are valid, invalid or cut off.

use serde_json::{Value, json};

use super::{Chat, messages, tools, with_say};

/// The chunks with tool calls: the members of `delta.tool_calls` in the order of their arrival.
fn call_chunks(events: &[Value]) -> Vec<Value> {
    events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array())
        .flat_map(|calls| {
            assert_eq!(calls.len(), 1, "one call in a chunk");
            calls.clone()
        })
        .collect()
}

/// The assistant's message that a client assembles from a stream, and the finish reason.
pub(super) fn assemble(events: &[Value]) -> (Value, String) {
    let (mut content, mut calls, mut finish) = (String::new(), Vec::<Value>::new(), String::new());
    for event in events {
        let Some(choice) = event["choices"].get(0) else { continue };
        content += choice["delta"]["content"].as_str().unwrap_or_default();
        finish += choice["finish_reason"].as_str().unwrap_or_default();
    }
    for mut chunk in call_chunks(events) {
        let at = usize::try_from(chunk["index"].as_u64().unwrap()).unwrap();
        let text = chunk["function"]["arguments"].as_str().unwrap().to_owned();
        if at == calls.len() {
            chunk.as_object_mut().unwrap().remove("index");
            calls.push(chunk);
        } else {
            let whole = calls[at]["function"]["arguments"].as_str().unwrap().to_owned() + &text;
            calls[at]["function"]["arguments"] = json!(whole);
        }
    }
    let mut message = json!({"role": "assistant", "content": content});
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    (message, finish)
}

async fn stream(chat: &Chat, body: &Value, say: &str) -> Vec<Value> {
    let mut body = with_say(body, say);
    body["stream"] = json!(true);
    let answer = chat.post(&body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.events()
}

const QWEN_XML: &[&str] = &["--tool-call-parser", "qwen_xml"];

const GLM: &[&str] = &["--tool-call-parser", "glm"];

#[tokio::test]
async fn call_is_sent_in_chunks_before_it_is_complete() {
    let hermes = "So.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a town far away in the north\", \"days\": 12}}\n</tool_call><|im_end|>";
    let qwen_xml = "So.\n<tool_call>\n<function=weather>\n<parameter=city>\na town far away in the north\n</parameter>\n<parameter=days>\n12\n</parameter>\n</function>\n</tool_call><|im_end|>";
    for (flags, say) in [(&[][..], hermes), (QWEN_XML, qwen_xml)] {
        let chat = Chat::start(flags).await;
        let mut body = json!({"messages": messages(&[("user", "Weather?")]), "tools": tools(), "max_tokens": 400});
        body["tools"][0]["function"]["parameters"]["properties"]["days"] = json!({"type": "integer"});
        let events = stream(&chat, &body, say).await;
        let chunks = call_chunks(&events);
        let first = &chunks[0];
        assert!(first["id"].as_str().unwrap().starts_with("call_"), "{first}");
        assert_eq!(first["function"], json!({"name": "weather", "arguments": ""}));
        assert_eq!((&first["index"], &first["type"]), (&json!(0), &json!("function")));
        for chunk in &chunks[1..] {
            assert!(chunk["id"].is_null() && chunk["type"].is_null() && chunk["function"]["name"].is_null(), "{chunk}");
            assert_ne!(chunk["function"]["arguments"], "", "a part of the arguments is not empty");
        }
        assert!(chunks.len() > 5, "the arguments have several parts: {chunks:?}");
        let (message, finish) = assemble(&events);
        let arguments = &message["tool_calls"][0]["function"]["arguments"];
        assert_eq!(arguments, "{\"city\": \"a town far away in the north\", \"days\": 12}");
        assert_eq!((&message["content"], &*finish), (&json!("So."), "tool_calls"));
        // the first part has its own event, before the text of the call is complete
        let at = events.iter().position(|event| event["choices"][0]["delta"]["tool_calls"].is_array()).unwrap();
        assert!(events.len() - at > 6, "events follow the start of the call");
    }
}

#[tokio::test]
async fn turn_after_a_streamed_call_extends_it_whether_or_not_the_call_is_valid() {
    let start = "<tool_call>\n{\"name\": \"weather\", \"arguments\": ";
    let table = [
        (&[][..], format!("{start}{{\"city\": \"Tromsø\"}}}}\n</tool_call>"), r#"{"city": "Troms\u00f8"}"#),
        // a repeated key
        (&[], format!("{start}{{\"city\":\"A\",\"city\":\"B\"}}}}</tool_call>"), r#"{"city": "A", "city": "B"}"#),
        // invalid
        (&[], format!("{start}{{\"city\": }}}}</tool_call>"), r#"{"city": }}"#),
        (&[], format!("{start}{{\"city\": \"A\"}}\n</tool_call>"), r#"{"city": "A""#),
        (&[], format!("{start}{{\"city\": \"say \"no\"\"}}}} </tool_call>"), r#"{"city": "say "no""}}"#),
        (&[], "<tool_call>{weather}</tool_call>".to_owned(), "{weather}"),
        // without an end marker
        (&[], format!("{start}{{\"city\": \"A"), r#"{"city": "A"#),
        (&[], format!("{start}{{\"city\": \"A\"}}}}"), r#"{"city": "A"}}"#),
        (
            QWEN_XML,
            "<tool_call>\n<function=weather>\n<parameter=city>\nA\n</parameter>\n</function>\n</tool_call>".to_owned(),
            r#"{"city": "A"}"#,
        ),
        (QWEN_XML, "<tool_call>\n<function=weather>\n<parameter=city>\nA\n</tool_call>".to_owned(), r#"{"city": "A"#),
        (QWEN_XML, "<tool_call>\n<function=weather>\n<parameter=city>\n[1, 2".to_owned(), r#"{"city": "[1, 2"#),
        // values that are read by the schema
        (
            QWEN_XML,
            "<tool_call>\n<function=weather>\n<parameter=city>\n  {\"a\": 1.10}\n\n</parameter>\n</function>\n</tool_call>".to_owned(),
            r#"{"city": "  {\"a\": 1.10}\n"}"#,
        ),
        (
            GLM,
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value> 1.10</arg_value>\n</tool_call>".to_owned(),
            r#"{"city": " 1.10"}"#,
        ),
    ];
    for (flags, text, arguments) in table {
        for cut in [false, true] {
            let chat = Chat::start(flags).await;
            let mut body = json!({"messages": messages(&[("user", "Weather?")]), "tools": tools()});
            let end = if cut { "" } else { "<|im_end|>" };
            let say = |thought: &str| format!("<think>\n{thought}\n</think>\n\nWell. {text}{end}");
            let mut limited = body.clone();
            limited["max_tokens"] = json!(chat.demo.encode(&say("One.")).len());
            let (message, finish) = assemble(&stream(&chat, &limited, &say("One.")).await);
            let call = &message["tool_calls"][0];
            assert_eq!(call["function"]["arguments"], arguments, "{text}");
            assert_eq!((&message["content"], &*finish), (&json!("Well."), if cut { "length" } else { "tool_calls" }));
            // the reply without streaming is equal, except for the id of the call, by which the streamed turn is found below
            limited["max_tokens"] = json!(chat.demo.encode(&say("Two.")).len());
            let whole = chat.say(&limited, &say("Two.")).await;
            assert_eq!(whole["choices"][0]["message"]["tool_calls"][0]["function"], call["function"], "{text}");
            assert_eq!(whole["choices"][0]["message"]["content"], "Well.");
            let list = body["messages"].as_array_mut().unwrap();
            list.push(message.clone());
            list.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "invalid arguments"}));
            let before = &chat.journal()[0];
            chat.say(&body, "Rain.<|im_end|>").await;
            assert!(chat.last().prompt.starts_with(&[&before.prompt[..], &before.output()].concat()), "{text}");
            let turn = chat.turns().await.pop().unwrap();
            assert_eq!((&turn["parent"], &turn["context_retokenised"]), (&json!(0), &json!(false)), "{text} {turn}");
            assert_eq!(turn["foreign_assistant_text"], false);
        }
    }
}
