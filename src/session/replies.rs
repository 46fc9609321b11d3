//! An index of a session's replies by the digests of their messages. It shows whether assistant text was sampled in this session.

use std::sync::Arc;

use super::incremental_map::IncrementalMap;
use super::{Digest, Turn};

/// The digests by which a reply is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyDigests {
    /// The digest of the message.
    pub message: Digest,
    /// The digest of the key that the client got with it.
    pub key: Option<Digest>,
}

/// The turns that may have sampled a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyTurns {
    /// The latest turn whose reply has the digest of the message.
    pub by_message: Option<u32>,
    /// The turn with the key. Its reply may be another message.
    pub by_key: Option<u32>,
}

/// The index.
#[derive(Debug, Default)]
pub(super) struct Replies {
    by_message: IncrementalMap<Digest, u32>,
    by_key: IncrementalMap<Digest, u32>,
    /// The number of turns that are indexed, from the first on.
    read: usize,
}

impl Replies {
    /// Indexes `turns`, which follow the indexed ones. `digests` computes the digests of a turn's reply.
    pub(super) fn read(&mut self, turns: &[Arc<Turn>], digests: impl Fn(&Turn) -> Option<ReplyDigests>) {
        self.read += turns.len();
        for turn in turns {
            if let Some(ReplyDigests { message, key }) = digests(turn) {
                self.by_message.insert(message, turn.id);
                if let Some(key) = key {
                    self.by_key.insert(key, turn.id);
                }
            }
        }
    }

    /// The number of indexed turns.
    pub(super) fn count(&self) -> usize {
        self.read
    }

    /// The latest turns that sampled a message.
    pub(super) fn turns_of(&self, reply: &ReplyDigests) -> ReplyTurns {
        let by_message = self.by_message.get(&reply.message).copied();
        ReplyTurns { by_message, by_key: reply.key.and_then(|key| self.by_key.get(&key).copied()) }
    }
}
