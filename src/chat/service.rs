// SPDX-License-Identifier: Apache-2.0
//! Prepares prompts for every API that has conversations: selects the model, checks limits, counts metrics and samples drift.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use super::drift::{Drift, DriftSampler};
use super::forwarded::ForwardedChat;
use super::media::engine_member;
use super::message::Message;
use super::model::{ChatModel, Chats};
use super::prompt::{PreparedPrompt, PromptBuilder, PromptLimits};
use super::{Conversation, RequestError, limits};
use crate::budget::Work;
use crate::config::Config;
use crate::engine::expansion;
use crate::metrics::Metrics;
use crate::session::Session;
use crate::tokenizer::TemplateFeatures;

/// Replies of a session that may be parsed on a runtime thread. After a restart no reply of a session is parsed yet, and more of them would
/// block the thread for too long.
const REPLIES_PARSED_AT_ONCE: usize = 8;

/// The session of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestSession<'a> {
    /// Whether the client named the session.
    pub is_named: bool,
    /// The named session, if it exists.
    pub existing: Option<&'a Arc<Session>>,
    /// Parts that only the engine can render are left out of the prompt, because the engine's own chat endpoint renders the conversation.
    /// The prompt then shows only how the reply begins. Without this, a conversation with such parts is not supported.
    pub omits_media: bool,
}

/// The shared state of all APIs that have conversations.
#[derive(Debug)]
pub struct ChatService {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    chats: watch::Receiver<Arc<Chats>>,
    drift: DriftSampler,
    /// Whether the warning about tokenized assistant text has been logged.
    has_warned: AtomicBool,
}

impl ChatService {
    /// A service that renders conversations with the model of `chats`.
    #[must_use]
    pub fn new(config: Arc<Config>, metrics: Arc<Metrics>, chats: watch::Receiver<Arc<Chats>>) -> Self {
        Self { config, metrics, chats, drift: DriftSampler::default(), has_warned: AtomicBool::new(false) }
    }

    /// Why conversations are not rendered here, so that the engine's own endpoint serves them. `None` if they are.
    #[must_use]
    pub fn not_served(&self) -> Option<String> {
        match &**self.chats.borrow() {
            Chats::Rendered(_) => None,
            Chats::Forwarded(reason) => Some(reason.clone()),
        }
    }

    /// Whether turns of named sessions are recorded.
    #[must_use]
    pub fn records_sessions(&self) -> bool {
        self.config.sessions.record
    }

    /// `--strict`: a request with a part that cannot be served is an error.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.config.entropy.strict.parts
    }

    /// Counts the parts of a request that were left out, such as blocks of an unknown type.
    pub fn report_skipped(&self, kinds: &[String]) {
        for kind in kinds {
            tracing::debug!(kind, "left a part out of the prompt");
            self.metrics.chat.skipped_parts.inc();
        }
    }

    /// What the template does with messages.
    #[must_use]
    pub fn template_features(&self) -> TemplateFeatures {
        match &**self.chats.borrow() {
            Chats::Rendered(model) => model.renderer.features(),
            Chats::Forwarded(_) => TemplateFeatures::default(),
        }
    }

    /// Whether [`Self::prompt`] takes too long for a runtime thread.
    #[must_use]
    pub fn is_long(&self, session: Option<&Session>) -> bool {
        session.is_some_and(|session| session.unread_replies() > REPLIES_PARSED_AT_ONCE)
    }

    /// Returns the model that renders a conversation, after checking the limits of the conversation.
    ///
    /// # Errors
    /// [`RequestError::Unsupported`] if conversations are not rendered here, [`RequestError::LimitReached`].
    pub fn model(&self, conversation: &Conversation) -> Result<Arc<ChatModel>, RequestError> {
        let model = match &**self.chats.borrow() {
            Chats::Rendered(model) => Arc::clone(model),
            Chats::Forwarded(reason) => return Err(RequestError::Unsupported(reason.clone())),
        };
        limits::check(&conversation.messages, &self.config.chat.chat_limits)?;
        Ok(model)
    }

    /// Builds the prompt of a conversation. Tokens that the session holds are taken unchanged.
    ///
    /// # Errors
    /// [`RequestError`] if the template or the tokenizer refuses the conversation, or if it has media that only the engine can render.
    pub fn prompt(
        &self,
        model: &Arc<ChatModel>,
        conversation: &Arc<Conversation>,
        session: RequestSession<'_>,
        work: &Work,
    ) -> Result<PreparedPrompt, RequestError> {
        let limits = PromptLimits { work, context: model.context };
        if session.omits_media {
            return PromptBuilder::without_session(model).prepare(conversation, limits);
        }
        check_media(conversation, model, self.config.limits.max_image_bytes)?;
        let prompt = self.builder(model, session).prepare(conversation, limits)?;
        check_images(&prompt, conversation, model)?;
        self.metrics.chat.prompts.with_label_values(&[prompt.how()]).inc();
        let chat = &prompt.chat;
        let is_lost = chat.retokenised || chat.foreign_text && !session.is_named;
        if is_lost && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a prompt holds assistant text that was tokenized again, so its sampled tokens are lost; name a session (/sessions/ID/v1, or X-Session-Id) to keep them"
            );
        }
        // the tokens of a session with pictures are not those that were sent
        if let (Some(turn), Some(session)) = (prompt.continues, session.existing)
            && prompt.images.is_empty()
            && self.drift.is_due(self.config.chat.drift_sample)
        {
            self.measure_drift(model, conversation, session, turn, &prompt.ids, work.detached());
        }
        Ok(prompt)
    }

    /// The number of tokens of the prompt that [`Self::prompt`] would build.
    ///
    /// # Errors
    /// Like [`Self::prompt`].
    pub fn count_tokens(
        &self,
        model: &ChatModel,
        conversation: &Conversation,
        session: RequestSession<'_>,
        work: &Work,
    ) -> Result<usize, RequestError> {
        if let Some(kind) = conversation.first_media_kind() {
            return Err(RequestError::Unsupported(format!(
                "only the engine knows the tokens of a part of type {kind:?}"
            )));
        }
        let limits = PromptLimits { work, context: None };
        Ok(self.builder(model, session).prepare(conversation, limits)?.ids.len())
    }

    fn builder<'a>(&self, model: &'a ChatModel, session: RequestSession<'a>) -> PromptBuilder<'a> {
        PromptBuilder {
            renderer: &model.renderer,
            session: session.existing.map(|session| &**session),
            earlier_thinking: self.config.chat.earlier_thinking,
            parser: model.parser.clone(),
            shows_images: true,
        }
    }

    /// Describes a conversation that the engine's own endpoint renders. `None` without a model, or if the work was stopped.
    #[must_use]
    pub fn forwarded_chat(
        &self,
        conversation: &Arc<Conversation>,
        session: RequestSession<'_>,
        work: &Work,
    ) -> Option<ForwardedChat> {
        let session = session.existing.map(|session| &**session);
        match &**self.chats.borrow() {
            Chats::Rendered(model) => ForwardedChat::try_new(conversation, model, session, work).ok(),
            Chats::Forwarded(_) => None,
        }
    }

    /// Compares the ids that were `sent` after a turn with the template's rendering of the whole conversation, on a blocking thread. No
    /// request waits for it.
    fn measure_drift(
        &self,
        model: &Arc<ChatModel>,
        conversation: &Arc<Conversation>,
        session: &Arc<Session>,
        turn: u32,
        sent: &Arc<[u32]>,
        work: Work,
    ) {
        let Ok(permit) = Arc::clone(&self.drift.permit).try_acquire_owned() else { return };
        let (metrics, model) = (Arc::clone(&self.metrics), Arc::clone(model));
        let (conversation, session, sent) = (Arc::clone(conversation), Arc::clone(session), Arc::clone(sent));
        tokio::task::spawn_blocking(move || {
            let limits = PromptLimits { work: &work, context: model.context };
            let rendered = PromptBuilder::without_session(&model).render_whole(&conversation, limits);
            let Ok(rendered) = rendered else { return };
            let drift = Drift::between(&sent, &session.mask(turn), &rendered, model.renderer.tokenizer().special());
            metrics.chat.drift.with_label_values(&[drift.name()]).inc();
            tracing::debug!(session = %session.id, turn, drift = drift.name(), "compared a prompt with its rendering");
            drop(permit);
        });
    }
}

/// Checks that a conversation can be rendered here, and that no picture has more bytes than `most`.
fn check_media(conversation: &Conversation, model: &ChatModel, most: u64) -> Result<(), RequestError> {
    let mut images = conversation.images().enumerate();
    let too_large = images.find(|(_, image)| image.image.size > most);
    if let Some((at, image)) = too_large {
        return Err(RequestError::Invalid(image_too_large(&format!("picture {at}"), image.image.size, most)));
    }
    if let Some(part) = conversation.first_of_engine() {
        let kind = part.get_str("type").unwrap_or_default();
        return Err(RequestError::Unsupported(match kind {
            "image_url" => match engine_member(part) {
                Some(name) => format!("the member {name:?} of a picture"),
                None => "a picture that is not in the request as base64".to_owned(),
            },
            kind => format!("a part of type {kind:?}"),
        }));
    }
    if conversation.images().next().is_some() {
        model.image_placeholder().map_err(RequestError::Unsupported)?;
    }
    Ok(())
}

/// Checks that the engine will find each picture of a prompt in its place.
fn check_images(prompt: &PreparedPrompt, conversation: &Conversation, model: &ChatModel) -> Result<(), RequestError> {
    let images = prompt.images.len();
    if images == 0 {
        return Ok(());
    }
    let placeholder = model.image_placeholder().map_err(RequestError::Unsupported)?;
    let placeholders = prompt.ids.iter().filter(|id| **id == placeholder.id).count();
    if placeholders != images || !expansion::are_framed(&prompt.ids, placeholder) {
        // the template shows no pictures in some messages, or the model has sampled the token
        let reason =
            format!("the prompt has {placeholders} placeholders for {images} pictures, or one in another place");
        return Err(RequestError::Unsupported(reason));
    }
    let spells = model.renderer.spells_placeholder(&prompt.ids, placeholder.id);
    if !spells.map_err(|error| RequestError::Unsupported(error.to_string()))? {
        return Ok(());
    }
    let name = model.renderer.tokenizer().decode(&[placeholder.id], false).unwrap_or_default();
    let is_of_client = |message: &Message| !message.is_assistant() && message.text().contains(&name);
    match conversation.messages.iter().any(is_of_client) {
        true => Err(RequestError::Invalid(image_text(model, placeholder.id))),
        // a 400 for what the model has sampled would end the conversation
        false => Err(RequestError::Unsupported(format!("the prompt has the text {name:?}"))),
    }
}

/// The refusal of a picture that has more bytes than `most`.
pub(crate) fn image_too_large(place: &str, size: u64, most: u64) -> String {
    format!("{place}: the picture has {size} bytes, more than the {most} of --max-image-bytes")
}

/// The refusal of a prompt whose text has the name of a placeholder.
pub(crate) fn image_text(model: &ChatModel, placeholder: u32) -> String {
    let name = model.renderer.tokenizer().decode(&[placeholder], false).unwrap_or_default();
    format!(
        "the prompt has the text {name:?}, which stands for a picture in the prompts of this model; remove it from the messages"
    )
}
