//! A message of a conversation as clients write it, and what of it decides whether two are the same.

use std::borrow::Cow;
use std::collections::HashMap;

use sha2::{Digest as _, Sha256};

use super::canonical::{canonical, dumps};
use crate::json::Value;
use crate::tokenizer::{Author, Content};
use crate::trajectory::Digest;

/// A message of the OpenAI schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: String,
    /// The text; of several parts each, in order. Empty where there is none.
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

/// The role that SGLang takes only as it is written here.
const USER: &str = "user";

/// The roles that SGLang takes.
const ROLES: [&str; 7] = [USER, "system", "developer", "assistant", "tool", "function", "latest_reminder"];

/// A role as SGLang reads it: the case of all but a user's does not count.
fn known_role(role: String) -> Result<String, String> {
    let lower = role.to_ascii_lowercase();
    match ROLES.contains(&lower.as_str()) && (lower != USER || role == USER) {
        true => Ok(lower),
        false => Err(role),
    }
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

/// Why a message is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// The client is told.
    #[error("{0}")]
    Wrong(String),
    /// A part of this kind, which only the engine can place: an image, a sound.
    #[error("a part of type {0:?}")]
    Foreign(String),
}

impl Message {
    /// Reads one; `at` is its place in the list, for what the client is told.
    ///
    /// # Errors
    /// [`BadMessage`].
    pub fn read(value: Value, at: usize) -> Result<Self, BadMessage> {
        let wrong = |what: &str| BadMessage::Wrong(format!("messages[{at}]{what}"));
        let Value::Object(mut members) = value else { return Err(wrong(" must be an object")) };
        // taken, not copied: a conversation may be long
        let mut take = |name: &str| {
            let (_, value) = members.iter_mut().find(|(key, _)| key == name)?;
            Some(std::mem::take(value)).filter(|value| *value != Value::Null)
        };
        let mut text = |name: &str| match take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong(&format!(".{name} must be a string"))),
        };
        let role = text("role")?.ok_or_else(|| wrong(".role must be a string"))?;
        let role =
            known_role(role).map_err(|role| wrong(&format!(".role {role:?} is none of {}", ROLES.join(", "))))?;
        let (answers, name, reasoning) = (text("tool_call_id")?, text("name")?, text("reasoning_content")?);
        // no field of SGLang's, which ignores a value of another type
        let reasoning = reasoning.or_else(|| text("reasoning").ok().flatten());
        let mut texts = Vec::new();
        let content = take("content");
        let in_parts = matches!(content, Some(Value::Array(_)));
        match content {
            None if role == USER => return Err(wrong(".content is required")),
            None => {}
            Some(Value::String(text)) => texts.push(text),
            Some(Value::Array(parts)) => {
                for part in parts {
                    match (&part, part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
                        (Value::String(text), ..) => texts.push(text.clone()),
                        (_, Some("text" | "input_text") | None, Some(text)) => texts.push(text.to_owned()),
                        (_, Some(kind), _) if kind != "text" => return Err(BadMessage::Foreign(kind.to_owned())),
                        _ => return Err(wrong(".content has a part without a text")),
                    }
                }
            }
            Some(_) => return Err(wrong(".content must be a string or a list of parts")),
        }
        let calls = match take("tool_calls") {
            None => Vec::new(),
            Some(Value::Array(calls)) => calls
                .iter()
                .map(|call| Call::read(call).ok_or_else(|| wrong(".tool_calls has a call without function.name")))
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(wrong(".tool_calls must be a list")),
        };
        Ok(Self { role, texts, in_parts, reasoning, calls, answers, name })
    }

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

    /// Whether the assistant says it.
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

    /// What was thought before it was said, in both places where it may be kept: apart, and in the text. Empty where it is not.
    #[must_use]
    pub fn thoughts(&self) -> [String; 2] {
        let text = self.text();
        [self.reasoning.as_deref().unwrap_or_default().trim().to_owned(), split_thought(&text).0.to_owned()]
    }

    /// What the template is given: marked where a text names control tokens. A template that does not take `parts` gets them as one
    /// text, joined by spaces as SGLang joins them.
    #[must_use]
    pub fn shown(&self, marks: &Content, parts: bool) -> Value {
        let author = if self.is_tool_result() { Author::Tool } else { Author::Person };
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

    /// Where each of its calls stands, by its id.
    #[must_use]
    pub fn places(&self) -> HashMap<&str, usize> {
        // of calls with one id the first is meant
        self.calls.iter().enumerate().rev().filter_map(|(at, call)| Some((call.id.as_deref()?, at))).collect()
    }

    /// What it comes to, behind what came `before`: the same for messages that clients write differently and mean alike. Parts of text
    /// are one text, white space at its end, `null` and nothing are the same, and so are arguments whose keys stand in another order.
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

/// The thought in a text, and what is said behind it, both without white space around them. Where the prompt opened the thought, the
/// text begins within it.
fn split_thought(text: &str) -> (&str, &str) {
    let Some((thought, said)) = text.rsplit_once("</think>") else { return ("", text.trim_end()) };
    (thought.trim().trim_start_matches("<think>").trim(), said.trim())
}

impl Call {
    fn read(value: &Value) -> Option<Self> {
        let function = value.get("function")?;
        let arguments = match function.get("arguments") {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => dumps(value),
        };
        let id = value.get("id").and_then(Value::as_str).map(str::to_owned);
        Some(Self { id, name: function.get("name")?.as_str()?.to_owned(), arguments })
    }

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
        marks.mark_all(&object(members), Author::Person)
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
