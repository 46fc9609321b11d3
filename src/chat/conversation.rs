//! A conversation, decoded from the request of an API.

use super::media::MediaPart;
use super::message::Message;
use super::tool_choice::ToolChoice;
use crate::json::Value;

/// A conversation, and the options by which its prompt is rendered and its reply is parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// The messages, at least one.
    pub messages: Vec<Message>,
    /// The tools in the format of chat templates: objects with `type` and `function`. `None` without tools.
    pub tools: Option<Vec<Value>>,
    /// Which tools the model may or must call.
    pub tool_choice: ToolChoice,
    /// Additional variables of the template, such as `enable_thinking`.
    pub template_variables: Vec<(String, Value)>,
    /// `continue_final_message`: if the last message is an assistant message, the reply continues it.
    pub continues_last: bool,
    /// The token ids of the prompt, if the client has rendered the conversation itself.
    pub prompt_ids: Option<Vec<u32>>,
    /// Reasoning becomes a separate member of the reply.
    pub separates_reasoning: bool,
    /// The API always has a place for reasoning. So reasoning is separated even if the engine has no parser for it.
    pub has_reasoning_items: bool,
    /// Special tokens are left out of the text of the reply.
    pub skips_special_tokens: bool,
    /// The stop string stays in the text of the reply.
    pub keeps_stop: bool,
}

impl Conversation {
    /// Whether tool calls are parsed from the text of the reply.
    #[must_use]
    pub fn parses_tool_calls(&self) -> bool {
        self.tools.is_some() && self.tool_choice != ToolChoice::None
    }

    /// The JSON schema of a reply that must be a list of tool calls; `None` if no call is forced. With `parallel`, the list may have several
    /// calls.
    #[must_use]
    pub fn forced_call_schema(&self, parallel: bool) -> Option<Value> {
        self.tool_choice.schema(self.tools.as_deref().unwrap_or_default(), parallel)
    }

    /// The first part that only the engine can render.
    #[must_use]
    pub fn first_media(&self) -> Option<&MediaPart> {
        self.messages.iter().find_map(|message| message.media.first())
    }

    /// Whether the client disables thinking.
    #[must_use]
    pub fn disables_thinking(&self) -> bool {
        let off = |(name, value): &(String, Value)| {
            matches!(name.as_str(), "enable_thinking" | "thinking") && *value == Value::Bool(false)
        };
        self.template_variables.iter().any(off)
    }
}
