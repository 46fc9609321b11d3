// SPDX-License-Identifier: Apache-2.0
//! Checks a template by rendering short conversations: whether the text that is rendered after a turn equals the end of the whole rendered
//! conversation, and what the template does with tools and with a final assistant message.

use std::fmt::{self, Display, Formatter};

use super::after_turn::placeholder_turn_with_calls;
use super::{PLACEHOLDER, Renderer, Setting, message};
use crate::json::Value;

/// The result of appending messages to a conversation without rendering its earlier turns again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The earlier text and the text rendered after the turn equal the whole rendered conversation.
    Exact,
    /// The template writes the same text after the turn, but rewrites earlier turns. The earlier turns keep their tokens.
    Rewrites,
    /// The text after the turn cannot be separated from the turn. Each call renders the whole conversation.
    NoBoundary,
    /// The template rejects the conversation.
    Refused,
}

/// The results of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContinuationCheck {
    /// The result for a user message after the turn.
    pub user: Fit,
    /// The result for a tool result after the turn.
    pub tool: Fit,
}

impl Fit {
    /// The name in logs and reports.
    fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Rewrites => "keeps turns that the template would rewrite",
            Self::NoBoundary => "not possible",
            Self::Refused => "rejected by the template",
        }
    }
}

impl Display for ContinuationCheck {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.user.name(), self.tool.name()) {
            (user, tool) if user == tool => write!(f, "{user} (user, tool)"),
            (user, tool) => write!(f, "{user} (user), {tool} (tool)"),
        }
    }
}

/// A name of a tool that no template contains. It is ASCII, because templates escape other characters in JSON.
const TOOL_NAME: &str = "tokentap_check_tool";

/// In which conversations the template shows the tools of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolDisplay {
    /// In conversations with and without a system message.
    Always,
    /// Only in conversations with a system message.
    WithSystemMessage,
    /// Only in conversations without a system message.
    WithoutSystemMessage,
    /// In no conversation: the model does not see the tools.
    Never,
    /// The template rejects conversations with tools.
    Refused,
}

/// What the template does with a final assistant message that the reply does not continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalAssistantMessage {
    /// It is a whole assistant turn, and another assistant turn begins.
    BeginsTurn,
    /// It is an assistant turn without an end: the reply continues its text.
    Continues,
    /// It is an assistant turn, after which no other turn begins: the reply follows the end of the turn.
    NoTurn,
    /// Its text is missing.
    Omitted,
    /// The template rejects the conversation.
    Refused,
}

impl Renderer {
    /// Checks how the template continues conversations.
    #[must_use]
    pub fn check_continuation(&self) -> ContinuationCheck {
        let tool_result = tool_result("It rains.");
        ContinuationCheck {
            user: self.fit(&message("assistant", PLACEHOLDER), message("user", "W")),
            tool: self.fit(&turn_with_call(), tool_result),
        }
    }

    fn fit(&self, turn: &Value, next: Value) -> Fit {
        let setting = Setting { tools: None, generation_prompt: true, extra: &[] };
        let mut conversation = vec![message("user", "U"), message("assistant", "A"), message("user", "V")];
        let before = self.render_text(&conversation, setting);
        conversation.push(placeholder_turn_with_calls(turn).unwrap_or_else(|| turn.clone()));
        conversation.push(next.clone());
        let (Ok(before), Ok(whole)) = (before, self.render_text(&conversation, setting)) else { return Fit::Refused };
        let Ok(after) = self.text_after_turn(turn, &[next], setting) else { return Fit::NoBoundary };
        if !whole.ends_with(&after) {
            return Fit::NoBoundary;
        }
        if whole.starts_with(&before) { Fit::Exact } else { Fit::Rewrites }
    }

    /// Checks in which conversations the template shows tools.
    #[must_use]
    pub fn check_tools(&self) -> ToolDisplay {
        let city = Value::object([("type", "string".into())]);
        let parameters = Value::object([
            ("type", "object".into()),
            ("properties", Value::object([("city", city)])),
            ("required", vec!["city".into()].into()),
        ]);
        let tools = [tool(TOOL_NAME, "A tool.", parameters)];
        let setting = Setting { tools: Some(&tools), generation_prompt: true, extra: &[] };
        // None: the template rejects the conversation
        let shows = |messages: &[Value]| Some(self.render_text(messages, setting).ok()?.contains(TOOL_NAME));
        let user = message("user", "U");
        match (shows(&[message("system", "S"), user.clone()]), shows(&[user])) {
            (None, None) => ToolDisplay::Refused,
            (Some(true), Some(false)) => ToolDisplay::WithSystemMessage,
            (Some(false), Some(true)) => ToolDisplay::WithoutSystemMessage,
            (Some(true), _) | (_, Some(true)) => ToolDisplay::Always,
            _ => ToolDisplay::Never,
        }
    }

    /// Checks what the template does with a final assistant message.
    #[must_use]
    pub fn check_final_assistant_message(&self) -> FinalAssistantMessage {
        let messages = [message("user", "U"), message("assistant", PLACEHOLDER)];
        let render =
            |generation_prompt| self.render_text(&messages, Setting { tools: None, generation_prompt, extra: &[] });
        let (Ok(prompt), Ok(conversation)) = (render(true), render(false)) else {
            return FinalAssistantMessage::Refused;
        };
        match prompt.split_once(PLACEHOLDER) {
            None => FinalAssistantMessage::Omitted,
            Some((_, after)) if after.trim().is_empty() => FinalAssistantMessage::Continues,
            Some(_) if prompt == conversation => FinalAssistantMessage::NoTurn,
            Some(_) => FinalAssistantMessage::BeginsTurn,
        }
    }
}

/// An assistant turn that calls a tool.
pub(super) fn turn_with_call() -> Value {
    let arguments = Value::object([("city", "Oslo".into())]);
    let function = Value::object([("name", "weather".into()), ("arguments", arguments)]);
    let call = Value::object([("id", "call00001".into()), ("type", "function".into()), ("function", function)]);
    Value::object([("role", "assistant".into()), ("content", "".into()), ("tool_calls", vec![call].into())])
}

/// The result of the call of [`turn_with_call`].
pub(super) fn tool_result(content: &str) -> Value {
    let id = ("tool_call_id", "call00001".into());
    Value::object([("role", "tool".into()), id, ("content", content.into())])
}

/// A tool with these parameters.
pub(super) fn tool(name: &str, description: &str, parameters: Value) -> Value {
    let function =
        Value::object([("name", name.into()), ("description", description.into()), ("parameters", parameters)]);
    Value::object([("type", "function".into()), ("function", function)])
}
