//! A parsed message, and the events that build it.

use super::value::PythonValue;

/// The name of an invalid call without a readable name.
pub const UNKNOWN_TOOL: &str = "unknown_tool";

/// A parsed message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The text inside think spans; `None` if it has no visible character.
    pub reasoning: Option<String>,
    /// The text that is neither reasoning nor a call.
    pub content: String,
    /// The calls, in the order of their events.
    pub calls: Vec<ToolCall>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The name of the tool, or [`UNKNOWN_TOOL`].
    pub name: String,
    /// The call's id, if the format has one: `kimi_k2` and `mistral`.
    pub id: Option<String>,
    /// A JSON object as Python's `json.dumps` writes it. The raw text if the call is invalid.
    pub arguments: String,
    /// The call is invalid.
    pub error: bool,
}

/// A part of a message. It is emitted as soon as later text cannot change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More reasoning.
    Reasoning(String),
    /// More content.
    Content(String),
    /// A whole call.
    Call(ToolCall),
}

impl ToolCall {
    /// A valid call. Arguments that are not a dict count as no arguments.
    pub(super) fn valid(name: impl Into<String>, arguments: Option<&PythonValue>) -> Self {
        let arguments = match arguments {
            Some(arguments @ PythonValue::Dict(_)) => arguments.dumps(),
            _ => "{}".to_owned(),
        };
        Self { name: name.into(), id: None, arguments, error: false }
    }

    /// An invalid call with its raw text. An empty name becomes [`UNKNOWN_TOOL`].
    pub(super) fn invalid(name: &str, raw: &str) -> Self {
        let name = if name.is_empty() { UNKNOWN_TOOL } else { name };
        Self { name: name.to_owned(), id: None, arguments: raw.to_owned(), error: true }
    }
}

impl Extend<Event> for Message {
    fn extend<I: IntoIterator<Item = Event>>(&mut self, events: I) {
        for event in events {
            match event {
                Event::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
                Event::Content(text) => self.content.push_str(&text),
                Event::Call(call) => self.calls.push(call),
            }
        }
    }
}

impl FromIterator<Event> for Message {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Self {
        let mut message = Self::default();
        message.extend(events);
        message
    }
}
