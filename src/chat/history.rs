// SPDX-License-Identifier: Apache-2.0
//! Finds the turn of a session that a conversation continues.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::Conversation;
use super::canonical::canonical;
use super::history_change::{self, ChangeDetector};
use super::message::Message;
use super::reply_reader::RecordedReply;
use super::returned_reply::ReplyMatcher;
use crate::budget::{Stopped, Work};
use crate::session::{Digest, Fingerprint, ReplyChanges, Session, Turn};
use crate::tokenizer::Renderer;

/// A conversation, and the digests of its prefixes.
pub(super) struct History<'a> {
    request: &'a Conversation,
    /// The digest of the messages before each message, then the digest of all messages.
    digests: Vec<Digest>,
    /// The digest of the tools in the prompt.
    tools: Digest,
}

/// The turn that a conversation continues.
pub(super) struct ContinuedTurn {
    pub(super) turn: Arc<Turn>,
    /// The index of the message that repeats its reply.
    pub(super) at: usize,
    /// Its reply has a thought.
    pub(super) has_thought: bool,
    /// What the client changed in its reply.
    pub(super) changes: ReplyChanges,
}

impl<'a> History<'a> {
    /// Computes the digests of a conversation. The memory for rendering its variables of the template must have been taken.
    ///
    /// # Errors
    /// [`Stopped`].
    pub(super) fn try_new(request: &'a Conversation, renderer: &Renderer, work: &Work) -> Result<Self, Stopped> {
        let tools: String = request.tools.iter().flatten().map(|tool| canonical(tool) + "\n").collect();
        let in_prompt = if request.parses_tool_calls() { &*tools } else { "" };
        let digests = digests(request, &tools, renderer, work)?;
        Ok(Self { request, digests, tools: history_change::tools_digest(in_prompt) })
    }

    /// The digest of all messages.
    pub(super) fn conversation(&self) -> Digest {
        *self.digests.last().expect("there is a digest even before the first message")
    }

    /// The detector of changes to earlier conversations of the session.
    pub(super) fn change_detector(&self) -> ChangeDetector<'_> {
        ChangeDetector::new(self.request, self.tools, &self.digests)
    }

    /// The fingerprint of the conversation, which continues this turn. Only the messages from the turn's reply on are digested. `None` if
    /// the turn answered no chat.
    pub(super) fn fingerprint_after(&self, continued: &ContinuedTurn) -> Option<Fingerprint> {
        let known = &continued.turn.about.chat.as_ref()?.fingerprint;
        Some(history_change::fingerprint_after(&self.request.messages, continued.at, known, self.tools))
    }

    /// Finds the deepest turn whose conversation and reply the request repeats. Of several turns, that with the key of the
    /// message is preferred, then one whose calls have the client's ids, then one whose reply is unchanged, then a trainable one, then the
    /// latest.
    pub(super) fn find(&self, session: &Session, renderer: &Renderer) -> Option<ContinuedTurn> {
        let Self { request, digests, .. } = self;
        let matcher = ReplyMatcher::new(request, renderer);
        for (at, message) in request.messages.iter().enumerate().rev().filter(|(_, message)| message.is_assistant()) {
            let mut best: Option<(_, ContinuedTurn)> = None;
            for turn in session.answers(digests[at]) {
                let shows_tools = turn.about.chat.as_ref().is_some_and(|chat| chat.tools);
                if request.parses_tool_calls() && !shows_tools {
                    continue;
                }
                let Some(reply) = RecordedReply::parse(renderer, &turn) else { continue };
                let changes = matcher.changes(message, &reply).filter(|_| has_same_thoughts(message, &reply.message));
                let Some(changes) = changes else { continue };
                let has_same_key = message.keys().any(|key| reply.keys.contains(&key));
                let reply = reply.message;
                let has_same_ids = has_same_key
                    || message.turn_keys.is_empty()
                        && reply.calls.iter().map(|call| &call.id).eq(message.calls.iter().map(|call| &call.id));
                let has_thought = reply.thoughts().iter().any(|thought| !thought.is_empty());
                let found = ContinuedTurn { turn, at, has_thought, changes };
                if has_same_key || has_same_ids && changes.is_empty() {
                    return Some(found);
                }
                let rank = (has_same_ids, changes.is_empty());
                if best.as_ref().is_none_or(|(best, _)| *best < rank) {
                    best = Some((rank, found));
                }
            }
            if let Some((_, found)) = best {
                return Some(found);
            }
        }
        None
    }
}

/// Whether each thought in the client's message is a thought of the reply. The client may have dropped thoughts.
pub(super) fn has_same_thoughts(message: &Message, reply: &Message) -> bool {
    let sampled = reply.thoughts();
    // the client may have written the reasoning before a text that contains `</think>`
    let is_joined = |thought: &str| {
        let parts = thought.split_once("</think>");
        parts.is_some_and(|(reasoning, text)| [reasoning.trim_end(), text.trim_start()] == sampled)
    };
    let is_in_reply = |thought: &str| sampled.iter().any(|other| other == thought) || is_joined(thought);
    // both places of the reply are compared, because text before a lone `</think>` looks like a thought
    message.thoughts().iter().all(|thought| thought.is_empty() || is_in_reply(thought))
}

/// The digest of the messages before each message, then the digest of all messages. Each covers the tools, and the text of a history with
/// the variables of the template. `tools` are the tools in canonical form.
fn digests(request: &Conversation, tools: &str, renderer: &Renderer, work: &Work) -> Result<Vec<Digest>, Stopped> {
    let mut hash = Sha256::new();
    hash.update(b"a conversation\n");
    hash.update(tools.as_bytes());
    if let Some(variables) = renderer.history_digest(&request.template_variables, work)? {
        hash.update(variables);
    }
    let mut digests = Vec::with_capacity(request.messages.len() + 1);
    let mut call_indexes = HashMap::new();
    digests.push(Digest::of(hash.finalize().as_slice()));
    for message in &request.messages {
        let previous = *digests.last().expect("the first digest was pushed before the loop");
        digests.push(message.digest(previous, &call_indexes));
        if message.is_assistant() {
            call_indexes = message.call_indexes();
        }
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thought_before_a_text_with_a_literal_think_end_is_that_of_the_reply() {
        let message = |reasoning: Option<&str>, text: &str| Message {
            reasoning: reasoning.map(str::to_owned),
            ..Message::new("assistant", text.to_owned())
        };
        let reply = message(Some("r"), "Use </think> now");
        for (returned, is_same) in [
            (message(Some("r"), "Use </think> now"), true),
            (message(None, "Use </think> now"), true),
            (message(None, "<think>\nr\n</think>\n\nUse </think> now"), true),
            (message(None, "r</think>Use </think> now"), true),
            (message(None, "<think>s</think>Use </think> now"), false),
            (message(None, "<think>r</think>Drop </think> now"), false),
        ] {
            assert_eq!(has_same_thoughts(&returned, &reply), is_same, "{returned:?}");
        }
    }
}
