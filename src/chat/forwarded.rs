// SPDX-License-Identifier: Apache-2.0
//! The chat that a turn records if the engine's own endpoint serves it, so that the next call of the conversation finds the turn's tokens.

use std::sync::Arc;

use super::Conversation;
use super::history::History;
use super::history_change::AssistantMessages;
use super::model::ChatModel;
use super::prompt::is_opened;
use super::rendering::Rendering;
use crate::budget::{Stopped, Work};
use crate::session::{Chat, ReplyChanges, Session};
use crate::tokenizer::Renderer;

/// The chat of a request that the engine's own endpoint serves. The token ids of its prompt are not known yet.
#[derive(Debug, Clone)]
pub struct ForwardedChat {
    chat: Chat,
    renderer: Arc<Renderer>,
    /// The conversation, if it has media.
    conversation: Option<Arc<Conversation>>,
}

impl ForwardedChat {
    /// Describes the chat of a request. `session` is its session, if it exists.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn try_new(
        request: &Arc<Conversation>,
        model: &ChatModel,
        session: Option<&Session>,
        work: &Work,
    ) -> Result<Self, Stopped> {
        let _memory = work.take(Rendering::variables(request).bytes())?;
        let history = History::try_new(request, &model.renderer, work)?;
        let detector = history.change_detector();
        // the engine renders all messages as text
        let replies = AssistantMessages::find(request, 0, session, &model.renderer);
        let history_changes = session
            .map(|session| detector.detect(&request.messages, &replies, session, &model.renderer))
            .unwrap_or_default();
        let chat = Chat {
            conversation: history.conversation(),
            tools: request.parses_tool_calls(),
            reading: model.parser.options(request, false),
            retokenised: replies.last_sampled().is_some(),
            foreign_text: replies.has_foreign(),
            inserted_end_of_turn: 0,
            reply_changes: ReplyChanges::default(),
            fingerprint: detector.fingerprint,
            sampling_sources: None,
            stored: None,
            session_number: session.map(|session| session.number),
            history_changes,
        };
        let conversation = request.has_media().then(|| Arc::clone(request));
        Ok(Self { chat, renderer: Arc::clone(&model.renderer), conversation })
    }

    /// Takes the conversation, which may be large. `None` if it has no media.
    #[must_use]
    pub fn take_conversation(&mut self) -> Option<Arc<Conversation>> {
        self.conversation.take()
    }

    /// Takes what does not depend on the prompt from the chat of the same conversation without its media.
    pub fn complete(&mut self, without_media: Chat) {
        self.chat.sampling_sources = without_media.sampling_sources;
        self.chat.stored = without_media.stored;
    }

    /// The chat that the turn records, now that the ids of its prompt are known.
    #[must_use]
    pub fn after_prompt(mut self, prompt: &[u32]) -> Chat {
        // a prompt that cannot be decoded counts as one without an open thought
        self.chat.reading.opened = is_opened(&self.renderer, prompt).unwrap_or_default();
        self.chat
    }
}
