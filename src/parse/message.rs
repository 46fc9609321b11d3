//! The parts of a parsed message, and the whole message.

use super::value::PythonValue;

/// The name of a call whose name cannot be read.
pub const UNKNOWN_TOOL: &str = "unknown_tool";

/// A parsed text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The text inside think spans; `None` if it has no visible character.
    pub reasoning: Option<String>,
    /// The text that is neither reasoning nor a call.
    pub content: String,
    /// The calls, in the order of the text.
    pub calls: Vec<ToolCall>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The name of the tool, or [`UNKNOWN_TOOL`].
    pub name: String,
    /// The call's id, if the format has one: `kimi_k2` and `mistral`.
    pub id: Option<String>,
    /// A JSON object as Python's `json.dumps` writes it. If the call could not be read, its text.
    pub arguments: String,
    /// The call could not be read.
    pub error: bool,
}

/// A part of a message, emitted as soon as it is certain.
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
    /// A call that was read. Arguments that are not a dict count as none.
    pub(super) fn read(name: impl Into<String>, arguments: Option<&PythonValue>) -> Self {
        let arguments = match arguments {
            Some(arguments @ PythonValue::Dict(_)) => arguments.dumps(),
            _ => "{}".to_owned(),
        };
        Self { name: name.into(), id: None, arguments, error: false }
    }

    /// A call that could not be read, with its text.
    pub(super) fn unread(name: &str, raw: &str) -> Self {
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
