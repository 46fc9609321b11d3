//! One running call of a session.

use std::sync::{Arc, Mutex, PoisonError};

use super::ledger::Ack;
use super::state::Session;
use super::store::Store;
use super::turn::Draft;

/// A call. Its session is neither idle nor evicted until the call is dropped. A session that does not exist is created by the first turn,
/// so that a refused call creates none.
#[derive(Debug)]
pub struct Call {
    store: Arc<Store>,
    id: Arc<str>,
    session: Option<Arc<Session>>,
    done: bool,
    /// Collects the turns of this call.
    turns: Option<Turns>,
    /// The turns that the first turn of this call replaces.
    before: Option<Turns>,
}

/// Turns of a call, shared by all copies. Their numbers are not valid in a later session of the same name, so each one is stored
/// with the number of its session.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    // locked to add or copy numbers, never across an await
    ids: Arc<Mutex<Vec<(u64, u32)>>>,
}

impl Turns {
    /// Whether no turn was added so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn add(&self, session: &Session, turn: u32) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push((session.number, turn));
    }

    fn of(&self, session: &Session) -> Vec<u32> {
        let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.iter().filter(|(number, _)| *number == session.number).map(|(_, turn)| *turn).collect()
    }
}

impl Call {
    /// A call of the session `id`.
    #[must_use]
    pub fn new(store: Arc<Store>, id: Arc<str>) -> Self {
        let session = store.enter_known(&id);
        Self { store, id, session, done: false, turns: None, before: None }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
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

    /// Adds each later turn to `turns`. The first one supersedes the turns of `before`.
    pub fn track_turns(&mut self, turns: Turns, before: Option<Turns>) {
        (self.turns, self.before) = (Some(turns), before);
    }

    /// Adds a turn and returns its number, or `None` if the session was deleted in the meantime. The turn is in the store when this
    /// returns, and in the log when the ack resolves.
    #[must_use]
    pub fn commit(&mut self, mut draft: Draft) -> (Option<u32>, Ack) {
        let session = self.session.get_or_insert_with(|| {
            let session = self.store.enter(&self.id);
            self.store.end_pending(&self.id);
            session
        });
        if let Some(before) = self.before.take() {
            draft.about.supersedes = before.of(session);
        }
        let (turn, ack) = self.store.commit(session, draft);
        if let (Some(turn), Some(turns)) = (turn, &self.turns) {
            turns.add(session, turn);
        }
        (turn, ack)
    }

    /// Marks the session as incomplete: a generation was not recorded.
    pub fn mark_incomplete(&self) {
        self.store.mark_incomplete(&self.id);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match &self.session {
            Some(session) => self.store.leave(session, self.done),
            None => self.store.end_pending(&self.id),
        }
    }
}
