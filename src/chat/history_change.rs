//! Detects how a call changed the earlier conversations of its session, and where the assistant text of its prompt comes from.

use std::collections::HashMap;

use sha2::{Digest as _, Sha256};

use super::Conversation;
use super::message::Message;
use super::reply_reader::{self, RecordedReply};
use super::returned_reply::ReplyMatcher;
use crate::session::{Cause, Digest, Fingerprint, HistoryChange, Prefix, ReplyDigests, Session, Turn};
use crate::tokenizer::Renderer;

/// The number of latest turns whose reply may be a summary.
const MAX_SUMMARY_TURNS: usize = 8;

/// The minimum length of a summary in bytes. Shorter texts occur by chance.
const MIN_SUMMARY_BYTES: usize = 32;

/// Detects the change that a call made, from digests of its messages.
#[derive(Debug, Clone)]
pub(super) struct ChangeDetector {
    pub(super) fingerprint: Fingerprint,
    /// The prefixes of the conversation after the leading system messages.
    prefixes: Vec<Prefix>,
}

/// The assistant messages that a prompt contains not as the tokens of the turn that it continues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AssistantMessages(Vec<AssistantMessage>);

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
    /// The message has the key of the turn, or no turn with other tokens has the same text.
    pub(super) is_certain: bool,
    /// The number of turns with these tokens that the message may repeat.
    pub(super) turns: usize,
}

impl AssistantMessages {
    /// Finds the turns of the assistant messages of a request from index `start` on.
    pub(super) fn of(request: &Conversation, start: usize, session: Option<&Session>, renderer: &Renderer) -> Self {
        let messages = request.messages.iter().enumerate().skip(start);
        let messages: Vec<(usize, &Message)> =
            messages.filter(|(_, message)| message.is_assistant() && has_content(message)).collect();
        let Some(session) = session.filter(|_| !messages.is_empty()) else {
            // parsing the replies of a session takes time that grows with the session
            return Self(
                messages
                    .iter()
                    .map(|(at, _)| AssistantMessage { at: *at, turn: None, is_certain: true, turns: 0 })
                    .collect(),
            );
        };
        let matcher = ReplyMatcher::new(request, renderer);
        let digest = |message: &Message| message.standalone_digest(matcher.shows_names);
        let wanted: Vec<ReplyDigests> = messages
            .iter()
            .map(|(_, message)| ReplyDigests { message: digest(message), keys: message.keys().collect() })
            .collect();
        let recorded = |turn: &Turn| {
            let RecordedReply { message, keys } = reply_reader::recorded_reply(renderer, turn)?;
            Some(ReplyDigests { message: digest(&message), keys })
        };
        let found = session.sampled(&wanted, recorded);
        // a request may repeat one key many times
        let mut replies: HashMap<u32, Option<RecordedReply>> = HashMap::new();
        let found = messages.iter().zip(found).map(|(&(at, message), found)| {
            let by_key = found.by_key.filter(|turn| {
                let read = || reply_reader::recorded_reply(renderer, &*session.turn(*turn)?);
                let reply = replies.entry(*turn).or_insert_with(read);
                reply.as_ref().is_some_and(|reply| matcher.changes(message, reply).is_some())
            });
            let is_certain = by_key.is_some() || !found.is_ambiguous;
            let turns = if by_key.is_some() { 1 } else { found.count };
            AssistantMessage { at, turn: by_key.or(found.by_message), is_certain, turns }
        });
        Self(found.collect())
    }

    /// The messages.
    pub(super) fn iter(&self) -> impl Iterator<Item = &AssistantMessage> {
        self.0.iter()
    }

    /// The latest turn of the session that sampled one of the messages.
    pub(super) fn latest_turn(&self) -> Option<u32> {
        self.0.iter().filter_map(|message| message.turn).max()
    }

    /// Whether one of the messages was not sampled in the session.
    pub(super) fn has_foreign(&self) -> bool {
        self.0.iter().any(|message| message.turn.is_none())
    }
}

impl ChangeDetector {
    /// Computes the digests of a request. `tools` is the digest of its tools. `conversations` are the digests of its prefixes, the first of
    /// them without a message.
    pub(super) fn of(request: &Conversation, tools: Digest, conversations: &[Digest]) -> Self {
        let mut state = FingerprintState::new(tools);
        let mut prefixes = Vec::with_capacity(request.messages.len());
        for (message, conversation) in request.messages.iter().zip(&conversations[1..]) {
            state.push(message);
            if !state.is_leading {
                let Fingerprint { body, shape, tool_bytes, .. } = state.fingerprint;
                prefixes.push(Prefix { conversation: *conversation, body, shape, tool_bytes });
            }
        }
        Self { fingerprint: state.fingerprint, prefixes }
    }

    /// The change that the messages show; `None` if they do not show one. `latest_turn` is the latest turn that sampled an assistant
    /// message after the turn that the prompt continues.
    pub(super) fn detect(
        &self,
        messages: &[Message],
        latest_turn: Option<u32>,
        session: &Session,
        renderer: &Renderer,
    ) -> Option<HistoryChange> {
        let change = session.history_change(&self.prefixes, &self.fingerprint, latest_turn.is_some());
        if change.is_some_and(|change| change.cause != Cause::Forks) {
            return change;
        }
        if let Some(summary) = self.summary(messages, latest_turn, session, renderer) {
            return Some(HistoryChange { cause: Cause::Compacted, predecessor: Some(summary) });
        }
        let Some(latest) = latest_turn else { return change };
        let is_shorter = session.turn(latest).is_some_and(|turn| self.is_shorter(&turn));
        let cause = if is_shorter { Cause::Compacted } else { Cause::HistoryEdited };
        Some(HistoryChange { cause, predecessor: Some(latest) })
    }

    /// Whether the call has no more messages than the request that this turn answered. The call repeats the reply of the turn, so messages
    /// were left out.
    fn is_shorter(&self, turn: &Turn) -> bool {
        let before = turn.about.chat.as_ref().and_then(|chat| chat.fingerprint.as_ref());
        before.is_some_and(|before| self.fingerprint.messages <= before.messages)
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
            let Some(before) = turn.about.chat.as_ref().and_then(|chat| chat.fingerprint.as_ref()) else {
                return false;
            };
            let same_tools = before.tools == self.fingerprint.tools || before.tools == tools_digest("");
            if before.system != self.fingerprint.system || !same_tools || !self.is_shorter(turn) {
                return false;
            }
            let reply = reply_reader::recorded_reply(renderer, turn).map(|reply| reply.message);
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
            ..Message::of(role, text.into())
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
            ChangeDetector::of(&request, Digest::of(b"tools"), &conversations).fingerprint
        };
        let whole = fingerprint(&messages);
        for count in 0..=messages.len() {
            let known = Fingerprint { tools: Digest::of(b"other tools"), ..fingerprint(&messages[..count]) };
            assert_eq!(fingerprint_after(&messages, count, &known, Digest::of(b"tools")), whole, "after {count}");
        }
    }
}
