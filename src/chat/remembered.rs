//! What a turn remembers of a chat that the engine's own endpoint has rendered, so that the conversation's next call finds its tokens.

use std::sync::Arc;

use super::Conversation;
use super::departure::AssistantText;
use super::history::History;
use super::model::ChatModel;
use super::prompt::is_opened;
use crate::session::{Chat, Session};
use crate::tokenizer::Renderer;

/// A conversation as its turn will record it, without the facts that only its prompt has.
#[derive(Debug, Clone)]
pub struct Remembered {
    chat: Chat,
    renderer: Arc<Renderer>,
}

impl Remembered {
    /// Of a request that is not served from tokens, in its session, if that has turns.
    #[must_use]
    pub fn of(request: &Conversation, model: &ChatModel, session: Option<&Session>) -> Self {
        let history = History::of(request);
        let outline = history.outline();
        // the engine makes one text of all messages
        let texts = AssistantText::of(&request.messages, session, &model.renderer);
        let departure =
            session.and_then(|session| outline.departure(&request.messages, texts, session, &model.renderer));
        let chat = Chat {
            conversation: history.conversation(),
            tools: request.reads_calls(),
            reading: model.parser.reading(request, false),
            retokenised: texts.sampled.is_some(),
            foreign_text: texts.foreign,
            inserted_end_of_turn: 0,
            fingerprint: Some(outline.fingerprint),
            departure,
        };
        Self { chat, renderer: Arc::clone(&model.renderer) }
    }

    /// What the turn behind this prompt remembers.
    #[must_use]
    pub fn behind(mut self, prompt: &[u32]) -> Chat {
        // a prompt that cannot be read has opened nothing that could be
        self.chat.reading.opened = is_opened(&self.renderer, prompt).unwrap_or_default();
        self.chat
    }
}
