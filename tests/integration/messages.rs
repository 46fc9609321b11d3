// SPDX-License-Identifier: Apache-2.0
//! Anthropic's Messages API, served from tokens.

mod decoding;
mod errors;
mod history;
mod model;
mod streams;

use serde_json::{Value, json};

use super::chat::{Chat, with_say};

/// Where the requests of a session go.
const PATH: &str = "/sessions/s/v1/messages?beta=true";

/// A demo that serves Messages.
async fn start() -> Chat {
    let mut chat = Chat::start(&[]).await;
    chat.path = PATH.to_owned();
    chat
}

/// A request with these messages.
fn request(messages: &[Value]) -> Value {
    json!({"model": "claude-opus", "max_tokens": 512, "messages": messages})
}

fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The message of an assistant that a client stores.
fn assistant(reply: &Value) -> Value {
    json!({"role": "assistant", "content": reply["content"]})
}

fn result(reply: &Value, at: usize, content: impl Into<Value>) -> Value {
    json!({"type": "tool_result", "tool_use_id": reply["content"][at]["id"], "content": content.into()})
}

/// Two tools as Messages clients describe them.
fn tools() -> Value {
    let tool = |name: &str| {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
        json!({"name": name, "description": "The weather of a place", "input_schema": schema})
    };
    json!([tool("weather"), tool("forecast")])
}

/// The text of a reply that calls a tool.
fn call(arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// The data of the events of a stream. Checks that the name of each event is its type.
async fn events(chat: &Chat, body: &Value, say: &str) -> Vec<Value> {
    let mut body = with_say(body, say);
    body["stream"] = json!(true);
    let answer = chat.post(&body).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    parse(&answer.text())
}

fn parse(stream: &str) -> Vec<Value> {
    let event = |frame: &str| {
        let (name, data) = frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    stream.split_terminator("\n\n").map(event).collect()
}

/// Builds the message from the text of a stream.
pub(super) fn accumulate(stream: &str) -> Value {
    streams::accumulate(&parse(stream))
}
