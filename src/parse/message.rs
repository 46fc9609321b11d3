// SPDX-License-Identifier: Apache-2.0
//! A parsed message, and the events that build it.

use std::iter;

use super::loads::loads;
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
    /// A JSON object as Python's `json.dumps` writes it; repeated keys are kept. If the call is invalid: its raw text, its arguments that are
    /// not an object, or the arguments that were emitted before the call became invalid and the raw text after them.
    pub arguments: String,
    /// The call is invalid, or it is cut off.
    pub error: bool,
}

/// A part of a message. It is emitted as soon as later text cannot change it, and it is never taken back.
///
/// A call is three kinds of events: its start, its arguments in any number of parts, and its end. A call that cannot be emitted in parts has
/// the same events, all at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More reasoning.
    Reasoning(String),
    /// More content.
    Content(String),
    /// A call starts. Up to its end, only arguments are emitted.
    CallStart {
        /// The name of the tool, or [`UNKNOWN_TOOL`].
        name: String,
        /// The call's id, if the model writes one.
        id: Option<String>,
    },
    /// More of the arguments of the call that has started. Never empty.
    Arguments(String),
    /// The call ends.
    CallEnd {
        /// The call is invalid or cut off: its arguments may not be JSON.
        error: bool,
    },
}

impl Event {
    /// The event of a part of the arguments; none if it is empty.
    pub(super) fn arguments(text: impl Into<String>) -> Option<Self> {
        Some(text.into()).filter(|text| !text.is_empty()).map(Self::Arguments)
    }
}

impl ToolCall {
    /// The events of a whole call.
    pub fn into_events(self) -> impl Iterator<Item = Event> {
        let Self { name, id, arguments, error } = self;
        let start = Event::CallStart { name, id };
        iter::once(start).chain(Event::arguments(arguments)).chain([Event::CallEnd { error }])
    }

    /// A call whose arguments are this value. A string that contains an object is the object, as in the wire format of OpenAI. Without a
    /// value, or with null, the call has no arguments. With another value it is invalid.
    pub(super) fn with_arguments(name: impl Into<String>, arguments: Option<&PythonValue>) -> Self {
        let encoded = arguments.and_then(PythonValue::as_text).and_then(|text| loads(&text).ok());
        let (arguments, error) = match encoded.as_ref().filter(|value| value.is_dict()).or(arguments) {
            None | Some(PythonValue::Null) => ("{}".to_owned(), false),
            Some(arguments) => (arguments.dumps(), !arguments.is_dict()),
        };
        Self { name: name.into(), id: None, arguments, error }
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
                Event::CallStart { name, id } => {
                    self.calls.push(ToolCall { name, id, arguments: String::new(), error: false });
                }
                Event::Arguments(text) => {
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments.push_str(&text);
                    }
                }
                Event::CallEnd { error } => {
                    if let Some(call) = self.calls.last_mut() {
                        call.error = error;
                    }
                }
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
