//! An index of a session's conversations by digests. It finds what a later call changed in them.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Cause, Digest, Turn};

/// Digests of the parts of a conversation that clients usually change one at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The leading system messages.
    pub system: Digest,
    /// The tools that the prompt shows.
    pub tools: Digest,
    /// The messages after the leading system messages.
    pub body: Digest,
    /// The messages of `body` without the contents of tool results.
    pub shape: Digest,
    /// Bytes of the tool results.
    pub tool_bytes: u64,
    /// How many messages there are.
    pub messages: u32,
}

/// The beginning of a conversation, up to some message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    /// The digest of all messages and the settings; see [`super::Chat::conversation`].
    pub conversation: Digest,
    /// See [`Fingerprint`].
    pub body: Digest,
    /// See [`Fingerprint`].
    pub shape: Digest,
    /// See [`Fingerprint`].
    pub tool_bytes: u64,
}

/// The turns that answer a conversation, by its digests.
#[derive(Debug, Default)]
pub(super) struct ConversationIndex {
    conversations: HashMap<Digest, Vec<u32>>,
    /// The latest turn with this body.
    bodies: HashMap<Digest, u32>,
    /// The latest turn with this shape.
    shapes: HashMap<Digest, u32>,
}

impl ConversationIndex {
    pub(super) fn insert(&mut self, turn: &Turn) {
        let Some(chat) = &turn.about.chat else { return };
        self.conversations.entry(chat.conversation).or_default().push(turn.id);
        if let Some(fingerprint) = &chat.fingerprint {
            self.bodies.insert(fingerprint.body, turn.id);
            self.shapes.insert(fingerprint.shape, turn.id);
        }
    }

    /// The turns that answer this conversation, in the order of their commits.
    pub(super) fn answers(&self, conversation: Digest) -> &[u32] {
        self.conversations.get(&conversation).map_or(&[], Vec::as_slice)
    }

    /// Which turn a call departs from, and what it changed there. `prefixes` are the beginnings of the call. `edited` is true if the call
    /// holds text that was sampled after the change.
    pub(super) fn departure(
        &self,
        turns: &[std::sync::Arc<Turn>],
        prefixes: &[Prefix],
        call: &Fingerprint,
        edited: bool,
    ) -> Option<Cause> {
        let deepest = |index: &dyn Fn(&Prefix) -> bool| prefixes.iter().rposition(index);
        let same = deepest(&|prefix| self.conversations.contains_key(&prefix.conversation));
        let body = deepest(&|prefix| self.bodies.contains_key(&prefix.body));
        let shape = deepest(&|prefix| self.shapes.contains_key(&prefix.shape));
        let of = |turn: Option<&u32>| turns[*turn? as usize].about.chat.as_ref()?.fingerprint.as_ref();
        if body > same {
            let known = of(self.bodies.get(&prefixes[body?].body))?;
            if known.system != call.system {
                return Some(Cause::SystemChanged);
            }
            if known.tools != call.tools {
                return Some(Cause::ToolsChanged);
            }
        }
        if edited && shape > body.max(same) {
            let at = &prefixes[shape?];
            let cleared = at.tool_bytes < of(self.shapes.get(&at.shape))?.tool_bytes;
            return Some(if cleared { Cause::ToolResultCleared } else { Cause::HistoryEdited });
        }
        same.map(|_| Cause::Forks)
    }
}
