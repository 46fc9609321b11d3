// SPDX-License-Identifier: Apache-2.0
//! Changes of a session that add no turn: frozen versions, rewards, tags, deleted responses.

use std::sync::Arc;

use serde_json::Value;

use super::Store;
use crate::session::error::SessionError;
use crate::session::ledger::{Ack, Change};
use crate::session::state::{Frozen, Session};
use crate::session::{Reward, RewardScope, Tags, TurnScores};

impl Store {
    /// Freezes a session. Without changes since the last frozen version it has no effect. Returns the last frozen version, and an ack that
    /// resolves when the record is on disk.
    ///
    /// # Errors
    /// [`SessionError::EvictedSession`].
    pub(in crate::session) fn freeze(&self, session: &Arc<Session>) -> Result<(Frozen, Ack), SessionError> {
        let frozen = {
            let mut state = session.state();
            if state.removed {
                return Err(SessionError::EvictedSession);
            }
            let ack = if state.is_frozen() {
                Ack::done()
            } else {
                let turns = state.forest.next_id();
                state.frozen.push(turns);
                // while it is locked, so that versions are in order in the log
                self.log.append(session.record(Change::Freeze { turns }))
            };
            (state.last_frozen(), ack)
        };
        self.finish(session);
        Ok(frozen)
    }

    /// Deletes the stored response of a turn. The turn stays. Returns `None` if the session was removed or the response deleted before.
    pub(in crate::session) fn delete_response(&self, session: &Session, turn: u32) -> Option<Ack> {
        let mut state = session.state();
        let deletes = !state.removed && state.deleted_responses.insert(turn);
        deletes.then(|| self.log.append(session.record(Change::ResponseDeleted { turn })))
    }

    /// Sets a reward of the open version, replacing an earlier one.
    ///
    /// # Errors
    /// When the session is frozen, has no such turn or was removed.
    pub(in crate::session) fn reward(
        &self,
        session: &Session,
        scope: RewardScope,
        value: Value,
    ) -> Result<Ack, SessionError> {
        let reward = Arc::new(value);
        let (bytes, ack) = {
            let mut state = session.state();
            if state.removed {
                return Err(SessionError::EvictedSession);
            }
            let version = state.rewarded_version(scope)?;
            let bytes = state.reward(Reward { version, scope, value: Arc::clone(&reward) });
            (bytes, self.log.append(session.record(Change::Reward { scope, reward, version })))
        };
        self.order().change(bytes);
        Ok(ack)
    }

    /// Replaces the tags.
    ///
    /// # Errors
    /// [`SessionError::TagsFrozen`], [`SessionError::EvictedSession`].
    pub(in crate::session) fn set_tags(&self, session: &Session, tags: &Tags) -> Result<Ack, SessionError> {
        let (bytes, ack) = {
            let mut state = session.state();
            if state.removed {
                return Err(SessionError::EvictedSession);
            }
            if !state.changes_tags(tags)? {
                return Ok(Ack::done());
            }
            (state.set_tags(tags.clone()), self.log.append(session.record(Change::Tags(tags.clone()))))
        };
        self.order().change(bytes);
        Ok(ack)
    }

    /// Adds the scores of turns, also of a frozen session: they do not belong to its versions. They replace earlier ones.
    ///
    /// # Errors
    /// [`SessionError::EvictedSession`], [`SessionError::NoTurn`], [`SessionError::OtherColumns`].
    pub(in crate::session) fn score(&self, session: &Session, scores: &TurnScores) -> Result<Ack, SessionError> {
        let (mut bytes, mut ack) = (0, Ack::done());
        {
            let mut state = session.state();
            if state.removed {
                return Err(SessionError::EvictedSession);
            }
            let numbered = scores.numbered(state.forest.turns(), &state.scores)?;
            for scores in numbered.into_iter().map(Arc::new) {
                bytes += state.score(Arc::clone(&scores));
                // the log writes records in order, so the last one is written after the others
                ack = self.log.append(session.record(Change::Scored(scores)));
            }
        }
        self.order().change(bytes);
        Ok(ack)
    }
}
