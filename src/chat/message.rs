//! A message of a conversation, and what of it decides whether two are the same.

use std::borrow::Cow;
use std::collections::HashMap;

use sha2::{Digest as _, Sha256};

use super::canonical::canonical;
use crate::json::Value;
use crate::session::Digest;
use crate::tokenizer::{Content, TextOrigin};

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The role of its author.
    pub role: String,
    /// The text; with several parts, each of them in order. Empty without text.
    pub texts: Vec<String>,
    /// The content came as a list of parts.
    pub in_parts: bool,
    /// `reasoning_content`, or `reasoning`.
    pub reasoning: Option<String>,
    /// What an assistant calls.
    pub calls: Vec<Call>,
    /// The call that a tool answers.
    pub answers: Option<String>,
    /// `name`.
    pub name: Option<String>,
}

/// One tool call of an assistant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// `id`.
    pub id: Option<String>,
    /// `function.name`.
    pub name: String,
    /// `function.arguments`, as text; an object is written as Python writes it.
    pub arguments: String,
}

impl Message {
    /// Of this message alone.
    #[must_use]
    pub fn own_digest(&self) -> Digest {
        self.digest(Digest::default(), &HashMap::new())
    }

    /// Whether it is what a tool returned.
    #[must_use]
    pub fn is_tool_result(&self) -> bool {
        matches!(&*self.role, "tool" | "function")
    }

    /// The same message with nothing in it.
    #[must_use]
    pub fn without_text(&self) -> Self {
        let Self { role, answers, name, .. } = self;
        let (role, answers, name) = (role.clone(), answers.clone(), name.clone());
        Self { role, texts: Vec::new(), in_parts: false, reasoning: None, calls: Vec::new(), answers, name }
    }

    /// Whether it has neither text nor calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.texts.iter().all(|text| text.trim().is_empty())
    }

    /// Whether it is an assistant's message.
    #[must_use]
    pub fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    /// Its parts as one text.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match &self.texts[..] {
            [text] => text.into(),
            texts => texts.concat().into(),
        }
    }

    /// The reasoning, from the two places where clients keep it: its own member, and the text. Empty without reasoning.
    #[must_use]
    pub fn thoughts(&self) -> [String; 2] {
        let text = self.text();
        [self.reasoning.as_deref().unwrap_or_default().trim().to_owned(), split_thought(&text).0.to_owned()]
    }

    /// What the template is given: marked where a text names control tokens. A template that does not take `parts` gets them as one
    /// text, joined by spaces as SGLang joins them.
    #[must_use]
    pub fn shown(&self, marks: &Content, parts: bool) -> Value {
        let author = if self.is_tool_result() { TextOrigin::Tool } else { TextOrigin::Person };
        let string = |text: &str| Value::String(marks.mark(text, author).into_owned());
        let content = if self.in_parts && parts {
            let part = |text: &String| object([("type", "text".into()), ("text", string(text))]);
            Value::Array(self.texts.iter().map(part).collect())
        } else {
            string(&self.texts.join(" "))
        };
        let mut members = vec![("role", string(&self.role)), ("content", content)];
        if self.role == "user" {
            // SGLang drops whatever else a user's message has
            return object(members);
        }
        if let Some(id) = &self.answers {
            members.push(("tool_call_id", string(id)));
        }
        if let Some(name) = &self.name {
            members.push(("name", string(name)));
        }
        if let Some(reasoning) = &self.reasoning {
            members.push(("reasoning_content", string(reasoning)));
        }
        if !self.calls.is_empty() {
            members.push(("tool_calls", self.calls.iter().map(|call| call.shown(marks)).collect::<Vec<_>>().into()));
        }
        object(members)
    }

    /// The index of each of its calls, by id.
    #[must_use]
    pub fn places(&self) -> HashMap<&str, usize> {
        // of calls with one id the first is meant
        self.calls.iter().enumerate().rev().filter_map(|(at, call)| Some((call.id.as_deref()?, at))).collect()
    }

    /// What it comes to, behind what came `before`: the same for messages that clients write differently and mean alike. Parts of text
    /// are one text, white space at its end, `null` and nothing are the same, and so are arguments with their keys in another order.
    /// Reasoning does not count: most clients drop it. Neither do the ids of calls, which some count anew: an answer names its call by
    /// its place, which `asked` says of the calls of the last assistant.
    #[must_use]
    pub fn digest(&self, before: Digest, asked: &HashMap<&str, usize>) -> Digest {
        let mut hash = Sha256::new();
        hash.update(before.as_bytes());
        let mut put = |part: &str| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        };
        put(&self.role);
        let text = self.text();
        put(if self.is_assistant() { split_thought(&text).1 } else { text.trim_end() });
        put(self.name.as_deref().unwrap_or_default());
        match &self.answers {
            Some(id) => put(&asked.get(id.as_str()).map_or_else(|| id.clone(), |place| format!("#{place}"))),
            None => put(""),
        }
        for call in &self.calls {
            put(&call.name);
            put(&call.canonical());
        }
        Digest::of(hash.finalize().as_slice())
    }
}

/// The thought in a text, and the text after it, both without white space around them. Where the prompt opened the thought, the
/// text begins within it.
fn split_thought(text: &str) -> (&str, &str) {
    let Some((thought, said)) = text.rsplit_once("</think>") else { return ("", text.trim_end()) };
    (thought.trim().trim_start_matches("<think>").trim(), said.trim())
}

impl Call {
    /// Arguments as an object, which templates go through; what is none is shown as it was written.
    fn shown(&self, marks: &Content) -> Value {
        let text = self.arguments.trim();
        let arguments = match Value::parse(text.as_bytes()) {
            Ok(value @ Value::Object(_)) => value,
            _ if text.is_empty() => Value::Object(Vec::new()),
            _ => Value::String(self.arguments.clone()),
        };
        let function = object([("name", self.name.as_str().into()), ("arguments", arguments)]);
        let id = self.id.as_deref().map(|id| ("id", id.into()));
        let members = id.into_iter().chain([("type", "function".into()), ("function", function)]);
        marks.mark_all(&object(members), TextOrigin::Person)
    }

    fn canonical(&self) -> String {
        match Value::parse(self.arguments.trim().as_bytes()) {
            Ok(value) => canonical(&value),
            Err(_) => self.arguments.trim().to_owned(),
        }
    }
}

fn object(members: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}
