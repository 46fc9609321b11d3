//! Builds the token ids of a prompt from a conversation.
//!
//! If the conversation continues a turn of its session, the tokens of the session up to the end of that turn are reused unchanged, and only
//! the messages after it are rendered and encoded. Otherwise the prompt begins a branch: the client has changed the conversation. Replies
//! of the session that it repeats after the change keep their sampled tokens, and all other messages are rendered from their text.

use std::collections::HashMap;
use std::sync::Arc;

use super::Conversation;
use super::RequestError;
use super::history::{ContinuedTurn, History, has_same_thoughts};
use super::history_change::{AssistantMessage, AssistantMessages};
use super::message::Message;
use super::model::ChatModel;
use super::rendering::{RENDERED_TEXT_FACTOR, Rendering};
use super::reply_reader::{self, ParserSettings};
use super::returned_reply::ReplyMatcher;
use crate::budget::{Share, Work};
use crate::config::EarlierThinking;
use crate::json::Value;
use crate::session::{Chat, ReplyChanges, Session, Turn};
use crate::tokenizer::template::RenderError;
use crate::tokenizer::{EncodeLimits, Prompt, PromptError, Renderer, Setting, TextOrigin, TokenizerError};

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

impl<'a> PromptLimits<'a> {
    /// The limits of the text after these tokens.
    fn after(&self, tokens: &PromptTokens) -> EncodeLimits<'a> {
        let most = |context: u64| usize::try_from(context.saturating_mul(2)).unwrap_or(usize::MAX);
        let rest = |context| most(context).saturating_sub(tokens.len());
        EncodeLimits { work: self.work, tokens: self.context.map(rest) }
    }
}

/// The tokens of a prompt.
#[derive(Default)]
struct PromptTokens {
    /// The leading tokens, which were taken unchanged from the session.
    reused: Vec<u32>,
    /// The tokens after them.
    prompt: Prompt,
    /// The number of end-of-turn tokens that were inserted after a turn.
    inserted_end_of_turn: u32,
}

impl PromptTokens {
    fn len(&self) -> usize {
        self.reused.len() + self.prompt.ids.len()
    }

    /// Removes the last token.
    fn pop(&mut self) {
        if self.prompt.ids.pop().is_none() {
            self.reused.pop();
        }
    }

    fn append(&mut self, prompt: Prompt) {
        self.prompt.ids.extend(prompt.ids);
        self.prompt.rendered += prompt.rendered;
        self.prompt.opened = prompt.opened;
    }
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
        Self { renderer, session: None, earlier_thinking: EarlierThinking::Keep, parser }
    }

    /// Renders the whole conversation and returns its token ids.
    ///
    /// # Errors
    /// [`RequestError`] if the template or the tokenizer refuses the conversation.
    pub fn render_whole(&self, request: &Conversation) -> Result<Vec<u32>, RequestError> {
        self.render_whole_within(request, PromptLimits { work: &Work::unlimited(), context: None })
    }

    /// The same within limits.
    ///
    /// # Errors
    /// Like [`Self::render_whole`], or if a limit is reached.
    pub fn render_whole_within(
        &self,
        request: &Conversation,
        limits: PromptLimits<'_>,
    ) -> Result<Vec<u32>, RequestError> {
        Ok(self.tokens(request, None, &[], limits)?.unwrap_or_default().prompt.ids)
    }

    /// Builds the prompt of a request.
    ///
    /// # Errors
    /// [`RequestError`] if the template or the tokenizer refuses the conversation.
    pub fn prepare(&self, request: &Conversation) -> Result<PreparedPrompt, RequestError> {
        self.prepare_within(request, PromptLimits { work: &Work::unlimited(), context: None })
    }

    /// The same within limits.
    ///
    /// # Errors
    /// Like [`Self::prepare`], or if a limit is reached.
    pub fn prepare_within(
        &self,
        request: &Conversation,
        limits: PromptLimits<'_>,
    ) -> Result<PreparedPrompt, RequestError> {
        let variables = self.take(Rendering::of_variables(request), 0, limits)?;
        let history = History::of(request, self.renderer, limits.work)?;
        let conversation = history.conversation();
        let client_ids = request.prompt_ids.clone();
        let session = self.session.filter(|_| client_ids.is_none());
        let continued = session.and_then(|session| history.find(session, self.renderer));
        let mut continued = continued.filter(|continued| !self.must_branch(request, continued));
        let mut replies = AssistantMessages::default();
        let mut spliced = Vec::new();
        let tokens = match client_ids {
            Some(ids) => PromptTokens { prompt: self.client_prompt(ids)?, ..PromptTokens::default() },
            None => {
                let start = continued.as_ref().map_or(0, |continued| continued.at + 1);
                replies = AssistantMessages::of(request, start, session, self.renderer);
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
                        replies = AssistantMessages::of(request, 0, session, self.renderer);
                        self.tokens(request, None, &[], limits)?.unwrap_or_default()
                    }
                }
            }
        };
        let PromptTokens { prompt, reused, inserted_end_of_turn } = tokens;
        let ids: Arc<[u32]> = reused.iter().chain(&prompt.ids).copied().collect();
        let reused = reused.len();
        let extends_only = reused > 0 && replies.iter().next().is_none();
        let known =
            continued.as_ref().filter(|_| extends_only).and_then(|continued| history.fingerprint_after(continued));
        let (fingerprint, history_change) = match known {
            Some(fingerprint) => (fingerprint, None),
            None => {
                let detector = history.change_detector();
                let latest = replies.latest_turn();
                let change = session
                    .filter(|_| !extends_only)
                    .and_then(|session| detector.detect(&request.messages, latest, session, self.renderer));
                (detector.fingerprint, change)
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
            fingerprint: Some(fingerprint),
            sampling_sources: None,
            stored: None,
            session_number: session.map(|session| session.number),
            history_change,
        };
        Ok(PreparedPrompt {
            ids,
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
        let Some(generation_prompt) = self.renderer.generation_prompt_ids(setting) else { return Vec::new() };
        let matcher = ReplyMatcher::new(request, self.renderer);
        let mut used: HashMap<u32, usize> = HashMap::new();
        let recorded = |message: &AssistantMessage| {
            let turn = session.turn(message.turn.filter(|_| message.is_certain)?)?;
            let is_last = message.at + 1 == request.messages.len() && request.continues_last;
            let fits = message.at > 0
                && !is_last
                && !turn.response.is_empty()
                && turn.prompt.ends_with(&generation_prompt)
                && used.get(&turn.id).copied().unwrap_or(0) < message.turns;
            if !fits {
                return None;
            }
            let reply = reply_reader::recorded_reply(self.renderer, &turn)?;
            let returned = &request.messages[message.at];
            let changes = matcher.changes(returned, &reply).filter(|_| has_same_thoughts(returned, &reply.message))?;
            *used.entry(turn.id).or_default() += 1;
            Some(RepeatedTurn { at: message.at, turn, changes })
        };
        replies.iter().filter_map(recorded).collect()
    }

    /// Whether `--earlier-thinking branch` forbids reusing the tokens of the turn: they contain a thought that the template would drop.
    fn must_branch(&self, request: &Conversation, continued: &ContinuedTurn) -> bool {
        self.earlier_thinking == EarlierThinking::Branch
            && continued.has_thought
            && self.renderer.drops_thinking()
            && request.messages[continued.at + 1..].iter().any(|message| message.role == "user")
    }

    /// Builds the tokens of a prompt. It begins with the tokens up to the end of the `continued` turn. The sampled tokens of the `repeated`
    /// turns replace the text of their messages. All other messages are rendered. `None` if the text after a turn cannot be separated from
    /// the turn.
    fn tokens(
        &self,
        request: &Conversation,
        continued: Option<&ContinuedTurn>,
        repeated: &[RepeatedTurn],
        limits: PromptLimits<'_>,
    ) -> Result<Option<PromptTokens>, RequestError> {
        let mut tokens = PromptTokens::default();
        let mut last = None;
        if let (Some(session), Some(continued)) = (self.session, continued) {
            tokens.reused = session.tokens(continued.turn.id);
            last = Some((continued.at, &continued.turn));
        }
        for RepeatedTurn { at, turn, .. } in repeated {
            let start = last.map_or(0, |(at, _)| at + 1);
            if !self.append_messages(request, last, &request.messages[start..*at], &mut tokens, limits)? {
                return Ok(None);
            }
            tokens.prompt.ids.extend_from_slice(&turn.response);
            last = Some((*at, turn));
        }
        let mut new = &request.messages[last.map_or(0, |(at, _)| at + 1)..];
        if let Some((_, turn)) = last.filter(|_| new.is_empty() && request.continues_last) {
            // the reply continues the turn, so the token that ended the turn is removed
            if self.has_ended(turn) {
                tokens.pop();
            }
            tokens.prompt.opened = self.ends_in_thought(turn);
            return Ok(Some(tokens));
        }
        let mut assistant_prefix = None;
        if request.continues_last
            && let Some((last, before)) = new.split_last().filter(|(last, _)| last.is_assistant())
        {
            (assistant_prefix, new) = (Some(last.texts.concat()), before);
        }
        if !self.append_messages(request, last, new, &mut tokens, limits)? {
            return Ok(None);
        }
        if let Some(prefix) = assistant_prefix {
            self.append_assistant_prefix(request, &mut tokens, &prefix, limits)?;
        }
        Ok(Some(tokens))
    }

    /// Appends messages, and the start of the reply to them. `last` is the turn before them and the index of its message; without it, they
    /// begin the prompt. Returns false if the text after the turn cannot be separated from the turn.
    fn append_messages(
        &self,
        request: &Conversation,
        last: Option<(usize, &Arc<Turn>)>,
        new: &[Message],
        tokens: &mut PromptTokens,
        limits: PromptLimits<'_>,
    ) -> Result<bool, RequestError> {
        let tools = request.tools.as_ref().filter(|_| last.is_none() && request.parses_tool_calls());
        let variables = request.template_variables.iter().map(|(_, value)| value);
        let values = || tools.into_iter().flatten().chain(variables.clone());
        let rendering = Rendering::default().of_messages(new).of_values(values());
        let _memory = self.take(rendering, tokens.len(), limits)?;
        let reply = last.map_or(&[][..], |(at, _)| std::slice::from_ref(&request.messages[at]));
        let _reply = limits.work.take(Rendering::default().of_messages(reply).bytes())?;
        let encoding = limits.after(tokens);
        let values: Vec<Value> = new.iter().map(|message| self.template_value(message)).collect();
        let extra = self.template_variables(request);
        let setting = Setting { tools: None, generation_prompt: true, extra: &extra };
        let Some((at, turn)) = last else {
            let marks = self.renderer.tokenizer().content();
            let tools: Option<Vec<Value>> =
                tools.map(|tools| tools.iter().map(|tool| marks.mark_all(tool, TextOrigin::Person)).collect());
            let setting = Setting { tools: tools.as_deref(), ..setting };
            let prompt = self.renderer.render_conversation(&values, setting, &encoding);
            tokens.append(prompt.map_err(|error| prompt_error(error, tokens, limits))?);
            return Ok(true);
        };
        let end = self.renderer.end_of_turn();
        let ended = end.is_some() && self.has_ended(turn);
        let reply = self.template_value(&request.messages[at]);
        let mut suffix = match self.renderer.render_after_turn(&reply, &values, ended, setting, &encoding) {
            Ok(suffix) => suffix,
            Err(PromptError::NoBoundary) => return Ok(false),
            Err(error) => return Err(prompt_error(error, tokens, limits)),
        };
        let stop = self.stop_token(turn).filter(|_| end.is_none());
        if stop.is_some() {
            // the turn ended with the role token of the next turn: if the next message has this role, the rendered suffix begins with the
            // token too; otherwise the turn is cut before the token
            if suffix.ids.first() == stop.as_ref() {
                suffix.ids.remove(0);
            } else {
                tokens.pop();
            }
        }
        tokens.append(suffix);
        tokens.inserted_end_of_turn += u32::from(end.is_some() && !ended);
        Ok(true)
    }

    /// Takes the memory of a rendering that follows this many tokens.
    fn take(&self, rendering: Rendering, tokens: usize, limits: PromptLimits<'_>) -> Result<Share, RequestError> {
        limits.work.take(rendering.bytes()).map_err(|stopped| {
            let least = tokens + self.renderer.tokenizer().least_tokens(rendering.text_bytes());
            match limits.context {
                // unless the template drops most of it, no retry would help
                Some(context) if least as u64 > context => RequestError::TooLong { tokens: least, context },
                _ => stopped.into(),
            }
        })
    }

    /// The special token with which a turn stopped. A model may stop with another one than that of the template.
    fn stop_token(&self, turn: &Turn) -> Option<u32> {
        let stopped = turn.about.finish.as_deref() == Some("stop");
        turn.response.last().copied().filter(|last| stopped && self.renderer.tokenizer().is_special(*last))
    }

    /// Whether the last token of a turn ends it. Then no second end of turn is inserted.
    fn has_ended(&self, turn: &Turn) -> bool {
        let end = self.renderer.end_of_turn();
        end.is_some() && turn.response.last().copied() == end || self.stop_token(turn).is_some()
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

    /// Appends the start of the reply, which the client has written as the last assistant message.
    fn append_assistant_prefix(
        &self,
        request: &Conversation,
        tokens: &mut PromptTokens,
        text: &str,
        limits: PromptLimits<'_>,
    ) -> Result<(), RequestError> {
        let tokenizer = self.renderer.tokenizer();
        let _memory = limits.work.take(RENDERED_TEXT_FACTOR * text.len())?;
        let encoding = limits.after(tokens);
        let prompt = &mut tokens.prompt;
        if let Some((_, end)) = self.renderer.family().think().filter(|_| prompt.opened && request.has_reasoning_items)
        {
            // the text is the start of the answer, not of the thought
            let end = format!("\n{end}\n\n");
            let ids = tokenizer.encode_rendered(&end).map_err(|error| RequestError::Invalid(error.to_string()))?;
            prompt.ids.extend(ids);
            prompt.opened = false;
        }
        let marked = tokenizer.content().mark(text, TextOrigin::Person);
        match tokenizer.encode_within(&marked, &encoding) {
            Ok(ids) => prompt.ids.extend(ids),
            Err(TokenizerError::Encode(error)) => return Err(RequestError::Invalid(error.to_string())),
            Err(error) => return Err(prompt_error(error.into(), tokens, limits)),
        }
        let prompt = &mut tokens.prompt;
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

/// Converts an error. A conversation that the template refuses is invalid, and one on which it does not end would hold the engine, too.
/// Other errors may not occur in the engine's own endpoint, so that endpoint serves the request.
fn prompt_error(error: PromptError, tokens: &PromptTokens, limits: PromptLimits<'_>) -> RequestError {
    match error {
        PromptError::Encode(TokenizerError::Stopped(stopped)) => stopped.into(),
        PromptError::Encode(TokenizerError::TooLong { tokens: more }) => {
            RequestError::TooLong { tokens: tokens.len() + more, context: limits.context.unwrap_or(u64::MAX) }
        }
        PromptError::Render(RenderError::Refused(_) | RenderError::Endless(_)) => {
            RequestError::Invalid(error.to_string())
        }
        error => RequestError::Unsupported(error.to_string()),
    }
}
