//! Changes of a session that add no turn: frozen versions, rewards, deleted responses.

use std::sync::Arc;

use serde_json::Value;

use super::Store;
use crate::session::ledger::{Ack, Change};
use crate::session::state::{Frozen, Session, SessionError};

impl Store {
    /// Freezes a session. Returns the last frozen version, and an ack that resolves when the record is on disk.
    ///
    /// # Errors
    /// [`SessionError::EvictedSession`].
    pub(in crate::session) fn freeze(&self, session: &Arc<Session>) -> Result<(Frozen, Ack), SessionError> {
        let record = |turns| self.log.append(session.record(Change::Freeze { turns }));
        let (frozen, ack) = session.freeze(record)?;
        self.finish(session);
        Ok((frozen, ack.unwrap_or_else(Ack::done)))
    }

    /// Deletes the stored response of a turn. The turn stays. Returns `None` if the session was removed or the response deleted before.
    pub(in crate::session) fn delete_response(&self, session: &Session, turn: u32) -> Option<Ack> {
        let mut state = session.state();
        let deletes = !state.removed && state.deleted_responses.insert(turn);
        deletes.then(|| self.log.append(session.record(Change::ResponseDeleted { turn })))
    }

    /// Attaches a reward.
    ///
    /// # Errors
    /// When the session is frozen, or has no such turn.
    pub(in crate::session) fn reward(
        &self,
        session: &Session,
        leaf: Option<u32>,
        value: Value,
    ) -> Result<Ack, SessionError> {
        let record = |version, reward| self.log.append(session.record(Change::Reward { leaf, reward, version }));
        let (bytes, ack) = session.reward(leaf, Arc::new(value), record)?;
        self.order().change(bytes);
        Ok(ack)
    }
}
