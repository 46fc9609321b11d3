// SPDX-License-Identifier: Apache-2.0
//! A conversation, decoded from the request of an API, and the errors of such a request.

use super::media::{InlineImage, Media};
use super::message::Message;
use super::tool_choice::ToolChoice;
use crate::budget::Stopped;
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

    /// Whether it has parts that are not text.
    #[must_use]
    pub fn has_media(&self) -> bool {
        self.messages.iter().any(|message| !message.media.is_empty())
    }

    /// `type` of the first part that is not text.
    #[must_use]
    pub fn first_media_kind(&self) -> Option<&str> {
        self.messages.iter().find_map(|message| message.media.first()).map(|part| part.media.kind())
    }

    /// The first part that only the engine can render.
    #[must_use]
    pub fn first_of_engine(&self) -> Option<&Value> {
        let media = self.messages.iter().flat_map(|message| &message.media);
        media.filter_map(|part| if let Media::Other(part) = &part.media { Some(part) } else { None }).next()
    }

    /// The pictures whose bytes are in the request, in the order of the prompt.
    pub fn images(&self) -> impl Iterator<Item = &InlineImage> {
        self.messages.iter().flat_map(Message::images)
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

/// Why tokentap does not serve a request from tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request is invalid. The reply is a 400.
    #[error("{0}")]
    Invalid(String),
    /// The conversation has reached a limit. The reply is a 403, after which clients do not retry.
    #[error("{message}")]
    LimitReached {
        /// The name of the limit, a label of metrics.
        limit: &'static str,
        /// The message for the client: the count, the limit and its flag.
        message: String,
    },
    /// The prompt leaves no room for a reply in the context of the model. The reply is a 400.
    #[error("The input ({tokens} tokens) is longer than the model's context length ({context} tokens).")]
    TooLong {
        /// The number of its tokens. It has more if it is more than twice as long as the context, because only so many are encoded.
        tokens: usize,
        /// The context of the model, in tokens.
        context: u64,
    },
    /// The work on it was stopped. If the memory budget was exhausted, the reply is a 503.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// Only the engine's own endpoint can serve it.
    #[error("{0}")]
    Unsupported(String),
}

impl RequestError {
    /// An invalid request. `message` is sent to the client.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }
}
