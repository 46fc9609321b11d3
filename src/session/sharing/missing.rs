// SPDX-License-Identifier: Apache-2.0
//! Missing changes: neither the ledger nor the session in memory has them. They are appended later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Sharing;
use super::list_cache::CachedChange;
use crate::session::ledger::Change;
use crate::session::state::Session;
use crate::session::store::now_ms;
use crate::session::{Cause, Draft, PromptImages, RewardScope, Scores, Tags, Turn, TurnMetadata, Uid};

/// A missing change.
#[derive(Debug)]
pub(super) struct Missing {
    pub uid: Uid,
    /// When it was recorded. The session may have been deleted since.
    pub at: Instant,
    pub change: MissingChange,
    /// Counts its bytes while it exists.
    _counted: CountedBytes,
}

/// Bytes that are a part of a sum until it is dropped.
#[derive(Debug)]
struct CountedBytes {
    bytes: u64,
    sum: Arc<AtomicU64>,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The change, in terms that do not depend on the numbers of turns.
#[derive(Debug)]
pub(super) enum MissingChange {
    Healed,
    Turn(Box<Draft>),
    Reward { scope: RewardScope<Uid>, value: Arc<serde_json::Value> },
    Incomplete,
    ResponseDeleted(Uid),
    Scored(Uid, Arc<Scores>),
    Tags(Tags),
    Finished(Uid),
}

impl Missing {
    /// Its bytes are added to `sum` until it is dropped.
    pub(super) fn new(uid: Uid, at: Instant, change: MissingChange, sum: &Arc<AtomicU64>) -> Self {
        let own = match &change {
            MissingChange::Turn(draft) => draft.bytes(),
            MissingChange::Scored(_, scores) => scores.bytes(),
            _ => 0,
        };
        let bytes = size_of::<Self>() as u64 + own;
        sum.fetch_add(bytes, Ordering::Relaxed);
        Self { uid, at, change, _counted: CountedBytes { bytes, sum: Arc::clone(sum) } }
    }

    /// A turn of the local log, which has its whole prompt.
    pub(super) fn turn(turn: Arc<Turn>, sum: &Arc<AtomicU64>) -> Self {
        let turn = Arc::unwrap_or_clone(turn);
        let (uid, at) = (turn.about.uid, recorded_at(&turn.about));
        let prompt = (turn.about.cause != Cause::Unplaced).then(|| Arc::clone(&turn.prompt));
        let images = turn.about.images.clone();
        Self::new(uid, at, MissingChange::Turn(Box::new(turn.into_draft(prompt, images))), sum)
    }
}

impl Sharing {
    /// A change in terms that do not depend on the numbers of turns. `None` for a frozen version: its number of turns means other turns in
    /// another order.
    pub(super) fn missing_change(&self, session: &Session, change: &CachedChange) -> Option<MissingChange> {
        let uid = |turn: u32| session.turn(turn).map(|turn| turn.about.uid);
        Some(match change {
            CachedChange::Turn(id) => MissingChange::Turn(Box::new(session.draft(*id)?)),
            CachedChange::Other(change) => match &**change {
                Change::Reward { scope, reward, .. } => {
                    MissingChange::Reward { scope: scope.rename(uid)?, value: Arc::clone(reward) }
                }
                Change::Incomplete => MissingChange::Incomplete,
                Change::ResponseDeleted { turn } => MissingChange::ResponseDeleted(uid(*turn)?),
                Change::Scored(scores) => MissingChange::Scored(uid(scores.turn)?, Arc::clone(scores)),
                Change::Tags(tags) => MissingChange::Tags(tags.clone()),
                Change::Finished { leaf, .. } => MissingChange::Finished(uid(*leaf)?),
                Change::Healed => MissingChange::Healed,
                _ => return None,
            },
        })
    }
}

/// When a turn of a local log was recorded, by the clock of this process.
pub(super) fn recorded_at(about: &TurnMetadata) -> Instant {
    let age = now_ms().saturating_sub(about.started_ms.saturating_add(about.elapsed_ms));
    let now = Instant::now();
    now.checked_sub(Duration::from_millis(age)).unwrap_or(now)
}

impl Session {
    /// A turn as a draft that can be placed elsewhere. `None` if the turn does not exist.
    pub(super) fn draft(&self, id: u32) -> Option<Draft> {
        let turn = self.turn(id)?;
        let prompt = (turn.about.cause != Cause::Unplaced).then(|| {
            let mut prompt = turn.parent.map(|parent| self.tokens(parent)).unwrap_or_default();
            prompt.extend_from_slice(&turn.prompt);
            Arc::<[u32]>::from(prompt)
        });
        let images = prompt.as_deref().and_then(|prompt| PromptImages::of_path(&self.path(id), prompt));
        let mut draft = Arc::unwrap_or_clone(turn).into_draft(prompt, images);
        let replaced = std::mem::take(&mut draft.about.supersedes);
        draft.supersedes = replaced.into_iter().filter_map(|turn| Some(self.turn(turn)?.about.uid)).collect();
        Some(draft)
    }
}
