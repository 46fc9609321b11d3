//! Checks by rendering what a template does with tools and with a final assistant message.

use super::continuation_check::object;
use super::{PLACEHOLDER, Renderer, Setting, message};
use crate::json::Value;

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
    /// Checks in which conversations the template shows tools.
    #[must_use]
    pub fn check_tools(&self) -> ToolDisplay {
        let function = Value::Object(vec![
            ("name".into(), TOOL_NAME.into()),
            ("description".into(), "A tool.".into()),
            (
                "parameters".into(),
                Value::Object(vec![
                    ("type".into(), "object".into()),
                    ("properties".into(), Value::Object(vec![("city".into(), object(&[("type", "string")]))])),
                    ("required".into(), Value::Array(vec!["city".into()])),
                ]),
            ),
        ]);
        let tools = [Value::Object(vec![("type".into(), "function".into()), ("function".into(), function)])];
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
