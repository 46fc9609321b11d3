// SPDX-License-Identifier: Apache-2.0
//! Sessions with everything that a log or a ledger can hold, what trainers read of them, and how agents continue them.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};
use tokentap::demo::{EngineOptions, Streaming};

use super::end;
use crate::chat::TOKENIZER;
use crate::crash::StandaloneEngine;
use crate::crash::trainers::{generate_turn, post_control};
use crate::fleet::import;
use crate::support::binary::Binary;
use crate::support::client::{get, post, request};
use crate::support::upstream::EngineProfile;
use crate::support::vision::{END, PAD, START, Vision, data_uri, sampled};

/// All sessions.
pub(super) const NAMES: [&str; 9] =
    ["branched", "done", "unseen", "reborn", "policies", "tagged", "talk", "answers", "pictures"];

/// Those that [`carry_on`] continues.
pub(super) const CONTINUED: [&str; 3] = ["unseen", "talk", "answers"];

/// What agents know of the sessions that they continue.
pub(super) struct Agents {
    /// The messages of the chat.
    messages: Vec<Value>,
    /// The id of the last response.
    response: Value,
}

impl Agents {
    pub(super) fn to_json(&self) -> Value {
        json!({"messages": self.messages, "response": self.response})
    }

    pub(super) fn from_json(value: &Value) -> Self {
        Self { messages: value["messages"].as_array().unwrap().clone(), response: value["response"].clone() }
    }
}

/// The engine of all sessions without pictures.
pub(super) async fn engine() -> StandaloneEngine {
    let options = EngineOptions { streaming: Streaming::Incremental, routed_experts: true, ..EngineOptions::default() };
    StandaloneEngine::start_with(options).await
}

/// Starts a build on this log or ledger. Sessions must outlive the repository that keeps them.
pub(super) async fn start(program: &str, upstream: SocketAddr, storage: &[&str]) -> Binary {
    let fixed = ["--session-ttl", "876000h", "--session-idle", "876000h", "--columns", "routed_experts"];
    let flags = [&fixed[..], &["--moe-shape", "3x2x8"], storage].concat();
    Binary::of(program, upstream, &flags).await
}

/// The same, with chats from tokens.
pub(super) async fn start_rendering(program: &str, upstream: SocketAddr, storage: &[&str]) -> Binary {
    let mut binary = start(program, upstream, &[storage, &["--tokenizer", TOKENIZER]].concat()).await;
    binary.has_logged("chat completions are served from tokens").await;
    binary
}

/// Records all sessions in three lives of a process.
pub(super) async fn record(program: &str, storage: &[&str]) -> Agents {
    let engine = engine().await;
    // without a tokenizer a chat is not recorded, and its session is incomplete
    let binary = start(program, engine.addr, storage).await;
    import::record(&binary).await;
    end(binary).await;

    let binary = start_rendering(program, engine.addr, storage).await;
    let (data, control) = (binary.data, binary.control);
    generate_turn(data, "policies", &[1, 2], "").await;
    post_control(control, "/update_weights_from_disk", &json!({"model_path": "new"})).await;
    post_control(control, "/v1/policy", &json!({"version": 7})).await;
    generate_turn(data, "policies", &[1, 2, 3], "").await;
    post_control(control, "/v1/sessions/policies/freeze", &json!({})).await;
    post_control(control, "/v1/teacher-scores", &json!({"teacher": "self", "sessions": ["policies"]})).await;
    generate_turn(data, "tagged", &[5, 6], "").await;
    let tags = json!({"task": "a,b", "step": "17"}).to_string();
    let tagged = request(control, "PUT", "/v1/sessions/tagged/tags", &[JSON], tags.as_bytes()).await;
    assert_eq!(tagged.status, 200, "{}", tagged.text());
    let mut agents = Agents { messages: Vec::new(), response: Value::Null };
    for text in ["How far does the light go?", "And in fog?"] {
        say(data, &mut agents, text).await;
    }
    end(binary).await;

    let vision = Vision::start(EngineProfile::default(), &[]).await;
    let binary = start(program, vision.engine.addr, storage).await;
    let (mut ids, mut pictures) = (vec![1, 2], Vec::new());
    for content in ["a", "b", "a"] {
        ids.extend([START, PAD, END, 3]);
        pictures.push(data_uri(content));
        let done = pictures.len() == 3;
        let body = json!({"input_ids": ids, "image_data": pictures}).to_string();
        let headers = [("x-session-id", "pictures"), ("x-session-done", if done { "true" } else { "" })];
        let answer = request(binary.data, "POST", "/generate", &headers, body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        ids.extend(sampled(0));
    }
    end(binary).await;
    agents
}

const JSON: (&str, &str) = ("content-type", "application/json");

async fn send(data: SocketAddr, path: &str, body: &Value) -> Value {
    let answer = post(data, path, body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

/// The agents of the chat and of the stored responses say something.
async fn say(data: SocketAddr, agents: &mut Agents, text: &str) {
    agents.messages.push(json!({"role": "user", "content": text}));
    let body = json!({"model": "demo", "messages": agents.messages, "max_tokens": 6, "seed": 21});
    let reply = send(data, "/sessions/talk/v1/chat/completions", &body).await;
    agents.messages.push(json!({"role": "assistant", "content": reply["choices"][0]["message"]["content"]}));
    let mut body = json!({"model": "demo", "input": text, "max_output_tokens": 6});
    if !agents.response.is_null() {
        body["previous_response_id"] = agents.response.clone();
    }
    let reply = send(data, "/sessions/answers/v1/responses", &body).await;
    assert_eq!(reply["store"], true, "{reply}");
    agents.response = reply["id"].clone();
}

/// The agents of [`CONTINUED`] make another turn, and each session remains one path with the tokens that were sampled.
pub(super) async fn carry_on(binary: &Binary, agents: &mut Agents) {
    let (data, control) = (binary.data, binary.control);
    let paths = |session: &'static str| async move {
        let shown = get(control, &format!("/v1/sessions/{session}/trajectories")).await.json();
        shown["trajectories"].as_array().unwrap_or_else(|| panic!("{session}: {shown}")).clone()
    };
    let mut before = Vec::new();
    for session in CONTINUED {
        let mut rows = paths(session).await;
        assert_eq!(rows.len(), 1, "{session}");
        before.push(rows.remove(0)["token_ids"].as_array().unwrap().clone());
    }
    let prompt: Vec<u32> = before[0].iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).chain([9]).collect();
    generate_turn(data, "unseen", &prompt, "").await;
    say(data, agents, "Who keeps it?").await;
    for (session, before) in CONTINUED.into_iter().zip(before) {
        let rows = paths(session).await;
        let after = rows[0]["token_ids"].as_array().unwrap();
        assert!(rows.len() == 1 && after.len() > before.len() && after.starts_with(&before), "{session}: {rows:?}");
    }
}

/// What trainers read: the page and the export of each session, and the finished paths.
pub(super) async fn read(control: SocketAddr) -> Value {
    let mut sessions = Map::new();
    for session in NAMES {
        let mut page = get(control, &format!("/v1/sessions/{session}")).await.json();
        let members = page.as_object_mut().unwrap_or_else(|| panic!("{session}"));
        // a session takes less if an earlier one has the same values
        members.remove("bytes");
        // only shared sessions have one
        members.remove("generation");
        let mut wanted = json!({"sessions": [session], "format": "jsonl", "images": "embed"});
        if session == "policies" {
            wanted["scores"] = "self".into();
        }
        let export = post(control, "/v1/samples", wanted.to_string().as_bytes()).await;
        assert_eq!(export.status, 200, "{session}: {}", export.text());
        let read = json!({"page": page, "export": lines(&export.text())});
        sessions.insert(session.to_owned(), read);
    }
    let mut finished = Map::new();
    for mut path in lines(&get(control, "/v1/trajectories").await.text()) {
        path.as_object_mut().unwrap().remove("cursor").expect("each line has one");
        finished.insert(format!("{} {}", path["session"], path["leaf"]), path);
    }
    assert_eq!(get(control, "/v1/sessions/deleted").await.status, 404);
    json!({"sessions": sessions, "finished": finished})
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The part of [`read`] that [`carry_on`] does not change.
pub(super) fn untouched(read: &Value) -> Value {
    let mut read = read.clone();
    for session in CONTINUED {
        read["sessions"].as_object_mut().unwrap().remove(session);
    }
    read
}
