// SPDX-License-Identifier: Apache-2.0
//! Changes of a session that add no turn: rewards, scores, tags.

use std::sync::Arc;

use super::State;
use crate::session::{Reward, RewardScope, Scores, SessionError, Tags};

impl State {
    /// The version that a reward belongs to.
    ///
    /// # Errors
    /// When the session is frozen, or has no such turn.
    pub(in crate::session) fn rewarded_version(&self, scope: RewardScope) -> Result<u32, SessionError> {
        if self.is_frozen() {
            return Err(SessionError::Frozen);
        }
        if scope.turn().is_some_and(|turn| turn >= self.forest.next_id()) {
            return Err(SessionError::NoTurn(self.forest.next_id()));
        }
        Ok(self.open_version())
    }

    /// Sets the reward of a scope and version. Returns the bytes by which the session grows.
    pub(in crate::session) fn reward(&mut self, reward: Reward) -> i64 {
        let new = reward.bytes();
        self.exported.take();
        let before = self.rewards.set(reward).map_or(0, |before| before.bytes());
        self.bytes = (self.bytes + new).saturating_sub(before);
        i64::try_from(new).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
    }

    /// Sets the scores of a turn by a teacher. Returns the bytes by which the session grows.
    pub(in crate::session) fn score(&mut self, scores: Arc<Scores>) -> i64 {
        let new = scores.bytes();
        let before = self.scores.set(scores).map_or(0, |before| before.bytes());
        self.bytes = (self.bytes + new).saturating_sub(before);
        i64::try_from(new).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
    }

    /// Whether the tags would change. They are final once a version is frozen, so that its exports stay the same.
    ///
    /// # Errors
    /// [`SessionError::TagsFrozen`].
    pub(in crate::session) fn changes_tags(&self, tags: &Tags) -> Result<bool, SessionError> {
        match self.tags != *tags {
            true if !self.frozen.is_empty() => Err(SessionError::TagsFrozen),
            changes => Ok(changes),
        }
    }

    /// Checks that a call may set these tags.
    ///
    /// # Errors
    /// [`SessionError::TagsFrozen`], [`SessionError::TooManyTags`].
    pub(in crate::session) fn check_call_tags(&self, tags: &Tags) -> Result<(), SessionError> {
        if !self.tags.lacks(tags) {
            Ok(())
        } else if !self.frozen.is_empty() {
            Err(SessionError::TagsFrozen)
        } else if !self.tags.has_room_for(tags) {
            Err(SessionError::TooManyTags(self.tags.len()))
        } else {
            Ok(())
        }
    }

    /// Replaces all tags. Returns the bytes by which the session grows.
    pub(in crate::session) fn set_tags(&mut self, tags: Tags) -> i64 {
        let (new, before) = (tags.bytes() as u64, self.tags.bytes() as u64);
        self.tags = tags;
        self.bytes = (self.bytes + new).saturating_sub(before);
        i64::try_from(new).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
    }
}
