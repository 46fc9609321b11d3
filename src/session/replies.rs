//! The replies of a session by the digests of their messages: whether the text of an assistant was sampled here.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, TryLockError};

use super::state::Session;
use super::{Cause, Digest, Fingerprint, Prefix, Turn};

/// Replies that have been read.
#[derive(Debug, Default)]
pub(super) struct Replies {
    of: HashMap<Digest, u32>,
    /// Turns that have been read, from the first.
    read: usize,
}

impl Session {
    /// The latest turn that sampled each of these messages. `digest` reads the reply of a turn; each turn is read once.
    pub fn sampled(&self, messages: &[Digest], digest: impl Fn(&Turn) -> Option<Digest>) -> Vec<Option<u32>> {
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<Arc<Turn>> = self.state().forest.turns()[replies.read..].to_vec();
        replies.read += new.len();
        for turn in new {
            if let Some(digest) = digest(&turn) {
                replies.of.insert(digest, turn.id);
            }
        }
        messages.iter().map(|message| replies.of.get(message).copied()).collect()
    }

    /// How many turns [`Session::sampled`] would read first; as many as there can be where it is reading on another thread.
    #[must_use]
    pub fn unread_replies(&self) -> usize {
        let read = match self.replies.try_lock() {
            Ok(replies) => replies.read,
            Err(TryLockError::Poisoned(replies)) => replies.into_inner().read,
            Err(TryLockError::WouldBlock) => return usize::MAX,
        };
        self.state().forest.turns().len().saturating_sub(read)
    }

    /// The turn with this number.
    #[must_use]
    pub fn turn(&self, id: u32) -> Option<Arc<Turn>> {
        self.state().forest.turns().get(id as usize).map(Arc::clone)
    }

    /// The latest turns, at most `count`, the latest first.
    #[must_use]
    pub fn latest(&self, count: usize) -> Vec<Arc<Turn>> {
        self.state().forest.turns().iter().rev().take(count).map(Arc::clone).collect()
    }

    /// What a call changed in the conversations of the session; see [`Prefix`].
    #[must_use]
    pub fn departure(&self, prefixes: &[Prefix], call: &Fingerprint, edited: bool) -> Option<Cause> {
        self.state().forest.departure(prefixes, call, edited)
    }
}

#[cfg(test)]
mod tests {
    use crate::session::tests::{BOUNDLESS, store, turn};

    #[tokio::test]
    async fn replies_are_unread_until_they_are_asked_for_and_while_they_are_read() {
        let store = store(BOUNDLESS);
        for id in 0..3 {
            turn(&store, "s", &[1, id], &[2]);
        }
        let session = store.session("s").expect("it has turns");
        assert_eq!(session.unread_replies(), 3);
        session.sampled(&[], |_| {
            assert_eq!(session.unread_replies(), usize::MAX, "another call would wait");
            None
        });
        assert_eq!(session.unread_replies(), 0);
    }
}
