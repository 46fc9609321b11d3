//! Assembles the token ids of a prompt from recorded turns and rendered messages.

use std::sync::Arc;

use super::{PromptBuilder, PromptLimits, RepeatedTurn};
use crate::budget::{Share, Stopped};
use crate::chat::history::ContinuedTurn;
use crate::chat::message::Message;
use crate::chat::rendering::{RENDERED_TEXT_FACTOR, Rendering};
use crate::chat::{Conversation, RequestError};
use crate::json::Value;
use crate::session::Turn;
use crate::tokenizer::template::RenderError;
use crate::tokenizer::{EncodeLimits, Prompt, PromptError, Setting, TextOrigin, TokenizerError};

/// The tokens of a prompt.
#[derive(Default)]
pub(super) struct PromptTokens {
    /// The leading tokens, which were taken unchanged from the session.
    pub(super) reused: Vec<u32>,
    /// The tokens after them.
    pub(super) prompt: Prompt,
    /// The number of end-of-turn tokens that were inserted after a turn.
    pub(super) inserted_end_of_turn: u32,
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

impl<'a> PromptLimits<'a> {
    /// The limits of the text after these tokens.
    fn after(&self, tokens: &PromptTokens) -> EncodeLimits<'a> {
        let most = |context: u64| usize::try_from(context.saturating_mul(2)).unwrap_or(usize::MAX);
        let rest = |context| most(context).saturating_sub(tokens.len());
        EncodeLimits { work: self.work, tokens: self.context.map(rest) }
    }
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
        let (before, text_bytes) = (tokens.len(), rendering.text_bytes());
        let _memory = self.take(rendering, before, limits)?;
        let reply = last.map_or(&[][..], |(at, _)| std::slice::from_ref(&request.messages[at]));
        let reply = limits.work.take(Rendering::default().of_messages(reply).bytes());
        let _reply = reply.map_err(|stopped| self.stopped(stopped, text_bytes, before, limits))?;
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
            tokens.append(prompt.map_err(|error| self.error(error, text_bytes, before, limits))?);
            return Ok(true);
        };
        let end = self.renderer.end_of_turn();
        let ended = end.is_some() && self.has_ended(turn);
        let reply = self.template_value(&request.messages[at]);
        let mut suffix = match self.renderer.render_after_turn(&reply, &values, ended, setting, &encoding) {
            Ok(suffix) => suffix,
            Err(PromptError::NoBoundary) => return Ok(false),
            Err(error) => return Err(self.error(error, text_bytes, before, limits)),
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
    pub(super) fn take(
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

    /// Converts the error of a text after this many tokens. A conversation that the template refuses is invalid, and one on which it does not
    /// end would hold the engine, too. Other errors may not occur in the engine's own endpoint, so that endpoint serves the request.
    fn error(&self, error: PromptError, text_bytes: usize, tokens: usize, limits: PromptLimits<'_>) -> RequestError {
        match error {
            PromptError::Encode(TokenizerError::Stopped(stopped)) => self.stopped(stopped, text_bytes, tokens, limits),
            PromptError::Encode(TokenizerError::TooLong { tokens: more }) => {
                RequestError::TooLong { tokens: tokens + more, context: limits.context.unwrap_or(u64::MAX) }
            }
            PromptError::Render(RenderError::Refused(_) | RenderError::Endless(_)) => {
                RequestError::Invalid(error.to_string())
            }
            error => RequestError::Unsupported(error.to_string()),
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

    /// Appends the start of the reply, which the client has written as the last assistant message.
    fn append_assistant_prefix(
        &self,
        request: &Conversation,
        tokens: &mut PromptTokens,
        text: &str,
        limits: PromptLimits<'_>,
    ) -> Result<(), RequestError> {
        let tokenizer = self.renderer.tokenizer();
        let before = tokens.len();
        let memory = limits.work.take(RENDERED_TEXT_FACTOR * text.len());
        let _memory = memory.map_err(|stopped| self.stopped(stopped, text.len(), before, limits))?;
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
            Err(error) => return Err(self.error(error.into(), text.len(), before, limits)),
        }
        let prompt = &mut tokens.prompt;
        prompt.opened = self.renderer.family().ends_in_thought(text).unwrap_or(prompt.opened);
        Ok(())
    }

    /// The client's variables of the template, with a mark in each name of a control token.
    pub(super) fn template_variables(&self, request: &Conversation) -> Vec<(String, Value)> {
        let marks = self.renderer.tokenizer().content();
        request
            .template_variables
            .iter()
            .map(|(name, value)| (name.clone(), marks.mark_all(value, TextOrigin::Person)))
            .collect()
    }

    /// The value of a message for the template.
    fn template_value(&self, message: &Message) -> Value {
        message.template_value(self.renderer.tokenizer().content(), self.renderer.features().accepts_content_parts)
    }
}
