//! What a call changed in the conversations of its session, and whose assistant text it holds.

use std::collections::HashMap;

use sha2::{Digest as _, Sha256};

use super::Conversation;
use super::canonical::canonical;
use super::message::Message;
use super::reading;
use crate::session::{Cause, Digest, Fingerprint, Prefix, Session, Turn};
use crate::tokenizer::Renderer;

/// Turns whose reply is looked for as a summary, the latest.
const SUMMARIES: usize = 8;

/// Bytes of the shortest text that is taken for a summary; shorter ones occur by chance.
const SUMMARY: usize = 32;

/// A call by the digests that its session compares.
#[derive(Debug, Clone)]
pub(super) struct Outline {
    pub(super) fingerprint: Fingerprint,
    prefixes: Vec<Prefix>,
}

/// Assistant text that a prompt holds as text, not as the tokens that were sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AssistantText {
    /// The latest turn of the session that sampled some of it.
    pub(super) sampled: Option<u32>,
    /// Some of it was not sampled in the session.
    pub(super) foreign: bool,
}

impl AssistantText {
    /// Of these messages.
    pub(super) fn of(messages: &[Message], session: Option<&Session>, renderer: &Renderer) -> Self {
        let said = messages.iter().filter(|message| message.is_assistant() && !message.is_empty());
        let digests: Vec<Digest> = said.map(Message::own_digest).collect();
        // reading what a session sampled takes as long as the session is
        if digests.is_empty() {
            return Self { sampled: None, foreign: false };
        }
        let Some(session) = session else { return Self { sampled: None, foreign: !digests.is_empty() } };
        let read = |turn: &Turn| Some(reading::said(renderer, turn)?.own_digest());
        let turns = session.sampled(&digests, read);
        Self { sampled: turns.iter().copied().max().flatten(), foreign: turns.iter().any(Option::is_none) }
    }
}

impl Outline {
    /// Of a request, whose `conversations` are the digests of its beginnings.
    pub(super) fn of(request: &Conversation, conversations: &[Digest]) -> Self {
        let mut fingerprint = Fingerprint { tools: tools(request), ..Fingerprint::default() };
        let mut prefixes = Vec::with_capacity(request.messages.len());
        let (mut calls, mut is_leading) = (HashMap::new(), true);
        for (message, conversation) in request.messages.iter().zip(&conversations[1..]) {
            fingerprint.messages += 1;
            is_leading &= matches!(&*message.role, "system" | "developer");
            if is_leading {
                fingerprint.system = message.digest(fingerprint.system, &calls);
                continue;
            }
            let own = message.digest(Digest::default(), &calls);
            let shape = if message.is_tool_result() {
                fingerprint.tool_bytes += message.texts.iter().map(|text| text.len() as u64).sum::<u64>();
                message.without_text().digest(Digest::default(), &calls)
            } else {
                own
            };
            fingerprint.body = chained(fingerprint.body, own);
            fingerprint.shape = chained(fingerprint.shape, shape);
            let Fingerprint { body, shape, tool_bytes, .. } = fingerprint;
            prefixes.push(Prefix { conversation: *conversation, body, shape, tool_bytes });
            if message.is_assistant() {
                calls = message.places();
            }
        }
        Self { fingerprint, prefixes }
    }

    /// What the call changed, as far as messages show.
    pub(super) fn departure(
        &self,
        messages: &[Message],
        texts: AssistantText,
        session: &Session,
        renderer: &Renderer,
    ) -> Option<Cause> {
        let found = session.departure(&self.prefixes, &self.fingerprint, texts.sampled.is_some());
        if found.is_some_and(|cause| cause != Cause::Forks) {
            return found;
        }
        match texts.sampled {
            Some(turn) if session.turn(turn).is_some_and(|turn| self.is_shorter(&turn)) => Some(Cause::Compacted),
            Some(_) => Some(Cause::HistoryEdited),
            None if self.holds_summary(messages, session, renderer) => Some(Cause::Compacted),
            None => found,
        }
    }

    /// Whether messages were left out since this turn, whose reply the call holds.
    fn is_shorter(&self, turn: &Turn) -> bool {
        let before = turn.about.chat.as_ref().and_then(|chat| chat.fingerprint.as_ref());
        before.is_some_and(|before| self.fingerprint.messages <= before.messages)
    }

    /// Whether a client's message repeats a whole reply of a longer conversation with the same system prompt and tools.
    fn holds_summary(&self, messages: &[Message], session: &Session, renderer: &Renderer) -> bool {
        session.latest(SUMMARIES).iter().any(|turn| {
            let Some(before) = turn.about.chat.as_ref().and_then(|chat| chat.fingerprint.as_ref()) else {
                return false;
            };
            let same = (before.system, before.tools) == (self.fingerprint.system, self.fingerprint.tools);
            if !same || !self.is_shorter(turn) {
                return false;
            }
            let Some(said) = reading::said(renderer, turn).filter(|said| said.calls.is_empty()) else { return false };
            let summary = said.text();
            let summary = summary.trim();
            let holds = |message: &Message| message.texts.iter().any(|text| text.contains(summary));
            summary.len() >= SUMMARY && messages.iter().filter(|message| !message.is_assistant()).any(holds)
        })
    }
}

/// The tools that the prompt shows.
fn tools(request: &Conversation) -> Digest {
    let mut hash = Sha256::new();
    for tool in request.tools.iter().flatten().filter(|_| request.reads_calls()) {
        hash.update(canonical(tool).as_bytes());
        hash.update(b"\n");
    }
    Digest::of(hash.finalize().as_slice())
}

fn chained(before: Digest, next: Digest) -> Digest {
    let hash = Sha256::new().chain_update(before.as_bytes()).chain_update(next.as_bytes());
    Digest::of(hash.finalize().as_slice())
}
