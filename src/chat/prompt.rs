// SPDX-License-Identifier: Apache-2.0
//! Builds the token ids of a prompt from a conversation.
//!
//! If the conversation continues a turn of its session, the tokens of the session up to the end of that turn are reused unchanged, and only
//! the messages after it are rendered and encoded. Otherwise the prompt begins a branch: the client has changed the conversation. Replies
//! of the session that it repeats after the change keep their sampled tokens, and all other messages are rendered from their text.

mod tokens;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use tokens::PromptTokens;

use super::Conversation;
use super::RequestError;
use super::history::{ContinuedTurn, History, has_same_thoughts};
use super::history_change::{AssistantMessage, AssistantMessages};
use super::message::Message;
use super::model::ChatModel;
use super::rendering::Rendering;
use super::reply_reader::{ParserSettings, RecordedReply};
use super::returned_reply::ReplyMatcher;
use crate::budget::Work;
use crate::config::EarlierThinking;
use crate::engine::expansion;
use crate::images::Image;
use crate::session::{Chat, ReplyChanges, Session, Turn};
use crate::tokenizer::{Prompt, Renderer, Setting, TokenizerError};

/// A prompt, and the chat that its turn records.
#[derive(Debug)]
pub struct PreparedPrompt {
    /// The token ids of the prompt, with one placeholder for each picture.
    pub ids: Arc<[u32]>,
    /// The pictures, in the order of their placeholders.
    pub images: Vec<Arc<Image>>,
    /// The least number of tokens that the engine makes of it: of a picture that is not in the session only the placeholder counts.
    pub least_tokens: usize,
    /// The chat that the turn records.
    pub chat: Chat,
    /// The turn that the prompt continues.
    pub continues: Option<u32>,
    /// The number of leading ids that were taken unchanged from the session.
    pub reused: usize,
    /// The number of other turns of the session whose sampled tokens the prompt contains.
    pub spliced: usize,
    /// The length in bytes of the text that was rendered for the other tokens.
    pub rendered: usize,
}

impl PreparedPrompt {
    /// How the prompt was built: the label `how` of metrics.
    #[must_use]
    pub fn how(&self) -> &'static str {
        match &self.chat {
            chat if chat.retokenised => "retokenised",
            chat if chat.foreign_text => "foreign",
            _ if self.spliced > 0 => "spliced",
            _ if self.reused > 0 => "extended",
            _ => "whole",
        }
    }
}

/// Builds prompts.
#[derive(Debug)]
pub struct PromptBuilder<'a> {
    /// The renderer of the model.
    pub renderer: &'a Renderer,
    /// The session of the request. `None` if it does not exist or the request names no session.
    pub session: Option<&'a Session>,
    /// What to do if the template drops the thoughts of earlier turns.
    pub earlier_thinking: EarlierThinking,
    /// How the reply will be parsed.
    pub parser: ParserSettings,
    /// The prompt has a placeholder for each picture. Otherwise pictures are left out.
    pub shows_images: bool,
}

/// What building a prompt may take.
#[derive(Debug, Clone, Copy)]
pub struct PromptLimits<'a> {
    /// Counts its memory, and says whether the prompt is still wanted.
    pub work: &'a Work,
    /// The context of the model, in tokens, if the engine refuses longer prompts. A prompt of up to twice its length is built, so that the error
    /// has its length.
    pub context: Option<u64>,
}

/// A turn whose reply the conversation repeats.
struct RepeatedTurn {
    /// The index of the message that repeats the reply.
    at: usize,
    turn: Arc<Turn>,
    changes: ReplyChanges,
}

impl<'a> PromptBuilder<'a> {
    /// A builder without a session.
    #[must_use]
    pub fn without_session(model: &'a ChatModel) -> Self {
        let (renderer, parser) = (&*model.renderer, model.parser.clone());
        Self { renderer, session: None, earlier_thinking: EarlierThinking::Keep, parser, shows_images: false }
    }

    /// Renders the whole conversation and returns its token ids.
    ///
    /// # Errors
    /// [`RequestError`] if the template or the tokenizer refuses the conversation, or if a limit is reached.
    pub fn render_whole(&self, request: &Conversation, limits: PromptLimits<'_>) -> Result<Vec<u32>, RequestError> {
        Ok(self.tokens(request, None, &[], limits)?.unwrap_or_default().prompt.ids)
    }

    /// Builds the prompt of a request.
    ///
    /// # Errors
    /// [`RequestError`] if the template or the tokenizer refuses the conversation, or if a limit is reached.
    pub fn prepare(&self, request: &Conversation, limits: PromptLimits<'_>) -> Result<PreparedPrompt, RequestError> {
        let variables = self.reserve(Rendering::variables(request), 0, limits)?;
        let history = History::try_new(request, self.renderer, limits.work)?;
        let conversation = history.conversation();
        let client_ids = request.prompt_ids.clone();
        let session = self.session.filter(|_| client_ids.is_none());
        let continued = session.and_then(|session| history.find(session, self.renderer));
        let mut continued = continued.filter(|continued| {
            !self.must_branch(request, continued)
                && session.is_some_and(|session| has_same_images(session, request, continued))
        });
        let mut replies = AssistantMessages::default();
        let mut spliced = Vec::new();
        let tokens = match client_ids {
            Some(ids) => {
                let ids = self.unexpanded(ids, request);
                PromptTokens { prompt: self.client_prompt(ids)?, ..PromptTokens::default() }
            }
            None => {
                let start = continued.as_ref().map_or(0, |continued| continued.at + 1);
                replies = AssistantMessages::find(request, start, session, self.renderer);
                spliced = self.recorded_turns(request, &replies);
                drop(variables);
                let mut tokens = self.tokens(request, continued.as_ref(), &spliced, limits);
                let has_reached_limit = matches!(tokens, Err(RequestError::Stopped(_) | RequestError::TooLong { .. }));
                if !spliced.is_empty() && !has_reached_limit && !matches!(tokens, Ok(Some(_))) {
                    // a template may refuse the messages before a turn alone
                    spliced.clear();
                    tokens = self.tokens(request, continued.as_ref(), &[], limits);
                }
                match tokens? {
                    Some(tokens) => tokens,
                    None => {
                        // the template does not separate turns: the conversation is rendered as text
                        continued = None;
                        replies = AssistantMessages::find(request, 0, session, self.renderer);
                        self.tokens(request, None, &[], limits)?.unwrap_or_default()
                    }
                }
            }
        };
        let least_tokens = tokens.len();
        let PromptTokens { prompt, reused, expansion: _, inserted_end_of_turn } = tokens;
        let ids: Arc<[u32]> = reused.iter().chain(&prompt.ids).copied().collect();
        let reused = reused.len();
        let extends_only = reused > 0 && replies.iter().next().is_none();
        let known =
            continued.as_ref().filter(|_| extends_only).and_then(|continued| history.fingerprint_after(continued));
        let (fingerprint, history_changes) = match known {
            Some(fingerprint) => (fingerprint, Vec::new()),
            None => {
                let detector = history.change_detector();
                let changes = session
                    .filter(|_| !extends_only)
                    .map(|session| detector.detect(&request.messages, &replies, session, self.renderer))
                    .unwrap_or_default();
                (detector.fingerprint, changes)
            }
        };
        let mut reading = self.parser.options(request, prompt.opened);
        if let Some(chat) = continued.as_ref().and_then(|continued| continued.turn.about.chat.as_ref())
            && chat.reading.parameters == reading.parameters
        {
            // the turns of a conversation share the text
            reading.parameters.clone_from(&chat.reading.parameters);
        }
        let continues = continued.as_ref().map(|continued| continued.turn.id);
        let changes = continued.iter().map(|continued| continued.changes);
        let reply_changes = changes
            .chain(spliced.iter().map(|repeated| repeated.changes))
            .fold(ReplyChanges::default(), std::ops::BitOr::bitor);
        let tools = if reused > 0 {
            continued.is_some_and(|continued| continued.turn.about.chat.as_ref().is_some_and(|chat| chat.tools))
        } else {
            request.parses_tool_calls()
        };
        let is_spliced = |at: usize| spliced.binary_search_by_key(&at, |repeated: &RepeatedTurn| repeated.at).is_ok();
        let chat = Chat {
            conversation,
            tools,
            reading,
            retokenised: replies.iter().any(|message| message.turn.is_some() && !is_spliced(message.at)),
            foreign_text: replies.has_foreign(),
            inserted_end_of_turn,
            reply_changes,
            fingerprint,
            sampling_sources: None,
            stored: None,
            session_number: session.map(|session| session.number),
            history_changes,
        };
        let images = request.images().filter(|_| self.shows_images).map(|image| Arc::clone(&image.image)).collect();
        Ok(PreparedPrompt {
            ids,
            images,
            least_tokens,
            chat,
            continues: continues.filter(|_| reused > 0),
            reused,
            spliced: spliced.len(),
            rendered: prompt.rendered,
        })
    }

    /// The turns of `replies` whose tokens replace their text in the prompt: the client repeats them, and they began after the generation
    /// prompt that this prompt has before them. Tokens are used as often as they were sampled, so that the prompt is not longer than the session
    /// and the request.
    fn recorded_turns(&self, request: &Conversation, replies: &AssistantMessages) -> Vec<RepeatedTurn> {
        let Some(session) = self.session.filter(|_| self.earlier_thinking == EarlierThinking::Keep) else {
            return Vec::new();
        };
        let extra = self.template_variables(request);
        let setting = Setting { tools: None, generation_prompt: true, extra: &extra };
        let matcher = ReplyMatcher::new(request, self.renderer);
        let mut used: HashMap<u32, usize> = HashMap::new();
        let recorded = |message: &AssistantMessage| {
            let turn = session.turn(message.turn.filter(|_| message.is_certain)?)?;
            let is_last = message.at + 1 == request.messages.len() && request.continues_last;
            let before = &request.messages[message.at.checked_sub(1)?];
            let fits = !is_last
                && !turn.response.is_empty()
                && self.renderer.ends_with_generation_prompt(&turn.prompt, before.role == "tool", setting)
                && used.get(&turn.id).copied().unwrap_or(0) < message.turns;
            if !fits {
                return None;
            }
            let reply = RecordedReply::parse(self.renderer, &turn)?;
            let returned = &request.messages[message.at];
            let changes = matcher.changes(returned, &reply).filter(|_| has_same_thoughts(returned, &reply.message))?;
            *used.entry(turn.id).or_default() += 1;
            Some(RepeatedTurn { at: message.at, turn, changes })
        };
        replies.iter().filter_map(recorded).collect()
    }

    /// Whether `--earlier-thinking branch` forbids reusing the tokens of the turn: they contain a thought that the template would drop.
    fn must_branch(&self, request: &Conversation, continued: &ContinuedTurn) -> bool {
        let features = self.renderer.features();
        let has_tools = request.parses_tool_calls();
        self.earlier_thinking == EarlierThinking::Branch
            && continued.has_thought
            && if has_tools { features.drops_thinking_with_tools } else { features.drops_thinking }
            && request.messages[continued.at + 1..].iter().any(|message| message.role == "user")
    }

    /// The ids of a prompt with one placeholder for each picture, if the client took them from an earlier prompt.
    fn unexpanded(&self, ids: Vec<u32>, request: &Conversation) -> Vec<u32> {
        let images = request.images().filter(|_| self.shows_images).count();
        let Ok(placeholder) = self.renderer.image_placeholder() else { return ids };
        match expansion::collapse(&ids, placeholder, images) {
            Ok(Cow::Owned(collapsed)) if images > 0 => collapsed,
            _ => ids,
        }
    }

    /// A prompt that the client has rendered.
    fn client_prompt(&self, ids: Vec<u32>) -> Result<Prompt, RequestError> {
        let opened = is_opened(self.renderer, &ids).map_err(|error| RequestError::Invalid(error.to_string()))?;
        Ok(Prompt { ids, opened, rendered: 0 })
    }
}

/// Whether the path of a turn has the pictures of the messages up to it. Those of a prompt that the engine has rendered are unknown.
fn has_same_images(session: &Session, request: &Conversation, continued: &ContinuedTurn) -> bool {
    let mut images = request.messages[..=continued.at].iter().flat_map(Message::images).peekable();
    images.peek().is_none() || images.map(|image| image.image.digest).eq(session.unexpanded(continued.turn.id).images)
}

/// Whether a prompt that the client or the engine has rendered ends with an open thought.
pub(super) fn is_opened(renderer: &Renderer, ids: &[u32]) -> Result<bool, TokenizerError> {
    let tail = renderer.tokenizer().decode(&ids[ids.len().saturating_sub(4)..], false)?;
    Ok(renderer.family().think().is_some_and(|(start, _)| tail.trim_end().ends_with(start)))
}
