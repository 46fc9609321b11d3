//! What a client asks to be continued.

use super::message::Message;
use super::tool_choice::ToolChoice;
use crate::json::Value;

/// A conversation, and how its prompt is made and its reply is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// The messages, at least one.
    pub messages: Vec<Message>,
    /// The tools as templates take them: objects with `type` and `function`. `None` without tools.
    pub tools: Option<Vec<Value>>,
    /// Which of them may or must be called.
    pub tool_choice: ToolChoice,
    /// Variables of the template beside those that every conversation has.
    pub template_variables: Vec<(String, Value)>,
    /// The last message is an assistant's, and the reply continues it.
    pub continues_last: bool,
    /// The prompt, where the client has rendered the conversation itself.
    pub prompt_ids: Option<Vec<u32>>,
    /// Reasoning is a separate member of the reply.
    pub separates_reasoning: bool,
    /// Special tokens are not in the text of the reply.
    pub skips_special_tokens: bool,
    /// The stop string stays in the text of the reply.
    pub keeps_stop: bool,
}

impl Conversation {
    /// Whether the text of the reply is searched for tool calls.
    #[must_use]
    pub fn reads_calls(&self) -> bool {
        self.tools.is_some() && self.tool_choice != ToolChoice::None
    }

    /// Whether the client has switched thinking off.
    #[must_use]
    pub fn is_thoughtless(&self) -> bool {
        let off = |(name, value): &(String, Value)| {
            matches!(name.as_str(), "enable_thinking" | "thinking") && *value == Value::Bool(false)
        };
        self.template_variables.iter().any(off)
    }
}
