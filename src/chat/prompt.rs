//! Builds the token ids of a prompt from a conversation.
//!
//! If the conversation continues a turn of its session, the tokens of the session up to the end of that turn are reused unchanged, and only
//! the messages after it are rendered and encoded. Otherwise the whole conversation is rendered from its text, which begins a branch.

use std::sync::Arc;

use super::Conversation;
use super::RequestError;
use super::history::{ContinuedTurn, History};
use super::history_change::RenderedAssistantText;
use super::message::Message;
use super::model::ChatModel;
use super::reply_reader::ParserSettings;
use crate::config::EarlierThinking;
use crate::json::Value;
use crate::session::{Chat, Session, Turn};
use crate::tokenizer::template::RenderError;
use crate::tokenizer::{Prompt, PromptError, Renderer, Setting, TextOrigin, TokenizerError};

/// A prompt, and the chat that its turn records.
#[derive(Debug)]
pub struct PreparedPrompt {
    /// The token ids of the prompt.
    pub ids: Arc<[u32]>,
    /// The chat that the turn records.
    pub chat: Chat,
    /// The turn that the prompt continues.
    pub continues: Option<u32>,
    /// The number of leading tokens that were taken unchanged from the session.
    pub reused: usize,
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
}

/// The tokens of a prompt.
#[derive(Default)]
struct PromptTokens {
    /// The leading tokens, which were taken unchanged from the session.
    reused: Vec<u32>,
    /// The tokens after them.
    prompt: Prompt,
    /// The number of end-of-turn tokens that were inserted after the continued turn.
    inserted_end_of_turn: u32,
}

impl<'a> PromptBuilder<'a> {
    /// A builder without a session.
    #[must_use]
    pub fn without_session(model: &'a ChatModel) -> Self {
        let (renderer, parser) = (&*model.renderer, model.parser.clone());
        Self { renderer, session: None, earlier_thinking: EarlierThinking::Keep, parser }
    }

    /// Renders the whole conversation and returns its token ids.
    ///
    /// # Errors
    /// [`RequestError`] if the template or the tokenizer refuses the conversation.
    pub fn render_whole(&self, request: &Conversation) -> Result<Vec<u32>, RequestError> {
        self.whole_conversation(request).map(|prompt| prompt.ids)
    }

    /// Builds the prompt of a request.
    ///
    /// # Errors
    /// [`RequestError`] if the template or the tokenizer refuses the conversation.
    pub fn prepare(&self, request: &Conversation) -> Result<PreparedPrompt, RequestError> {
        let history = History::of(request);
        let conversation = history.conversation();
        let client_ids = request.prompt_ids.clone();
        let session = self.session.filter(|_| client_ids.is_none());
        let continued = session.and_then(|session| history.find(session, self.renderer));
        let extended = match &continued {
            Some(continued) if !self.must_branch(request, continued) => self.extend_turn(request, continued)?,
            _ => None,
        };
        // the messages that are rendered as text; none if the client has rendered the conversation itself
        let rendered = match (&extended, &client_ids, &continued) {
            (Some(_), _, Some(continued)) => &request.messages[continued.at + 1..],
            (None, Some(_), _) => &[],
            _ => &request.messages[..],
        };
        let texts = RenderedAssistantText::of(rendered, session, self.renderer);
        let PromptTokens { prompt, reused, inserted_end_of_turn } = match (extended, client_ids) {
            (Some(tokens), _) => tokens,
            (None, Some(ids)) => PromptTokens { prompt: self.client_prompt(ids)?, ..PromptTokens::default() },
            (None, None) => PromptTokens { prompt: self.whole_conversation(request)?, ..PromptTokens::default() },
        };
        let ids: Arc<[u32]> = reused.iter().chain(&prompt.ids).copied().collect();
        let reused = reused.len();
        let extends_only = reused > 0 && texts == RenderedAssistantText::default();
        let known =
            continued.as_ref().filter(|_| extends_only).and_then(|continued| history.fingerprint_after(continued));
        let (fingerprint, history_change) = match known {
            Some(fingerprint) => (fingerprint, None),
            None => {
                let detector = history.change_detector();
                let change = session
                    .filter(|_| !extends_only)
                    .and_then(|session| detector.detect(&request.messages, texts, session, self.renderer));
                (detector.fingerprint, change)
            }
        };
        let continues = continued.as_ref().map(|continued| continued.turn.id);
        let tools = if reused > 0 {
            continued.is_some_and(|continued| continued.turn.about.chat.as_ref().is_some_and(|chat| chat.tools))
        } else {
            request.parses_tool_calls()
        };
        let reading = self.parser.options(request, prompt.opened);
        let chat = Chat {
            conversation,
            tools,
            reading,
            retokenised: texts.sampled.is_some(),
            foreign_text: texts.foreign,
            inserted_end_of_turn,
            fingerprint: Some(fingerprint),
            history_change,
        };
        Ok(PreparedPrompt { ids, chat, continues: continues.filter(|_| reused > 0), reused, rendered: prompt.rendered })
    }

    /// Whether `--earlier-thinking branch` forbids reusing the tokens of the turn: they contain a thought that the template would drop.
    fn must_branch(&self, request: &Conversation, continued: &ContinuedTurn) -> bool {
        self.earlier_thinking == EarlierThinking::Branch
            && continued.has_thought
            && self.renderer.drops_thinking()
            && request.messages[continued.at + 1..].iter().any(|message| message.role == "user")
    }

    /// Appends the messages after a turn to its tokens. `None` if the text after the turn cannot be separated from the turn.
    fn extend_turn(
        &self,
        request: &Conversation,
        continued: &ContinuedTurn,
    ) -> Result<Option<PromptTokens>, RequestError> {
        let Some(session) = self.session else { return Ok(None) };
        let ContinuedTurn { turn, at, .. } = continued;
        let mut reused = session.tokens(turn.id);
        let mut new: &[Message] = &request.messages[at + 1..];
        let end = self.renderer.end_of_turn();
        let stopped = turn.about.finish.as_deref() == Some("stop");
        let last = turn.response.last().copied();
        let stop = last.filter(|last| stopped && self.renderer.tokenizer().is_special(*last));
        // a model may stop with another special token than that of the template; then no second end of turn is inserted
        let ended = end.is_some() && (last == end || stop.is_some());
        if new.is_empty() && request.continues_last {
            // the reply continues the turn, so the token that ended the turn is removed
            if ended || stop.is_some() {
                reused.pop();
            }
            let prompt = Prompt { opened: self.ends_in_thought(turn), ..Prompt::default() };
            return Ok(Some(PromptTokens { prompt, reused, ..PromptTokens::default() }));
        }
        let mut assistant_prefix = None;
        if request.continues_last
            && let Some((last, before)) = new.split_last().filter(|(last, _)| last.is_assistant())
        {
            (assistant_prefix, new) = (Some(last.texts.concat()), before);
        }
        let values: Vec<Value> = new.iter().map(|message| self.template_value(message)).collect();
        let extra = self.template_variables(request);
        let setting = Setting { tools: None, generation_prompt: true, extra: &extra };
        let reply = self.template_value(&request.messages[*at]);
        let mut suffix = match self.renderer.render_after_turn(&reply, &values, ended, setting) {
            Ok(suffix) => suffix,
            Err(PromptError::NoBoundary) => return Ok(None),
            Err(error) => return Err(prompt_error(error)),
        };
        if end.is_none() && stop.is_some() {
            // the turn ended with the role token of the next turn: if the next message has this role, the rendered suffix begins with the
            // token too; otherwise the turn is cut before the token
            if suffix.ids.first() == stop.as_ref() {
                suffix.ids.remove(0);
            } else {
                reused.pop();
            }
        }
        if let Some(prefix) = assistant_prefix {
            self.append_assistant_prefix(&mut suffix, &prefix)?;
        }
        Ok(Some(PromptTokens { prompt: suffix, reused, inserted_end_of_turn: u32::from(end.is_some() && !ended) }))
    }

    /// Whether the text of a turn ends inside a thought.
    fn ends_in_thought(&self, turn: &Turn) -> bool {
        let opened = turn.about.chat.as_ref().is_some_and(|chat| chat.reading.opened);
        let text = self.renderer.tokenizer().decode(&turn.response, false).unwrap_or_default();
        self.renderer.family().ends_in_thought(&text).unwrap_or(opened)
    }

    /// A prompt that the client has rendered.
    fn client_prompt(&self, ids: Vec<u32>) -> Result<Prompt, RequestError> {
        let opened = is_opened(self.renderer, &ids).map_err(|error| RequestError::Invalid(error.to_string()))?;
        Ok(Prompt { ids, opened, rendered: 0 })
    }

    /// Renders the whole conversation.
    fn whole_conversation(&self, request: &Conversation) -> Result<Prompt, RequestError> {
        let mut messages: &[Message] = &request.messages;
        let mut assistant_prefix = None;
        if request.continues_last
            && let Some((last, before)) = messages.split_last().filter(|(last, _)| last.is_assistant())
        {
            (assistant_prefix, messages) = (Some(last.texts.concat()), before);
        }
        let values: Vec<Value> = messages.iter().map(|message| self.template_value(message)).collect();
        let marks = self.renderer.tokenizer().content();
        let tools = request.tools.as_ref().filter(|_| request.parses_tool_calls());
        let tools: Option<Vec<Value>> =
            tools.map(|tools| tools.iter().map(|tool| marks.mark_all(tool, TextOrigin::Person)).collect());
        let extra = self.template_variables(request);
        let setting = Setting { tools: tools.as_deref(), generation_prompt: true, extra: &extra };
        let mut prompt = self.renderer.render_conversation(&values, setting).map_err(prompt_error)?;
        if let Some(prefix) = assistant_prefix {
            self.append_assistant_prefix(&mut prompt, &prefix)?;
        }
        Ok(prompt)
    }

    /// Appends the start of the reply, which the client has written as the last assistant message.
    fn append_assistant_prefix(&self, prompt: &mut Prompt, text: &str) -> Result<(), RequestError> {
        let tokenizer = self.renderer.tokenizer();
        let marked = tokenizer.content().mark(text, TextOrigin::Person);
        let ids = tokenizer.encode_rendered(&marked).map_err(|error| RequestError::Invalid(error.to_string()))?;
        prompt.ids.extend(ids);
        prompt.opened = self.renderer.family().ends_in_thought(text).unwrap_or(prompt.opened);
        Ok(())
    }

    /// The client's variables of the template, with a mark in each name of a control token.
    fn template_variables(&self, request: &Conversation) -> Vec<(String, Value)> {
        let marks = self.renderer.tokenizer().content();
        request
            .template_variables
            .iter()
            .map(|(name, value)| (name.clone(), marks.mark_all(value, TextOrigin::Person)))
            .collect()
    }

    /// The value of a message for the template.
    fn template_value(&self, message: &Message) -> Value {
        message.template_value(self.renderer.tokenizer().content(), self.renderer.accepts_content_parts())
    }
}

/// Whether a prompt that the client or the engine has rendered ends with an open thought.
pub(super) fn is_opened(renderer: &Renderer, ids: &[u32]) -> Result<bool, TokenizerError> {
    let tail = renderer.tokenizer().decode(&ids[ids.len().saturating_sub(4)..], false)?;
    Ok(renderer.family().think().is_some_and(|(start, _)| tail.trim_end().ends_with(start)))
}

/// Converts an error. A conversation that the template refuses is invalid. Other errors may not occur in the engine's own endpoint, so that
/// endpoint serves the request.
fn prompt_error(error: PromptError) -> RequestError {
    match error {
        PromptError::Render(RenderError::Refused(_)) => RequestError::Invalid(error.to_string()),
        error => RequestError::Unsupported(error.to_string()),
    }
}
