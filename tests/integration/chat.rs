// SPDX-License-Identifier: Apache-2.0
//! Chat completions, served from tokens.

mod bytes;
mod causes;
mod completions;
mod conversation;
mod encoded;
mod families;
mod forwarded;
mod hostile;
mod merged;
mod policy;
mod problems;
mod replies;
mod streamed_calls;
mod suffix;
mod template_report;
mod tool_arguments;
mod tools;
mod watching;

use serde_json::{Value, json};
use tokentap::chat::model::Chats;
use tokentap::demo::{EngineOptions, JournalEntry, Streaming};

use super::support::client::Answer;
use super::support::demo::Demo;

/// Where the demo engine's tokenizer and template are.
pub const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/demo/assets");

/// A demo whose chats are served from tokens; the engine keeps a journal.
pub struct Chat {
    pub demo: Demo,
    /// The path of its requests, which names the session.
    pub path: String,
}

impl Chat {
    pub async fn start(flags: &[&str]) -> Self {
        Self::with(EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() }, flags).await
    }

    pub async fn with(options: EngineOptions, flags: &[&str]) -> Self {
        let options = EngineOptions { journal: true, context_length: 65_536, ..options };
        let tokenizer = if flags.contains(&"--tokenizer") { &[][..] } else { &["--tokenizer", TOKENIZER] };
        let flags = [tokenizer, &["--separate-reasoning", "always"], flags].concat();
        let demo = Demo::start(options, &flags).await;
        let mut chats = demo.proxy.parts.chats.clone();
        let found = chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap();
        drop(found);
        Self { demo, path: "/sessions/s/v1/chat/completions".into() }
    }

    /// Posts a request to the data port.
    pub async fn post(&self, body: &Value) -> Answer {
        self.demo.post(&self.path, body).await
    }

    /// Sends a conversation and makes the demo engine's model reply with the text `say`; returns the reply.
    pub async fn say(&self, body: &Value, say: &str) -> Value {
        let answer = self.post(&with_say(body, say)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// The engine's journal without the probe's requests.
    pub fn journal(&self) -> Vec<JournalEntry> {
        let asked = |entry: &JournalEntry| entry.prompt.len() > 8;
        self.demo.engine.journal().into_iter().filter(asked).collect()
    }

    /// The last entry of the journal.
    pub fn last(&self) -> JournalEntry {
        self.journal().pop().expect("the engine was asked")
    }

    pub fn decode(&self, ids: &[u32]) -> String {
        self.demo.engine.tokenizer().decode(ids, false)
    }

    /// The turns of the session, as the control port lists them.
    pub async fn turns(&self) -> Vec<Value> {
        let shown = super::support::client::get(self.demo.proxy.control, "/v1/sessions/s").await.json();
        shown["list"].as_array().unwrap().clone()
    }
}

/// The request with `custom_params.say`, which makes the demo engine's model reply with this text.
pub fn with_say(body: &Value, say: &str) -> Value {
    let mut body = body.clone();
    body["custom_params"] = json!({ "say": say });
    body
}

/// A conversation of these roles and texts.
pub fn messages(turns: &[(&str, &str)]) -> Value {
    turns.iter().map(|(role, content)| json!({ "role": role, "content": content })).collect()
}

/// One tool.
pub fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }}])
}
