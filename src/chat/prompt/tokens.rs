// SPDX-License-Identifier: Apache-2.0
//! Assembles the token ids of a prompt from recorded turns and rendered messages.

use super::{PromptBuilder, PromptLimits, RepeatedTurn};
use crate::budget::{Share, Stopped};
use crate::chat::history::ContinuedTurn;
use crate::chat::message::{AcceptedContent, Message};
use crate::chat::rendering::{RENDERED_TEXT_FACTOR, Rendering};
use crate::chat::{Conversation, RequestError};
use crate::json::Value;
use crate::session::Turn;
use crate::tokenizer::template::RenderError;
use crate::tokenizer::{EncodeLimits, Prompt, PromptError, Setting, TextOrigin, TokenizerError};

/// The tokens of a prompt.
#[derive(Default)]
pub(super) struct PromptTokens {
    /// The leading tokens, which were taken unchanged from the session, with one placeholder for each picture.
    pub(super) reused: Vec<u32>,
    /// The number of tokens of their pictures besides the placeholders.
    pub(super) expansion: usize,
    /// The tokens after them.
    pub(super) prompt: Prompt,
    /// The number of end-of-turn tokens that were inserted after a turn.
    pub(super) inserted_end_of_turn: u32,
}

impl PromptTokens {
    /// The number of tokens of the prompt; of a picture that is not in the session only the placeholder counts.
    pub(super) fn len(&self) -> usize {
        self.reused.len() + self.expansion + self.prompt.ids.len()
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

/// A turn whose tokens are in the prompt.
#[derive(Clone, Copy)]
struct LastTurn<'a> {
    /// The index of the message that repeats its reply.
    at: usize,
    turn: &'a Turn,
}

/// A prompt that is being assembled.
struct Assembly<'a> {
    builder: &'a PromptBuilder<'a>,
    request: &'a Conversation,
    limits: PromptLimits<'a>,
    tokens: PromptTokens,
    /// The last turn; without it, the messages begin the prompt.
    last: Option<LastTurn<'a>>,
}

impl PromptBuilder<'_> {
    /// Builds the tokens of a prompt. It begins with the tokens up to the end of the `continued` turn. The sampled tokens of the `repeated`
    /// turns replace the text of their messages. All other messages are rendered. `None` if the text after a turn cannot be separated from
    /// the turn.
    pub(super) fn tokens(
        &self,
        request: &Conversation,
        continued: Option<&ContinuedTurn>,
        repeated: &[RepeatedTurn],
        limits: PromptLimits<'_>,
    ) -> Result<Option<PromptTokens>, RequestError> {
        let mut assembly = Assembly { builder: self, request, limits, tokens: PromptTokens::default(), last: None };
        if let (Some(session), Some(ContinuedTurn { turn, at, .. })) = (self.session, continued) {
            let path = session.unexpanded(turn.id);
            assembly.tokens.expansion = path.expanded.saturating_sub(path.ids.len());
            assembly.tokens.reused = path.ids;
            assembly.last = Some(LastTurn { at: *at, turn });
        }
        for RepeatedTurn { at, turn, .. } in repeated {
            if !assembly.append_messages(&request.messages[assembly.next()..*at])? {
                return Ok(None);
            }
            assembly.tokens.prompt.ids.extend_from_slice(&turn.response);
            assembly.last = Some(LastTurn { at: *at, turn });
        }
        let is_complete = assembly.append_rest()?;
        Ok(is_complete.then_some(assembly.tokens))
    }

    /// Reserves the memory of a rendering that follows this many tokens.
    pub(super) fn reserve(
        &self,
        rendering: Rendering,
        tokens: usize,
        limits: PromptLimits<'_>,
    ) -> Result<Share, RequestError> {
        let taken = limits.work.take(rendering.bytes());
        taken.map_err(|stopped| self.stopped(stopped, rendering.text_bytes(), tokens, limits))
    }

    /// The error of work that stops. `text_bytes` is the length of the texts that follow this many tokens.
    fn stopped(&self, stopped: Stopped, text_bytes: usize, tokens: usize, limits: PromptLimits<'_>) -> RequestError {
        let least = tokens + self.renderer.tokenizer().least_tokens(text_bytes);
        match limits.context {
            // unless the template drops most of it, no retry would help
            Some(context) if least as u64 > context => RequestError::TooLong { tokens: least, context },
            _ => stopped.into(),
        }
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

    /// The client's variables of the template, with a mark in each name of a control token.
    pub(super) fn template_variables(&self, request: &Conversation) -> Vec<(String, Value)> {
        let marks = self.renderer.tokenizer().content();
        let variables = request.template_variables.iter();
        variables.map(|(name, value)| (name.clone(), marks.mark_all(value, TextOrigin::Person))).collect()
    }

    /// The value of a message for the template.
    fn template_value(&self, message: &Message) -> Value {
        let parts = self.renderer.features().accepts_content_parts;
        let accepted = AcceptedContent { parts, images: self.shows_images };
        message.template_value(self.renderer.tokenizer().content(), accepted)
    }
}

impl<'a> Assembly<'a> {
    /// The index of the first message that is not in the prompt.
    fn next(&self) -> usize {
        self.last.map_or(0, |last| last.at + 1)
    }

    /// The limits of the text after the tokens so far.
    fn encode_limits(&self) -> EncodeLimits<'a> {
        let most = |context: u64| usize::try_from(context.saturating_mul(2)).unwrap_or(usize::MAX);
        let rest = |context| most(context).saturating_sub(self.tokens.len());
        EncodeLimits { work: self.limits.work, tokens: self.limits.context.map(rest) }
    }

    /// Appends the messages after the last turn, and the start of the reply. Returns false if the text after the turn cannot be separated
    /// from the turn.
    fn append_rest(&mut self) -> Result<bool, RequestError> {
        let mut new = &self.request.messages[self.next()..];
        if let Some(LastTurn { turn, .. }) = self.last.filter(|_| new.is_empty() && self.request.continues_last) {
            // the reply continues the turn, so the token that ended the turn is removed
            if self.builder.has_ended(turn) {
                self.tokens.pop();
            }
            self.tokens.prompt.opened = self.builder.ends_in_thought(turn);
            return Ok(true);
        }
        let mut assistant_prefix = None;
        if self.request.continues_last
            && let Some((last, before)) = new.split_last().filter(|(last, _)| last.is_assistant())
        {
            (assistant_prefix, new) = (Some(last), before);
        }
        if !self.append_messages(new)? {
            return Ok(false);
        }
        if let Some(prefix) = assistant_prefix {
            self.append_assistant_prefix(prefix)?;
        }
        Ok(true)
    }

    /// Appends messages, and the start of the reply to them. Returns false if the text after the last turn cannot be separated from the
    /// turn.
    fn append_messages(&mut self, new: &[Message]) -> Result<bool, RequestError> {
        let Self { builder, request, limits, last, .. } = *self;
        let renderer = builder.renderer;
        let tools = request.tools.as_ref().filter(|_| last.is_none() && request.parses_tool_calls());
        let variables = request.template_variables.iter().map(|(_, value)| value);
        let rendering =
            Rendering::default().with_messages(new).with_values(tools.into_iter().flatten().chain(variables));
        let (before, text_bytes) = (self.tokens.len(), rendering.text_bytes());
        let _memory = builder.reserve(rendering, before, limits)?;
        let reply = last.map_or(&[][..], |last| std::slice::from_ref(&request.messages[last.at]));
        let reply = limits.work.take(Rendering::default().with_messages(reply).bytes());
        let _reply = reply.map_err(|stopped| builder.stopped(stopped, text_bytes, before, limits))?;
        let encoding = self.encode_limits();
        let values: Vec<Value> = new.iter().map(|message| builder.template_value(message)).collect();
        let extra = builder.template_variables(request);
        let setting = Setting { tools: None, generation_prompt: true, extra: &extra };
        let Some(LastTurn { at, turn }) = last else {
            let marks = renderer.tokenizer().content();
            let tools: Option<Vec<Value>> =
                tools.map(|tools| tools.iter().map(|tool| marks.mark_all(tool, TextOrigin::Person)).collect());
            let setting = Setting { tools: tools.as_deref(), ..setting };
            let prompt = renderer.render_conversation(&values, setting, &encoding);
            self.tokens.append(prompt.map_err(|error| self.error(error, text_bytes, before))?);
            return Ok(true);
        };
        let end = renderer.end_of_turn();
        let ended = end.is_some() && builder.has_ended(turn);
        let reply = builder.template_value(&request.messages[at]);
        let mut suffix = match renderer.render_after_turn(&reply, &values, ended, setting, &encoding) {
            Ok(suffix) => suffix,
            Err(PromptError::NoBoundary) => return Ok(false),
            Err(error) => return Err(self.error(error, text_bytes, before)),
        };
        let stop = builder.stop_token(turn).filter(|_| end.is_none());
        if stop.is_some() {
            // the turn ended with the role token of the next turn: if the next message has this role, the rendered suffix begins with the
            // token too; otherwise the turn is cut before the token
            if suffix.ids.first() == stop.as_ref() {
                suffix.ids.remove(0);
            } else {
                self.tokens.pop();
            }
        }
        self.tokens.append(suffix);
        self.tokens.inserted_end_of_turn += u32::from(end.is_some() && !ended);
        Ok(true)
    }

    /// Appends the start of the reply, which the client has written as the last assistant message.
    fn append_assistant_prefix(&mut self, message: &Message) -> Result<(), RequestError> {
        let Self { builder, request, .. } = *self;
        let renderer = builder.renderer;
        let text = message.texts.concat();
        let places_reasoning = renderer.folder().template.places_continued_reasoning();
        if self.tokens.prompt.opened && (places_reasoning || request.has_reasoning_items) {
            if let Some(reasoning) = message.reasoning.as_deref().filter(|_| places_reasoning) {
                self.append_client_text(reasoning)?;
            }
            // the text is the start of the answer, not of the thought
            let is_answer = !text.is_empty() || !places_reasoning;
            if let Some(end) = renderer.thought_end(&builder.template_variables(request)).filter(|_| is_answer) {
                let ids = renderer.tokenizer().encode_rendered(&end);
                self.tokens.prompt.ids.extend(ids.map_err(|error| RequestError::Invalid(error.to_string()))?);
                self.tokens.prompt.opened = false;
            }
        }
        self.append_client_text(&text)?;
        let prompt = &mut self.tokens.prompt;
        prompt.opened = renderer.family().ends_in_thought(&text).unwrap_or(prompt.opened);
        Ok(())
    }

    /// Appends a text of the client without a message around it.
    fn append_client_text(&mut self, text: &str) -> Result<(), RequestError> {
        let Self { builder, limits, .. } = *self;
        let tokenizer = builder.renderer.tokenizer();
        let before = self.tokens.len();
        let memory = limits.work.take(RENDERED_TEXT_FACTOR * text.len());
        let _memory = memory.map_err(|stopped| builder.stopped(stopped, text.len(), before, limits))?;
        let marked = tokenizer.content().mark(text, TextOrigin::Person);
        match tokenizer.encode_within(&marked, &self.encode_limits()) {
            Ok(ids) => self.tokens.prompt.ids.extend(ids),
            Err(TokenizerError::Encode(error)) => return Err(RequestError::Invalid(error.to_string())),
            Err(error) => return Err(self.error(error.into(), text.len(), before)),
        }
        Ok(())
    }

    /// Converts the error of a text of `text_bytes` after this many tokens. A conversation that the template refuses is invalid, and one on
    /// which the template does not end would block the engine, too. Other errors may not occur in the engine's own endpoint, so that endpoint
    /// serves the request.
    fn error(&self, error: PromptError, text_bytes: usize, tokens: usize) -> RequestError {
        match error {
            PromptError::Encode(TokenizerError::Stopped(stopped)) => {
                self.builder.stopped(stopped, text_bytes, tokens, self.limits)
            }
            PromptError::Encode(TokenizerError::TooLong { tokens: more }) => {
                RequestError::TooLong { tokens: tokens + more, context: self.limits.context.unwrap_or(u64::MAX) }
            }
            PromptError::Render(RenderError::Refused(_) | RenderError::Endless(_)) => {
                RequestError::Invalid(error.to_string())
            }
            error => RequestError::Unsupported(error.to_string()),
        }
    }
}
