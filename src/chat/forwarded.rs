//! The chat that a turn records if the engine's own endpoint serves it, so that the next call of the conversation finds the turn's tokens.

use std::sync::Arc;

use super::Conversation;
use super::history::History;
use super::history_change::AssistantMessages;
use super::model::ChatModel;
use super::prompt::is_opened;
use crate::session::{Chat, Session};
use crate::tokenizer::Renderer;

/// The chat of a request that the engine's own endpoint serves. The token ids of its prompt are not known yet.
#[derive(Debug, Clone)]
pub struct ForwardedChat {
    chat: Chat,
    renderer: Arc<Renderer>,
}

impl ForwardedChat {
    /// Describes the chat of a request. `session` is its session, if it exists.
    #[must_use]
    pub fn of(request: &Conversation, model: &ChatModel, session: Option<&Session>) -> Self {
        let history = History::of(request);
        let detector = history.change_detector();
        // the engine renders all messages as text
        let replies = AssistantMessages::of(&request.messages, 0, session, &model.renderer);
        let latest = replies.latest_turn();
        let history_change =
            session.and_then(|session| detector.detect(&request.messages, latest, session, &model.renderer));
        let chat = Chat {
            conversation: history.conversation(),
            tools: request.parses_tool_calls(),
            reading: model.parser.options(request, false),
            retokenised: latest.is_some(),
            foreign_text: replies.has_foreign(),
            inserted_end_of_turn: 0,
            fingerprint: Some(detector.fingerprint),
            stored: None,
            history_change,
        };
        Self { chat, renderer: Arc::clone(&model.renderer) }
    }

    /// The chat that the turn records, now that the ids of its prompt are known.
    #[must_use]
    pub fn after_prompt(mut self, prompt: &[u32]) -> Chat {
        // a prompt that cannot be decoded counts as one without an open thought
        self.chat.reading.opened = is_opened(&self.renderer, prompt).unwrap_or_default();
        self.chat
    }
}
