//! The replies of a session by the digests of their messages: whether the text of an assistant was sampled here.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Digest, Turn};

/// Replies that have been read.
#[derive(Debug, Default)]
pub(super) struct Replies {
    of: HashMap<Digest, u32>,
    /// Turns that have been read, from the first.
    read: usize,
}

impl Replies {
    /// Reads the turns that were not read yet. `digest` reads the reply of a turn.
    pub(super) fn read(&mut self, turns: &[Arc<Turn>], digest: impl Fn(&Turn) -> Option<Digest>) {
        self.read += turns.len();
        for turn in turns {
            if let Some(digest) = digest(turn) {
                self.of.insert(digest, turn.id);
            }
        }
    }

    /// How many turns have been read.
    pub(super) fn count(&self) -> usize {
        self.read
    }

    /// The latest turn that sampled a message.
    pub(super) fn turn_of(&self, message: &Digest) -> Option<u32> {
        self.of.get(message).copied()
    }
}
