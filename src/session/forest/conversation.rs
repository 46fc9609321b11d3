// SPDX-License-Identifier: Apache-2.0
//! An index of the conversations of a session by their digests. It detects how a later call changed an earlier conversation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::session::{Cause, Digest, Fault, Turn};

/// The most turns that [`ConversationIndex::answers`] returns. More replies to one conversation are not compared with the reply that a
/// client repeats.
const ANSWERS: usize = 64;

/// Digests of the parts of a conversation that clients usually change one at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The leading system messages.
    pub system: Digest,
    /// The tools in the prompt.
    pub tools: Digest,
    /// The messages after the leading system messages.
    pub body: Digest,
    /// The messages of `body` without the contents of tool results.
    pub shape: Digest,
    /// The bytes of the texts of all tool results.
    pub tool_bytes: u64,
    /// The number of messages.
    pub messages: u32,
}

/// A prefix of a conversation, up to some message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    /// The digest of its messages, the tools and the variables of the template; see [`crate::session::Chat::conversation`].
    pub conversation: Digest,
    /// See [`Fingerprint`].
    pub body: Digest,
    /// See [`Fingerprint`].
    pub shape: Digest,
    /// See [`Fingerprint`].
    pub tool_bytes: u64,
}

/// A change that a call made to an earlier conversation of its session, if no call made it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryChange {
    /// The kind of the change.
    pub cause: Cause,
    /// The latest turn of the conversation that it changed, if that is known. For [`Cause::ResponseEdited`] the turn that sampled the
    /// response.
    pub turn: Option<u32>,
}

/// The turns that answer a conversation, by its digests.
#[derive(Debug, Default)]
pub(in crate::session) struct ConversationIndex {
    conversations: BTreeMap<Digest, Answers>,
    /// The latest turn with each body.
    bodies: BTreeMap<Digest, u32>,
    /// The latest turn with each system prompt and body.
    instructed: BTreeMap<(Digest, Digest), u32>,
}

/// The turns that answer one conversation, in commit order.
#[derive(Debug, Default)]
struct Answers {
    trainable: Vec<u32>,
    /// The other turns with a place and sampled tokens.
    others: Vec<u32>,
}

impl Answers {
    const NONE: Self = Self { trainable: Vec::new(), others: Vec::new() };
}

impl ConversationIndex {
    /// Adds a turn. A turn without a chat is ignored.
    pub(in crate::session) fn insert(&mut self, turn: &Turn) {
        let Some(chat) = &turn.about.chat else { return };
        let answers = self.conversations.entry(chat.conversation).or_default();
        match turn.about.fault {
            _ if turn.about.cause == Cause::Unplaced => {}
            None if turn.is_trainable() => answers.trainable.push(turn.id),
            fault if fault.is_none_or(Fault::has_sampled_tokens) => answers.others.push(turn.id),
            _ => {}
        }
        let Fingerprint { system, body, .. } = chat.fingerprint;
        self.bodies.insert(body, turn.id);
        self.instructed.insert((system, body), turn.id);
    }

    /// The turns that answer this conversation: the latest trainable ones, then the latest others with sampled tokens, at most 64.
    pub(in crate::session) fn answers(&self, conversation: Digest) -> impl Iterator<Item = u32> + '_ {
        let Answers { trainable, others } = self.conversations.get(&conversation).unwrap_or(const { &Answers::NONE });
        trainable.iter().rev().chain(others.iter().rev()).copied().take(ANSWERS)
    }

    /// How a call differs from the recorded conversations of which it repeats the most messages; `None` if it repeats none. `prefixes` are
    /// the prefixes of the call. `continues` is true if it continues a turn, and with it the tools in that turn's prompt.
    pub(in crate::session) fn history_change(
        &self,
        turns: &[std::sync::Arc<Turn>],
        prefixes: &[Prefix],
        call: &Fingerprint,
        continues: bool,
    ) -> Option<HistoryChange> {
        let deepest = |index: &dyn Fn(&Prefix) -> bool| prefixes.iter().rposition(index);
        let same = deepest(&|prefix| self.conversations.contains_key(&prefix.conversation));
        let body = deepest(&|prefix| self.bodies.contains_key(&prefix.body));
        let forks = same.map(|_| HistoryChange { cause: Cause::Forks, turn: None });
        let Some(at) = body.filter(|at| Some(*at) >= same) else { return forks };
        let body = prefixes[at].body;
        let turn = self.instructed.get(&(call.system, body)).or(self.bodies.get(&body)).copied();
        let recorded = &turns[turn? as usize].about.chat.as_ref()?.fingerprint;
        let cause = match recorded {
            recorded if recorded.system != call.system => Cause::SystemChanged,
            recorded if recorded.tools != call.tools && !continues => Cause::ToolsChanged,
            _ if Some(at) == same => return forks,
            // the variables of the template differ
            _ => Cause::HistoryEdited,
        };
        Some(HistoryChange { cause, turn })
    }
}
