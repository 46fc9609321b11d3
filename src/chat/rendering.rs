// SPDX-License-Identifier: Apache-2.0
//! The memory that rendering messages takes, which is counted before they are rendered.

use super::Conversation;
use super::message::Message;
use crate::json::Value;

/// The copies of a text while it is rendered and encoded: in the variables of the template, in the results of its expressions, in its output
/// and in tokens.
pub(super) const RENDERED_TEXT_FACTOR: usize = 8;

/// The memory of a value, or of a part of a message, besides its text.
const VALUE_BYTES: usize = 96;

/// The memory of a message besides its parts.
const MESSAGE_BYTES: usize = 768;

/// What is rendered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rendering {
    text_bytes: usize,
    values: usize,
    messages: usize,
}

impl Rendering {
    /// Adds messages.
    pub(super) fn with_messages(mut self, messages: &[Message]) -> Self {
        for message in messages {
            let calls = message.calls.iter().flat_map(|call| [&call.name, &call.arguments]);
            let members = [&message.role].into_iter().chain(&message.name).chain(&message.reasoning);
            let texts = message.texts.iter().chain(members).chain(&message.tool_call_id).chain(calls);
            for text in texts {
                self.text(text);
            }
            for call in &message.calls {
                // templates read arguments as values
                self.values += call.arguments.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
            }
        }
        self.values += messages.iter().map(|message| message.media.len()).sum::<usize>();
        self.messages += messages.len();
        self
    }

    /// The variables of the template.
    pub(super) fn variables(request: &Conversation) -> Self {
        Self::default().with_values(request.template_variables.iter().map(|(_, value)| value))
    }

    /// Adds values.
    pub(super) fn with_values<'a>(mut self, values: impl Iterator<Item = &'a Value>) -> Self {
        values.for_each(|value| self.value(value));
        self
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null | Value::Bool(_) => self.values += 1,
            Value::Number(text) => self.text(text),
            Value::String(text) => self.text(text),
            Value::Array(values) => values.iter().for_each(|value| self.value(value)),
            Value::Object(members) => {
                for (key, value) in members {
                    self.text(key);
                    self.value(value);
                }
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.values += 1;
        self.text_bytes += text.len();
    }

    /// The length of its texts.
    pub(super) fn text_bytes(self) -> usize {
        self.text_bytes
    }

    /// The memory that it takes.
    pub(super) fn bytes(self) -> usize {
        RENDERED_TEXT_FACTOR * self.text_bytes + VALUE_BYTES * self.values + MESSAGE_BYTES * self.messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_names_are_counted() {
        let bytes = |message: &Message| Rendering::default().with_messages(std::slice::from_ref(message)).bytes();
        let short = Message::new("user", "a".to_owned());
        let role = Message { role: "r".repeat(1000), ..short.clone() };
        let name = Message { name: Some("n".repeat(1000)), ..short.clone() };
        for long in [role, name] {
            assert!(bytes(&long) >= bytes(&short) + 7_900, "{long:?}");
        }
    }
}
