// SPDX-License-Identifier: Apache-2.0
//! The output items of a response.

use super::tools::ToolName;
use crate::api::openai::tools::CustomCall;
use crate::chat::quoted;

/// An output item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// The id, which is the same in all events and in the response.
    pub(super) id: String,
    pub(super) kind: ItemKind,
    /// The text so far: of the message, of the reasoning, or of the arguments.
    pub(super) text: String,
}

/// The kind of an output item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ItemKind {
    /// Reasoning, with the value of `encrypted_content`. An item without it has no such member: it is not nullable.
    Reasoning(Option<String>),
    /// The text of the assistant, with its logprobs as a JSON list.
    Message(String),
    /// A call of a function.
    Function(CallNames),
    /// A call of a custom tool, whose text is the input.
    Custom(CallNames),
    /// A call of a custom tool, whose text is the arguments that the model wrote, because they hold no input.
    RawCustom(CallNames),
}

/// The prefix of the ids of [`ItemKind::RawCustom`]. By it, or by the id of the call, the arguments are restored when the client returns the
/// call.
pub(super) const RAW_CUSTOM: &str = "ctcr";

/// The id of a call, and the name of its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallNames {
    pub(super) call_id: String,
    pub(super) tool: ToolName,
}

/// The status of an item or a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

impl ItemKind {
    /// The item of a call of a custom tool with these arguments, and its text.
    pub(super) fn custom(names: CallNames, arguments: String) -> (Self, String) {
        let CustomCall { id, input, is_raw } = CustomCall::new(names.call_id, arguments);
        let names = CallNames { call_id: id, tool: names.tool };
        (if is_raw { Self::RawCustom(names) } else { Self::Custom(names) }, input)
    }

    /// The prefix of the ids of such items.
    pub(super) fn prefix(&self) -> &'static str {
        match self {
            Self::Reasoning(_) => "rs",
            Self::Message(_) => "msg",
            Self::Function(_) => "fc",
            Self::Custom(_) => "ctc",
            Self::RawCustom(_) => RAW_CUSTOM,
        }
    }

    /// The content part of such an item, as JSON text. `None` if it has none.
    pub(super) fn part(&self, text: &str) -> Option<String> {
        match self {
            Self::Reasoning(_) => Some(format!("{{\"type\":\"reasoning_text\",\"text\":{}}}", quoted(text))),
            Self::Message(logprobs) => Some(format!(
                "{{\"type\":\"output_text\",\"text\":{},\"annotations\":[],\"logprobs\":{logprobs}}}",
                quoted(text)
            )),
            Self::Function(_) | Self::Custom(_) | Self::RawCustom(_) => None,
        }
    }
}

impl Item {
    /// The item, as JSON text. An item in progress has no text yet.
    pub(super) fn json(&self, status: Status) -> String {
        let Self { id, kind, text } = self;
        let (id, state) = (quoted(id), status.name());
        let begins = status == Status::InProgress;
        let content = || if begins { String::new() } else { kind.part(text).unwrap_or_default() };
        let call = |names: &CallNames, member: &str, text: &str| {
            format!(
                "\"call_id\":{},{},\"{member}\":{}",
                quoted(&names.call_id),
                names.tool.members(),
                quoted(if begins { "" } else { text })
            )
        };
        let (kind, members) = match kind {
            ItemKind::Reasoning(encrypted) => {
                let encrypted = encrypted.as_ref().filter(|_| !begins);
                let encrypted = encrypted.map(|text| format!(",\"encrypted_content\":{}", quoted(text)));
                let (content, encrypted) = (content(), encrypted.unwrap_or_default());
                ("reasoning", format!("\"summary\":[],\"content\":[{content}]{encrypted}"))
            }
            ItemKind::Message(_) => ("message", format!("\"role\":\"assistant\",\"content\":[{}]", content())),
            ItemKind::Function(names) => ("function_call", call(names, "arguments", text)),
            ItemKind::Custom(names) | ItemKind::RawCustom(names) => ("custom_tool_call", call(names, "input", text)),
        };
        format!("{{\"type\":\"{kind}\",\"id\":{id},\"status\":\"{state}\",{members}}}")
    }
}
