//! An index of a session's replies by the digests of their messages. It shows whether assistant text was sampled in this session.

use std::sync::Arc;

use super::incremental_map::IncrementalMap;
use super::{Digest, Turn};

/// The index.
#[derive(Debug, Default)]
pub(super) struct Replies {
    of: IncrementalMap<Digest, u32>,
    /// The number of turns that are indexed, from the first on.
    read: usize,
}

impl Replies {
    /// Indexes `turns`, which follow the indexed ones. `digest` computes the digest of a turn's reply.
    pub(super) fn read(&mut self, turns: &[Arc<Turn>], digest: impl Fn(&Turn) -> Option<Digest>) {
        self.read += turns.len();
        for turn in turns {
            if let Some(digest) = digest(turn) {
                self.of.insert(digest, turn.id);
            }
        }
    }

    /// The number of indexed turns.
    pub(super) fn count(&self) -> usize {
        self.read
    }

    /// The latest turn that sampled a message.
    pub(super) fn turn_of(&self, message: &Digest) -> Option<u32> {
        self.of.get(message).copied()
    }
}
