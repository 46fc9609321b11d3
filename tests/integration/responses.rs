// SPDX-License-Identifier: Apache-2.0
//! OpenAI's Responses API, served from tokens.

mod decoding;
mod errors;
mod history;
mod stored;
mod streams;
mod tools;

use serde_json::{Value, json};

use super::chat::{Chat, with_say};

/// Where the requests of a session go.
const PATH: &str = "/sessions/s/v1/responses";

/// A demo that serves Responses.
async fn start() -> Chat {
    let mut chat = Chat::start(&[]).await;
    chat.path = PATH.to_owned();
    chat
}

/// A request with this input.
fn request(input: impl Into<Value>) -> Value {
    json!({"model": "gpt-6", "input": input.into()})
}

/// A message with one text.
fn message(role: &str, text: &str) -> Value {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
}

/// The output of a call.
fn output(call: &Value, text: &str) -> Value {
    json!({"type": format!("{}_output", call["type"].as_str().unwrap()), "call_id": call["call_id"], "output": text})
}

/// The sampling parameters of the last turn.
fn sampling(chat: &Chat) -> Value {
    let session = chat.demo.proxy.parts.sessions.session("s").unwrap();
    let last = (0..).map_while(|turn| session.turn(turn)).last().unwrap();
    serde_json::from_str(last.about.sampling.as_deref().unwrap()).unwrap()
}

/// Appends items to the input of a request.
fn append(body: &mut Value, items: impl IntoIterator<Item = Value>) {
    body["input"].as_array_mut().unwrap().extend(items);
}

/// The items of a reply.
fn items(reply: &Value) -> Vec<Value> {
    reply["output"].as_array().unwrap().clone()
}

/// The items of a reply that have this type.
fn of_type(reply: &Value, kind: &str) -> Vec<Value> {
    items(reply).into_iter().filter(|item| item["type"] == kind).collect()
}

/// A function tool.
fn function(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({"type": "function", "name": name, "description": "The weather of a place", "parameters": parameters})
}

/// The text of a reply that calls a tool.
fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// The data of the events of a stream. Checks the names and the numbers of the events.
async fn events(chat: &Chat, body: &Value, say: &str) -> Vec<Value> {
    let mut body = with_say(body, say);
    body["stream"] = json!(true);
    let answer = chat.post(&body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")));
    parse(&answer.text())
}

fn parse(stream: &str) -> Vec<Value> {
    let event = |(at, frame): (usize, &str)| {
        let (name, data) = frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(at)), "{data}");
        data
    };
    stream.split_terminator("\n\n").enumerate().map(event).collect()
}

/// The types of events, without the prefix and with repeated deltas once.
fn types(events: &[Value]) -> Vec<String> {
    let mut types: Vec<String> =
        events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("response.").to_owned()).collect();
    types.dedup();
    types
}

/// Builds the response from the text of a stream.
pub(super) fn accumulate(stream: &str) -> Value {
    streams::accumulate(&parse(stream))
}
