// SPDX-License-Identifier: Apache-2.0
//! An index of a session's replies by the digests of their messages. It shows whether assistant text was sampled in this session.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use crate::session::{Digest, Turn};

/// The digests by which a reply is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyDigests {
    /// The digest of the message.
    pub message: Digest,
    /// The keys that the client got with it.
    pub keys: Vec<Digest>,
    /// The number of messages before it; 0 if that is unknown.
    pub messages: u32,
}

/// The turns that may have sampled a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyTurns {
    /// The latest turn whose reply has the digest of the message.
    pub by_message: Option<u32>,
    /// The latest such turn that has as many messages before its reply.
    pub by_place: Option<u32>,
    /// Several turns with other tokens have the digest of the message. For example, their thoughts differ.
    pub is_ambiguous: bool,
    /// The number of turns whose reply has the digest of the message.
    pub count: usize,
    /// The lowest number of messages before such a reply.
    pub least_messages: u32,
    /// The turn with one of the keys. Its reply may be another message.
    pub by_key: Option<u32>,
}

/// The latest turn that sampled a message.
#[derive(Debug, Clone, Copy)]
struct SampledReply {
    turn: u32,
    /// A hash of its tokens.
    tokens: u64,
    /// The number of turns that sampled the message.
    count: usize,
    /// The lowest number of messages before it.
    least_messages: u32,
    /// An earlier turn sampled the message with other tokens.
    is_ambiguous: bool,
}

/// The index.
#[derive(Debug, Default)]
pub(in crate::session) struct Replies {
    by_message: BTreeMap<Digest, SampledReply>,
    /// The latest turn that sampled a message after this number of messages.
    by_place: BTreeMap<(Digest, u32), u32>,
    by_key: BTreeMap<Digest, u32>,
    /// The number of turns that are indexed, from the first on.
    read: usize,
    hasher: RandomState,
}

impl Replies {
    /// Indexes `turns`, which follow the indexed ones. `digests` computes the digests of a turn's reply.
    pub(in crate::session) fn read(&mut self, turns: &[Arc<Turn>], digests: impl Fn(&Turn) -> Option<ReplyDigests>) {
        self.read += turns.len();
        for turn in turns {
            if let Some(ReplyDigests { message, keys, messages }) = digests(turn) {
                let tokens = self.hasher.hash_one(&turn.response);
                let before = self.by_message.get(&message);
                let is_ambiguous = before.is_some_and(|before| before.is_ambiguous || before.tokens != tokens);
                let count = before.map_or(0, |before| before.count) + 1;
                let least_messages = before.map_or(messages, |before| before.least_messages.min(messages));
                let reply = SampledReply { turn: turn.id, tokens, count, least_messages, is_ambiguous };
                self.by_message.insert(message, reply);
                self.by_place.insert((message, messages), turn.id);
                for key in keys {
                    self.by_key.insert(key, turn.id);
                }
            }
        }
    }

    /// The number of indexed turns.
    pub(in crate::session) fn count(&self) -> usize {
        self.read
    }

    /// The latest turns that sampled a message.
    pub(in crate::session) fn turns_of(&self, reply: &ReplyDigests) -> ReplyTurns {
        let sampled = self.by_message.get(&reply.message);
        ReplyTurns {
            by_message: sampled.map(|sampled| sampled.turn),
            by_place: self.by_place.get(&(reply.message, reply.messages)).copied(),
            count: sampled.map_or(0, |sampled| sampled.count),
            least_messages: sampled.map_or(0, |sampled| sampled.least_messages),
            is_ambiguous: sampled.is_some_and(|sampled| sampled.is_ambiguous),
            by_key: reply.keys.iter().find_map(|key| self.by_key.get(key).copied()),
        }
    }
}
