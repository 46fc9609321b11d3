// SPDX-License-Identifier: Apache-2.0
//! The arguments of tool calls: how the three APIs read the calls of the table, and text that looks like a marker.

use serde_json::{Value, json};

use super::streamed_calls::assemble;
use super::{Chat, messages, tools, with_say};

/// Sampled calls, and their reading: that of SGLang 0.5.23, or our decision.
const TABLE: &str = include_str!("../../fixtures/tool_arguments.json");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    Chat,
    Messages,
    Responses,
}

impl Api {
    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/sessions/s/v1/chat/completions",
            Self::Messages => "/sessions/s/v1/messages",
            Self::Responses => "/sessions/s/v1/responses",
        }
    }

    fn request(self, tools: &Value) -> Value {
        let list = tools.as_array().unwrap().iter().map(|tool| &tool["function"]);
        match self {
            Self::Chat => json!({"messages": messages(&[("user", "Go.")]), "tools": tools, "max_tokens": 400}),
            Self::Messages => {
                let tool = |tool: &Value| json!({"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]});
                let tools: Vec<Value> = list.map(tool).collect();
                json!({"model": "m", "max_tokens": 400, "messages": messages(&[("user", "Go.")]), "tools": tools})
            }
            Self::Responses => {
                let tool = |tool: &Value| {
                    let mut tool = tool.clone();
                    tool["type"] = json!("function");
                    tool
                };
                json!({"model": "m", "input": "Go.", "tools": list.map(tool).collect::<Vec<_>>()})
            }
        }
    }

    /// The content of a reply and its calls: their names and arguments.
    async fn reply(self, chat: &Chat, body: &Value, say: &str, is_streamed: bool) -> (String, Vec<(Value, Value)>) {
        let mut body = with_say(body, say);
        body["stream"] = json!(is_streamed);
        let answer = chat.post(&body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let reply = match (self, is_streamed) {
            (Self::Chat, true) => assemble(&answer.events()).0,
            (Self::Chat, false) => answer.json()["choices"][0]["message"].clone(),
            (_, false) => answer.json(),
            (Self::Messages, true) => crate::messages::accumulate(&answer.text()),
            (Self::Responses, true) => crate::responses::accumulate(&answer.text()),
        };
        let parts = |member: &str| reply[member].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let parsed = |arguments: &Value| serde_json::from_str::<Value>(arguments.as_str().unwrap()).unwrap();
        match self {
            Self::Chat => {
                let call = |call: &Value| {
                    let function = &call["function"];
                    (function["name"].clone(), parsed(&function["arguments"]))
                };
                (text(&reply["content"]), parts("tool_calls").iter().map(call).collect())
            }
            Self::Messages => {
                let call = |block: &Value| (block["name"].clone(), block["input"].clone());
                let blocks = parts("content");
                let of = |kind: &'static str| blocks.iter().filter(move |block| block["type"] == kind);
                (of("text").map(|block| text(&block["text"])).collect(), of("tool_use").map(call).collect())
            }
            Self::Responses => {
                let call = |item: &Value| (item["name"].clone(), parsed(&item["arguments"]));
                let items = parts("output");
                let of = |kind: &'static str| items.iter().filter(move |item| item["type"] == kind);
                let content = of("message").map(|item| text(&item["content"][0]["text"])).collect();
                (content, of("function_call").map(call).collect())
            }
        }
    }
}

#[tokio::test]
async fn calls_of_the_table_are_read_by_the_schema_in_all_apis() {
    let table: Value = serde_json::from_str(TABLE).unwrap();
    let rows = table["rows"].as_array().unwrap();
    for (format, parsers) in [
        ("qwen_xml", &["qwen3_coder"][..]),
        ("glm", &["glm45"]),
        ("hermes", &["hermes", "qwen25"]),
        ("minimax_m2", &["minimax-m2"]),
        ("deepseek_v32", &["deepseekv32"]),
        ("deepseek_v4", &["deepseekv4"]),
    ] {
        let mut chat = Chat::start(&["--tool-call-parser", format]).await;
        for api in [Api::Chat, Api::Messages, Api::Responses] {
            chat.path = api.path().to_owned();
            let body = api.request(&table["tools"]);
            for row in rows.iter().filter(|row| parsers.contains(&row["parser"].as_str().unwrap())) {
                let say = format!("{}<|im_end|>", row["sampled"].as_str().unwrap());
                let call =
                    |call: &Value| (call[0].clone(), serde_json::from_str::<Value>(call[1].as_str().unwrap()).unwrap());
                let calls: Vec<_> = row["calls"].as_array().unwrap().iter().map(call).collect();
                let expected = (row["content"].as_str().unwrap().to_owned(), calls);
                for is_streamed in [false, true] {
                    let reply = api.reply(&chat, &body, &say, is_streamed).await;
                    assert_eq!(reply, expected, "{api:?} {format} {} {is_streamed}", row["case"]);
                }
            }
        }
    }
}

/// The tokens of a text in which each character is encoded alone, so that no marker becomes its token.
fn plain(chat: &Chat, text: &str) -> Vec<u32> {
    text.chars().flat_map(|c| chat.demo.encode(&c.to_string())).collect()
}

#[tokio::test]
async fn marker_that_was_not_sampled_as_its_token_is_text() {
    let hermes = ["<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"", "\"}}\n</tool_call><|im_end|>"];
    let qwen_xml =
        ["<tool_call>\n<function=weather>\n<parameter=city>\n", "\n</parameter>\n</function>\n</tool_call><|im_end|>"];
    let quoted = "a </tool_call> <think> b </think> <tool_call>";
    for (format, [before, after]) in [("hermes", hermes), ("qwen_xml", qwen_xml)] {
        let chat = Chat::start(&["--tool-call-parser", format]).await;
        let mut body = json!({"messages": messages(&[("user", "Weather?")]), "tools": tools(), "max_tokens": 400});
        let said = [
            chat.demo.encode("So "),
            plain(&chat, quoted),
            chat.demo.encode(before),
            plain(&chat, quoted),
            chat.demo.encode(after),
        ];
        body["custom_params"] = json!({ "say": said.concat() });
        let whole = chat.post(&body).await.json()["choices"][0]["message"].clone();
        body["stream"] = json!(true);
        let (streamed, _) = assemble(&chat.post(&body).await.events());
        for message in [&whole, &streamed] {
            assert_eq!(message["content"], format!("So {quoted}"), "{format} {message}");
            assert!(message["reasoning_content"].is_null(), "{message}");
            let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
            assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({ "city": quoted }), "{format}");
            assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);
        }
        let next = json!({"role": "tool", "tool_call_id": streamed["tool_calls"][0]["id"], "content": "rain"});
        body["messages"].as_array_mut().unwrap().extend([streamed, next]);
        body["stream"] = json!(false);
        chat.say(&body, "Rain.<|im_end|>").await;
        let turn = chat.turns().await.pop().unwrap();
        assert_eq!((&turn["parent"], &turn["context_retokenised"]), (&json!(1), &json!(false)), "{turn}");
    }
}

#[tokio::test]
async fn marker_whose_end_may_begin_a_stop_string_is_found() {
    let chat = Chat::start(&["--tool-call-parser", "hermes"]).await;
    let mut body = json!({"messages": messages(&[("user", "Weather?")]), "tools": tools(), "max_tokens": 400});
    body["stop"] = json!(["call>!", ">\n{x"]);
    let say = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"A\"}}\n</tool_call><|im_end|>";
    for is_streamed in [false, true] {
        let (content, calls) = Api::Chat.reply(&chat, &body, say, is_streamed).await;
        assert_eq!((&*content, calls), ("", vec![(json!("weather"), json!({"city": "A"}))]), "{is_streamed}");
    }
}
