// SPDX-License-Identifier: Apache-2.0
//! Detects how a call changed the earlier conversations of its session, and where the assistant text of its prompt comes from.

use std::collections::HashMap;

use sha2::{Digest as _, Sha256};

use super::Conversation;
use super::message::Message;
use super::reply_reader::RecordedReply;
use super::returned_reply::ReplyMatcher;
use crate::session::{Cause, Digest, Fingerprint, HistoryChange, Prefix, ReplyDigests, Session, Turn};
use crate::tokenizer::Renderer;

/// The number of latest turns whose reply may be a summary.
const MAX_SUMMARY_TURNS: usize = 8;

/// The minimum length of a summary in bytes. Shorter texts occur by chance.
const MIN_SUMMARY_BYTES: usize = 32;

/// Detects the change that a call made, from digests of its messages.
#[derive(Debug, Clone)]
pub(super) struct ChangeDetector<'a> {
    pub(super) fingerprint: Fingerprint,
    /// The digest of the messages before each message, then the digest of all messages.
    conversations: &'a [Digest],
    /// The prefixes of the conversation after the leading system messages.
    prefixes: Vec<Prefix>,
}

/// The assistant messages that a prompt contains not as the tokens of the turn that it continues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AssistantMessages {
    /// The index of the first message after the turn that the prompt continues; 0 if it continues none.
    start: usize,
    messages: Vec<AssistantMessage>,
}

/// Whether the message of an assistant has text, tool calls or reasoning, or the key of a turn.
fn has_content(message: &Message) -> bool {
    !message.is_empty() || message.reasoning.is_some() || message.keys().next().is_some()
}

/// An assistant message, and the turn of the session that sampled it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AssistantMessage {
    /// Its index in the request.
    pub(super) at: usize,
    /// `None` if it was not sampled in the session.
    pub(super) turn: Option<u32>,
    /// Of the turns with the same text that the message may repeat, one with as many messages before its reply, else `turn`.
    turn_in_place: Option<u32>,
    /// The message has the key of the turn, or no turn with other tokens has the same text.
    pub(super) is_certain: bool,
    /// The number of turns with these tokens that the message may repeat.
    pub(super) turns: usize,
    /// The lowest number of messages before the reply of such a turn.
    least_messages: u32,
}

impl AssistantMessages {
    /// Finds the turns of the assistant messages of a request from index `start` on.
    pub(super) fn find(request: &Conversation, start: usize, session: Option<&Session>, renderer: &Renderer) -> Self {
        let messages = request.messages.iter().enumerate().skip(start);
        let messages: Vec<(usize, &Message)> =
            messages.filter(|(_, message)| message.is_assistant() && has_content(message)).collect();
        let Some(session) = session.filter(|_| !messages.is_empty()) else {
            // parsing the replies of a session takes time that grows with the session
            let foreign = |&(at, _): &_| AssistantMessage {
                at,
                turn: None,
                turn_in_place: None,
                is_certain: true,
                turns: 0,
                least_messages: 0,
            };
            return Self { start, messages: messages.iter().map(foreign).collect() };
        };
        let matcher = ReplyMatcher::new(request, renderer);
        let digest = |message: &Message| message.standalone_digest(matcher.shows_names);
        let wanted: Vec<ReplyDigests> = messages
            .iter()
            .map(|(at, message)| ReplyDigests {
                message: digest(message),
                keys: message.keys().collect(),
                messages: u32::try_from(*at).unwrap_or(u32::MAX),
            })
            .collect();
        let recorded = |turn: &Turn| {
            let RecordedReply { message, keys } = RecordedReply::parse(renderer, turn)?;
            Some(ReplyDigests { message: digest(&message), keys, messages: messages_before(turn) })
        };
        let found = session.sampled(&wanted, recorded);
        // a request may repeat one key many times
        let mut replies: HashMap<u32, Option<RecordedReply>> = HashMap::new();
        let found = messages.iter().zip(found).map(|(&(at, message), found)| {
            let by_key = found.by_key.filter(|turn| {
                let read = || RecordedReply::parse(renderer, &*session.turn(*turn)?);
                let reply = replies.entry(*turn).or_insert_with(read);
                reply.as_ref().is_some_and(|reply| matcher.changes(message, reply).is_some())
            });
            let is_certain = by_key.is_some() || !found.is_ambiguous;
            let of_key = by_key.and_then(|turn| session.turn(turn)).map(|turn| (1, messages_before(&turn)));
            let (turns, least_messages) = of_key.unwrap_or((found.count, found.least_messages));
            let turn = by_key.or(found.by_message);
            let turn_in_place = by_key.or(found.by_place).or(turn);
            AssistantMessage { at, turn, turn_in_place, is_certain, turns, least_messages }
        });
        Self { start, messages: found.collect() }
    }

    /// The messages.
    pub(super) fn iter(&self) -> impl Iterator<Item = &AssistantMessage> {
        self.messages.iter()
    }

    /// The last message that the session sampled.
    pub(super) fn last_sampled(&self) -> Option<&AssistantMessage> {
        self.messages.iter().rfind(|message| message.turn.is_some())
    }

    /// Whether one of the messages was not sampled in the session.
    pub(super) fn has_foreign(&self) -> bool {
        self.messages.iter().any(|message| message.turn.is_none())
    }
}

impl<'a> ChangeDetector<'a> {
    /// Computes the digests of a request. `tools` is the digest of its tools. `conversations` are the digests of its prefixes, the first of
    /// them without a message.
    pub(super) fn new(request: &Conversation, tools: Digest, conversations: &'a [Digest]) -> Self {
        let mut state = FingerprintState::new(tools);
        let mut prefixes = Vec::with_capacity(request.messages.len());
        for (message, conversation) in request.messages.iter().zip(&conversations[1..]) {
            state.push(message);
            if !state.is_leading {
                let Fingerprint { body, shape, tool_bytes, .. } = state.fingerprint;
                prefixes.push(Prefix { conversation: *conversation, body, shape, tool_bytes });
            }
        }
        Self { fingerprint: state.fingerprint, conversations, prefixes }
    }

    /// The changes that the messages show, the most telling first. `replies` are the assistant messages after the turn that the prompt
    /// continues.
    pub(super) fn detect(
        &self,
        messages: &[Message],
        replies: &AssistantMessages,
        session: &Session,
        renderer: &Renderer,
    ) -> Vec<HistoryChange> {
        let known = session.history_change(&self.prefixes, &self.fingerprint, replies.start > 0);
        let kept = replies.last_sampled();
        let kept_turn = kept.and_then(|kept| kept.turn_in_place);
        let is_cleared = kept.is_some_and(|kept| self.has_cleared_results(kept, session));
        let is_left_out = kept.is_some_and(|kept| self.is_shorter(kept.least_messages));
        let summary = self.summary(messages, kept_turn, session, renderer);
        let replaced = self.replaced_reply(&messages[replies.start..], session);
        let change = |cause, turn| Some(HistoryChange { cause, turn });
        let of_cause = |is_of: fn(Cause) -> bool| known.filter(|known| is_of(known.cause));
        [
            change(Cause::ToolResultCleared, kept_turn).filter(|_| is_cleared),
            of_cause(|cause| matches!(cause, Cause::SystemChanged | Cause::ToolsChanged)),
            change(Cause::Compacted, summary.or(kept_turn)).filter(|_| summary.is_some() || is_left_out),
            of_cause(|cause| cause == Cause::HistoryEdited),
            change(Cause::ResponseEdited, replaced).filter(|_| replaced.is_some()),
            change(Cause::HistoryEdited, kept_turn).filter(|_| kept.is_some()),
            change(Cause::Forks, None).filter(|_| known.is_some()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Whether the call has no more messages than a request. If it repeats the reply to the request, messages were left out.
    fn is_shorter(&self, messages: u32) -> bool {
        self.fingerprint.messages <= messages
    }

    /// Whether the messages before a reply are those that its turn answered, with shorter tool results.
    fn has_cleared_results(&self, kept: &AssistantMessage, session: &Session) -> bool {
        let leading = self.conversations.len() - 1 - self.prefixes.len();
        let before = kept.at.checked_sub(leading + 1).map(|at| &self.prefixes[at]);
        let turn = kept.turn_in_place.and_then(|turn| session.turn(turn));
        let (Some(before), Some(answered)) = (before, turn.as_deref().and_then(fingerprint)) else { return false };
        (answered.system, answered.tools, answered.shape)
            == (self.fingerprint.system, self.fingerprint.tools, before.shape)
            && before.tool_bytes < answered.tool_bytes
    }

    /// The turn whose sampled reply was replaced by an assistant message among the last `messages`; of several, the last one.
    fn replaced_reply(&self, messages: &[Message], session: &Session) -> Option<u32> {
        let conversations = &self.conversations[self.conversations.len() - 1 - messages.len()..];
        let replies = messages.iter().zip(conversations).filter(|(message, _)| message.is_assistant());
        let sampled = |conversation: &Digest| {
            let answers = session.answers(*conversation);
            answers.iter().find(|turn| !turn.response.is_empty()).map(|turn| turn.id)
        };
        replies.rev().find_map(|(_, conversation)| sampled(conversation))
    }

    /// The turn that sampled a summary which a message of the client contains. It summarises a longer conversation with the same system
    /// prompt, and with the same tools or, as Codex asks for it, without tools. The summary is the whole reply, or its part in `<summary>`,
    /// as in Claude Code. It was sampled after the replies that the call keeps, the latest of them `kept`, and stands before them.
    fn summary(&self, messages: &[Message], kept: Option<u32>, session: &Session, renderer: &Renderer) -> Option<u32> {
        let end = messages.iter().position(Message::is_assistant).filter(|_| kept.is_some());
        let messages = &messages[..end.unwrap_or(messages.len())];
        let is_summary = |turn: &Turn| {
            if kept.is_some_and(|kept| turn.id <= kept) {
                return false;
            }
            let Some(before) = fingerprint(turn) else { return false };
            let same_tools = before.tools == self.fingerprint.tools || before.tools == tools_digest("");
            if before.system != self.fingerprint.system || !same_tools || !self.is_shorter(before.messages) {
                return false;
            }
            let reply = RecordedReply::parse(renderer, turn).map(|reply| reply.message);
            let Some(reply) = reply.filter(|reply| reply.calls.is_empty()) else { return false };
            let reply = reply.text();
            let summary = summary_of(&reply);
            let contains = |message: &Message| message.texts.iter().any(|text| text.contains(summary));
            summary.len() >= MIN_SUMMARY_BYTES
                && messages.iter().filter(|message| !message.is_assistant()).any(contains)
        };
        session.latest(MAX_SUMMARY_TURNS).iter().find(|turn| is_summary(turn)).map(|turn| turn.id)
    }
}

/// The fingerprint of the conversation that a turn answered. `None` if it answered no chat.
fn fingerprint(turn: &Turn) -> Option<&Fingerprint> {
    turn.about.chat.as_ref().map(|chat| &chat.fingerprint)
}

/// The number of messages that a turn answered; 0 if that is unknown.
fn messages_before(turn: &Turn) -> u32 {
    fingerprint(turn).map_or(0, |fingerprint| fingerprint.messages)
}

/// The summary in a reply: the text in `<summary>`, or the whole text.
fn summary_of(reply: &str) -> &str {
    let inner =
        reply.rsplit_once("<summary>").map(|(_, rest)| rest.split_once("</summary>").map_or(rest, |(inner, _)| inner));
    inner.unwrap_or(reply).trim()
}

/// The digest of the tools in a prompt. `tools` are the tools in canonical form; empty without tools.
pub(super) fn tools_digest(tools: &str) -> Digest {
    Digest::of(Sha256::digest(tools.as_bytes()).as_slice())
}

/// The fingerprint of the messages so far.
struct FingerprintState<'a> {
    fingerprint: Fingerprint,
    /// Those of the last assistant message.
    call_indexes: HashMap<&'a str, usize>,
    /// All messages so far are system messages.
    is_leading: bool,
}

impl<'a> FingerprintState<'a> {
    /// The state before the first message.
    fn new(tools: Digest) -> Self {
        let fingerprint = Fingerprint { tools, ..Fingerprint::default() };
        Self { fingerprint, call_indexes: HashMap::new(), is_leading: true }
    }

    /// The state after `messages`, whose fingerprint is `known` except for the tools.
    fn after(messages: &'a [Message], known: &Fingerprint, tools: Digest) -> Self {
        let last_reply = messages.iter().rfind(|message| message.is_assistant());
        // white space at the end of a text is not in the digests, but it is counted
        let tool_bytes = messages.iter().filter(|message| message.is_tool_result()).map(text_bytes).sum();
        Self {
            fingerprint: Fingerprint { tools, tool_bytes, ..known.clone() },
            call_indexes: last_reply.map(Message::call_indexes).unwrap_or_default(),
            is_leading: messages.iter().all(is_system),
        }
    }

    fn push(&mut self, message: &'a Message) {
        let Self { fingerprint, call_indexes, is_leading } = self;
        fingerprint.messages += 1;
        *is_leading &= is_system(message);
        if *is_leading {
            fingerprint.system = message.digest(fingerprint.system, call_indexes);
            return;
        }
        let body = message.digest(Digest::default(), call_indexes);
        let shape = if message.is_tool_result() {
            fingerprint.tool_bytes += text_bytes(message);
            message.without_text().digest(Digest::default(), call_indexes)
        } else {
            body
        };
        fingerprint.body = chain(fingerprint.body, body);
        fingerprint.shape = chain(fingerprint.shape, shape);
        if message.is_assistant() {
            *call_indexes = message.call_indexes();
        }
    }
}

/// The fingerprint of all `messages`. `known` is that of the first `count` messages, except for the tools.
pub(super) fn fingerprint_after(messages: &[Message], count: usize, known: &Fingerprint, tools: Digest) -> Fingerprint {
    let mut state = FingerprintState::after(&messages[..count], known, tools);
    messages[count..].iter().for_each(|message| state.push(message));
    state.fingerprint
}

fn is_system(message: &Message) -> bool {
    matches!(&*message.role, "system" | "developer")
}

fn text_bytes(message: &Message) -> u64 {
    message.texts.iter().map(|text| text.len() as u64).sum()
}

/// The digest of a list of digests that continues with `next`.
fn chain(before: Digest, next: Digest) -> Digest {
    let hash = Sha256::new().chain_update(before.as_bytes()).chain_update(next.as_bytes());
    Digest::of(hash.finalize().as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::message::MessageToolCall;
    use crate::chat::tool_choice::ToolChoice;

    fn message(role: &str, text: &str, calls: &[&str], tool_call_id: Option<&str>) -> Message {
        let call = |id: &&str| MessageToolCall { id: Some((*id).into()), name: "f".into(), arguments: "{}".into() };
        Message {
            calls: calls.iter().map(call).collect(),
            tool_call_id: tool_call_id.map(Into::into),
            ..Message::new(role, text.into())
        }
    }

    #[test]
    fn fingerprint_continues_that_of_any_prefix() {
        let messages = vec![
            message("system", "S", &[], None),
            message("developer", "D", &[], None),
            message("user", "U", &[], None),
            message("assistant", "A", &["a", "b"], None),
            message("tool", "T \n", &[], Some("b")),
            message("tool", "", &[], Some("a")),
            message("system", "late", &[], None),
            message("assistant", "", &["b"], None),
            message("tool", "result", &[], Some("b")),
        ];
        let fingerprint = |messages: &[Message]| {
            let request = Conversation {
                messages: messages.to_vec(),
                tools: None,
                tool_choice: ToolChoice::Auto,
                template_variables: Vec::new(),
                continues_last: false,
                prompt_ids: None,
                separates_reasoning: true,
                has_reasoning_items: false,
                skips_special_tokens: true,
                keeps_stop: false,
            };
            let conversations = vec![Digest::default(); messages.len() + 1];
            ChangeDetector::new(&request, Digest::of(b"tools"), &conversations).fingerprint
        };
        let whole = fingerprint(&messages);
        for count in 0..=messages.len() {
            let known = Fingerprint { tools: Digest::of(b"other tools"), ..fingerprint(&messages[..count]) };
            assert_eq!(fingerprint_after(&messages, count, &known, Digest::of(b"tools")), whole, "after {count}");
        }
    }
}
