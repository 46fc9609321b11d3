// SPDX-License-Identifier: Apache-2.0
//! One running call of a session.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Backend, Sessions};
use crate::session::ledger::Ack;
use crate::session::state::Session;
use crate::session::turn::Draft;
use crate::session::{Tags, Uid};

/// A call. Its session is neither idle nor evicted until the call is dropped. A session that does not exist is created by the first turn,
/// so that a refused call creates none.
#[derive(Debug)]
pub struct Call {
    sessions: Arc<Sessions>,
    id: Arc<str>,
    session: Option<Arc<Session>>,
    /// The number of deletions when the call began, if the sessions are shared.
    deletions: u64,
    done: bool,
    /// Collects the turns of this call.
    turns: Option<Turns>,
    /// The turns that the first turn of this call replaces.
    before: Option<Turns>,
    is_retry: bool,
    /// The tags that the session gets with the first turn.
    tags: Tags,
}

/// Turns of a call, shared by all copies.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    // locked to add or copy ids, never across an await
    uids: Arc<Mutex<Vec<Uid>>>,
}

impl Turns {
    /// Whether no turn was added so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.uids.lock().is_empty()
    }

    fn add(&self, turn: Uid) {
        self.uids.lock().push(turn);
    }

    fn uids(&self) -> Vec<Uid> {
        self.uids.lock().clone()
    }
}

impl Call {
    /// A call of the session `id`.
    #[must_use]
    pub fn new(sessions: Arc<Sessions>, id: Arc<str>) -> Self {
        let (session, deletions) = match sessions.backend() {
            Backend::Local(store) => (store.enter_known(&id), 0),
            Backend::Shared(sharing) => {
                // the session object may be replaced while the call runs
                sharing.store.pending.add(&id);
                (None, sharing.deletions())
            }
        };
        let tags = Tags::default();
        Self { sessions, id, session, deletions, done: false, turns: None, before: None, is_retry: false, tags }
    }

    /// The sessions.
    #[must_use]
    pub fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// The session's name.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Marks the call as the last one of its session.
    pub fn mark_last(&mut self) {
        self.done = true;
    }

    /// Adds tags to those of the session, together with the first turn. They are dropped if a version is frozen by then.
    pub fn set_tags(&mut self, tags: Tags) {
        self.tags = tags;
    }

    /// Adds each later turn to `turns`. The first one supersedes the turns of `before`.
    pub fn track_turns(&mut self, turns: Turns, before: Option<Turns>) {
        (self.turns, self.before) = (Some(turns), before);
    }

    /// Marks the call as a retry whose earlier attempt is unknown to this process. Another process that shares the sessions may have it.
    pub fn mark_retry(&mut self) {
        self.is_retry = true;
    }

    /// Adds a turn and returns its number, or `None` if the session was deleted in the meantime. The turn is in memory when this
    /// returns, and in the log when the ack resolves. Of shared sessions the number is known only when the ack resolves, so it is `None`.
    #[must_use]
    pub fn commit(&mut self, mut draft: Draft) -> (Option<u32>, Ack) {
        if let Some(before) = self.before.take() {
            draft.supersedes = before.uids();
        }
        let uid = Uid::unique();
        draft.about.uid = uid;
        draft.about.tags = std::mem::take(&mut self.tags);
        match self.sessions.backend() {
            Backend::Local(store) => {
                let session = self.session.get_or_insert_with(|| {
                    let session = store.enter(&self.id);
                    store.pending.remove(&self.id);
                    session
                });
                let (turn, ack) = store.commit(session, draft);
                if let (Some(_), Some(turns)) = (turn, &self.turns) {
                    turns.add(uid);
                }
                (turn, ack)
            }
            Backend::Shared(sharing) => {
                draft.is_retry = self.is_retry;
                if let Some(turns) = &self.turns {
                    turns.add(uid);
                }
                (None, sharing.commit(&self.id, draft, self.deletions))
            }
        }
    }

    /// Marks the session as incomplete: a generation was not recorded.
    pub fn mark_incomplete(&self) {
        self.sessions.mark_incomplete(&self.id);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match (self.sessions.backend(), &self.session) {
            (Backend::Local(store), Some(session)) => store.leave(session, self.done),
            (Backend::Local(store), None) => store.pending.remove(&self.id),
            (Backend::Shared(sharing), _) => {
                if self.done {
                    sharing.finish_last(&self.id);
                }
                sharing.store.evict_soon();
                sharing.store.pending.remove(&self.id);
            }
        }
    }
}
