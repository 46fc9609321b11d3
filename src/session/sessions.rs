// SPDX-License-Identifier: Apache-2.0
//! The sessions of a process, or of all processes that share a ledger: the only door to them.

mod call;
mod finished;
mod list;

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::broadcast;

use super::error::SessionError;
use super::ledger::{Ack, Health, LedgerError, LogRecord, RecordLog, RecordLogStats, SharedLog};
use super::scores::TurnScores;
use super::sharing::{SharedLedger, Sharing, SharingCounts};
use super::state::{Frozen, Session};
use super::store::{CommittedTurn, EvictedSession, NoObserver, Store, StoreLimits, StoreObserver};
use super::{RewardTarget, Tags, is_name};
use crate::long_work::offload;
pub use call::{Call, Turns};
pub use finished::{
    FinishedCursor, FinishedError, FinishedItem, FinishedLimits, FinishedList, FinishedPartitions, ListedPath, NoPath,
};
pub use list::{ListCursor, ListError, ListQuery, ListScope, ListedPage, ListedSession};

/// Sessions. Callers need not know whether other processes share them.
#[derive(Debug)]
pub struct Sessions {
    backend: Backend,
}

/// Where the sessions are stored.
#[derive(Debug)]
pub(super) enum Backend {
    /// In this process.
    Local(Arc<Store>),
    /// In a ledger that other processes use as well; this process caches them.
    Shared(Arc<Sharing>),
}

/// The status of the ledger, as this process observes it.
#[derive(Debug, Clone, Copy)]
pub struct LedgerStatus<'a> {
    /// Counts since the start.
    pub counts: &'a SharingCounts,
    /// Whether the ledger fails now.
    pub is_down: bool,
    /// Bytes of the sessions with changes that are not in the ledger yet, and of the changes that are not in a session.
    pub detached_bytes: u64,
}

impl Sessions {
    /// Empty sessions without a log.
    #[must_use]
    pub fn new(limits: StoreLimits) -> Self {
        Self::local(limits, SharedLog::default(), Arc::new(NoObserver))
    }

    /// Empty sessions of this process, with its log.
    #[must_use]
    pub fn local(limits: StoreLimits, log: SharedLog, observer: Arc<dyn StoreObserver>) -> Self {
        Self { backend: Backend::Local(Arc::new(Store::new(limits, log, observer))) }
    }

    /// Sessions of a ledger. The log has the turns that the ledger lacks.
    #[must_use]
    pub fn shared(limits: StoreLimits, log: SharedLog, observer: Arc<dyn StoreObserver>, ledger: SharedLedger) -> Self {
        let store = Arc::new(Store::cache(limits, log, observer));
        Self { backend: Backend::Shared(Arc::new(Sharing::new(store, ledger))) }
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// The sessions in memory.
    pub(super) fn memory(&self) -> &Arc<Store> {
        match &self.backend {
            Backend::Local(store) => store,
            Backend::Shared(sharing) => &sharing.store,
        }
    }

    /// The session with this name, if it is in memory.
    #[must_use]
    pub fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.memory().session(id)
    }

    /// All sessions in memory, in the order of their creation.
    #[must_use]
    pub fn in_memory(&self) -> Vec<Arc<Session>> {
        let mut sessions = Vec::new();
        self.memory().for_each(|session| sessions.push(session));
        sessions
    }

    /// The numbers of sessions and bytes in memory.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        self.memory().size()
    }

    /// Evicted sessions, the latest last. Older ones are only counted.
    #[must_use]
    pub fn evicted(&self) -> Vec<EvictedSession> {
        self.memory().evicted()
    }

    /// The eviction of a session, if it is remembered.
    #[must_use]
    pub fn eviction_of(&self, id: &str) -> Option<EvictedSession> {
        self.memory().eviction_of(id)
    }

    /// The generation of the numbers of a session's turns; `None` if the numbers never change.
    #[must_use]
    pub fn generation_of(&self, session: &Session) -> Option<u32> {
        match &self.backend {
            Backend::Local(_) => None,
            Backend::Shared(_) => Some(session.generation()),
        }
    }

    /// Reads the entries that other processes have appended to these sessions.
    ///
    /// # Errors
    /// When the ledger fails. The sessions in memory may be outdated then.
    pub async fn refresh(&self, names: impl IntoIterator<Item: AsRef<str>>) -> Result<(), LedgerError> {
        let Backend::Shared(sharing) = &self.backend else { return Ok(()) };
        for name in names {
            if is_name(name.as_ref()) {
                sharing.refresh(&name.as_ref().into()).await?;
                sharing.check_spilled(name.as_ref())?;
            }
        }
        Ok(())
    }

    /// The same for the session of an agent's call.
    ///
    /// # Errors
    /// When the ledger fails, or pictures take long. The session in memory may be outdated then.
    pub(crate) async fn refresh_for_call(&self, name: &str) -> Result<(), LedgerError> {
        match &self.backend {
            Backend::Shared(sharing) if is_name(name) => sharing.refresh_for_call(&name.into()).await,
            _ => Ok(()),
        }
    }

    /// Freezes the open version of a session and publishes its paths. Freezing again without changes has no effect.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::EvictedSession`], [`SessionError::Unconfirmed`].
    pub async fn freeze(&self, name: &str) -> Result<(Frozen, Ack), SessionError> {
        match &self.backend {
            Backend::Local(store) => {
                let session = self.existing(name)?;
                let store = Arc::clone(store);
                offload(move || store.freeze(&session)).await
            }
            Backend::Shared(sharing) => {
                let frozen = sharing.freeze(&name.into()).await;
                Ok((frozen.map_err(|error| self.unknown_or(name, error))?, Ack::done()))
            }
        }
    }

    /// Attaches a reward. Returns the session.
    ///
    /// # Errors
    /// When the session is unknown or frozen, has no such turn or was removed, or the ledger did not confirm the reward.
    pub async fn reward(
        &self,
        name: &str,
        target: RewardTarget,
        value: Value,
    ) -> Result<(Arc<Session>, Ack), SessionError> {
        match &self.backend {
            Backend::Local(_) if target.generation.is_some() => Err(SessionError::NoGenerations),
            Backend::Local(store) => {
                let session = self.existing(name)?;
                let ack = store.reward(&session, target.scope, value)?;
                Ok((session, ack))
            }
            Backend::Shared(sharing) => {
                let set = sharing.reward(&name.into(), target, value).await;
                set.map_err(|error| self.unknown_or(name, error))?;
                Ok((self.existing(name)?, Ack::done()))
            }
        }
    }

    /// Replaces the tags of a session. Setting those that it has changes nothing, also after a freeze.
    ///
    /// # Errors
    /// When the session is unknown or was removed, has a frozen version, or the ledger did not confirm the tags.
    pub async fn set_tags(&self, name: &str, tags: &Tags) -> Result<Ack, SessionError> {
        match &self.backend {
            Backend::Local(store) => store.set_tags(&*self.existing(name)?, tags),
            Backend::Shared(sharing) => {
                let set = sharing.set_tags(&name.into(), tags).await;
                set.map_err(|error| self.unknown_or(name, error))?;
                Ok(Ack::done())
            }
        }
    }

    /// Checks that a call may add these tags to a session. Unless the session in memory has them, the shared ledger is read first; if the
    /// ledger fails, the session in memory decides.
    ///
    /// # Errors
    /// [`SessionError::TagsFrozen`], [`SessionError::TooManyTags`].
    pub async fn check_call_tags(&self, name: &str, tags: &Tags) -> Result<(), SessionError> {
        let lacks_tags = || self.session(name).is_none_or(|session| session.state().tags.lacks(tags));
        if let Backend::Shared(sharing) = &self.backend
            && lacks_tags()
            && let Err(error) = sharing.refresh_turns(&name.into()).await
        {
            tracing::debug!(session = name, %error, "tags are checked without the ledger");
        }
        self.session(name).map_or(Ok(()), |session| session.state().check_call_tags(tags))
    }

    /// The bytes of the scores of one call that the shared ledger is expected to confirm in time; `None` without a ledger.
    #[must_use]
    pub fn most_score_bytes(&self) -> Option<u64> {
        match &self.backend {
            Backend::Local(_) => None,
            Backend::Shared(sharing) => Some(sharing.most_bytes()),
        }
    }

    /// Adds what a teacher gives for the sampled tokens of turns, also to a frozen session. They replace earlier ones of the
    /// same teacher.
    ///
    /// # Errors
    /// When the session is unknown or was removed, has no such turn, the ledger did not confirm the scores, or the earlier ones have a
    /// column that these lack: [`SessionError::OtherColumns`].
    pub async fn score(&self, name: &str, scores: &TurnScores) -> Result<Ack, SessionError> {
        match &self.backend {
            Backend::Local(store) => store.score(&*self.existing(name)?, scores),
            Backend::Shared(sharing) => {
                let set = sharing.score(&name.into(), scores).await;
                set.map_err(|error| self.unknown_or(name, error))?;
                Ok(Ack::done())
            }
        }
    }

    /// Deletes a session.
    ///
    /// # Errors
    /// [`SessionError::Unknown`], [`SessionError::Unconfirmed`].
    pub async fn delete(&self, name: &str) -> Result<Ack, SessionError> {
        match &self.backend {
            Backend::Local(store) => {
                self.existing(name)?;
                let (store, name) = (Arc::clone(store), name.to_owned());
                // another call may have deleted it in the meantime
                Ok(offload(move || store.delete(&name)).await.unwrap_or_else(Ack::done))
            }
            Backend::Shared(sharing) => {
                let existed = sharing.delete(&name.into()).await?;
                if existed { Ok(Ack::done()) } else { Err(SessionError::Unknown) }
            }
        }
    }

    /// Deletes the stored response of a turn. The turn stays. Returns `None` if the session was removed or the response deleted before.
    #[must_use]
    pub fn delete_response(&self, session: &Session, turn: u32) -> Option<Ack> {
        match &self.backend {
            Backend::Local(store) => store.delete_response(session, turn),
            Backend::Shared(sharing) => {
                let found = session.turn(turn).filter(|turn| !session.state().deleted_responses.contains(&turn.id));
                Some(sharing.delete_response(&session.id, found?.about.uid))
            }
        }
    }

    /// Marks a session as incomplete: a generation was not recorded.
    pub fn mark_incomplete(&self, id: &Arc<str>) {
        match &self.backend {
            Backend::Local(store) => store.mark_incomplete(id),
            Backend::Shared(sharing) => sharing.mark_incomplete(id),
        }
    }

    fn existing(&self, name: &str) -> Result<Arc<Session>, SessionError> {
        self.session(name).ok_or(SessionError::Unknown)
    }

    /// The error of a change of a shared session. A name that is in no list is unknown.
    fn unknown_or(&self, name: &str, error: SessionError) -> SessionError {
        match error {
            SessionError::EvictedSession if self.session(name).is_none() => SessionError::Unknown,
            error => error,
        }
    }

    /// Receives each turn of this process from now on. A receiver that is more than 1,024 turns behind misses some and gets their number.
    #[must_use]
    pub fn watch_turns(&self) -> broadcast::Receiver<CommittedTurn> {
        self.memory().feed.watch_turns()
    }

    /// Publishes the paths of idle sessions of this process, and evicts sessions from memory. Blocks for long if there are many sessions, so
    /// it must not run on a task.
    pub fn sweep(&self) {
        self.memory().sweep();
    }

    /// Runs the background work on shared sessions until it is dropped: appends detached turns, heals, and finishes idle sessions. Returns
    /// immediately if sessions are not shared.
    pub async fn run(self: Arc<Self>) {
        if let Backend::Shared(sharing) = &self.backend {
            sharing.run().await;
        }
    }

    /// Appends the changes that are not in the ledger.
    pub async fn settle_entries(&self) {
        if let Backend::Shared(sharing) = &self.backend {
            sharing.settle_all(true).await;
        }
    }

    /// Stores pictures that the ledger lacks.
    pub async fn settle_images(&self) {
        if let Backend::Shared(sharing) = &self.backend {
            sharing.end_pause_of_images();
            sharing.share_due_images().await;
        }
    }

    /// Appends the changes that the ledger still lacks, also finished paths whose pictures it lacks. Returns how many sessions have changes,
    /// and how many have only pictures, that it lacks after that.
    pub async fn settle_rest(&self) -> [usize; 2] {
        match &self.backend {
            Backend::Shared(sharing) => sharing.settle_rest().await,
            Backend::Local(_) => [0; 2],
        }
    }

    /// The health and the counts of the local log, once it is open.
    #[must_use]
    pub fn log_status(&self) -> Option<(Health, RecordLogStats)> {
        self.memory().log.get().map(|log: &dyn RecordLog| (log.health(), log.stats()))
    }

    /// The status of the ledger; `None` if sessions are not shared.
    #[must_use]
    pub fn ledger_status(&self) -> Option<LedgerStatus<'_>> {
        let Backend::Shared(sharing) = &self.backend else { return None };
        let (is_down, detached_bytes) = (sharing.is_any_down(), sharing.detached_bytes());
        Some(LedgerStatus { counts: &sharing.counts, is_down, detached_bytes })
    }

    /// Waits for the first answer of the ledger, at most for its time limit.
    ///
    /// # Errors
    /// When it shows that this build cannot use the ledger. If that happens later, all partitions count as failed: the process keeps the
    /// turns that it has recorded, and does not write to the ledger.
    pub async fn first_ledger_answer(&self) -> Result<(), LedgerError> {
        let Backend::Shared(sharing) = &self.backend else { return Ok(()) };
        match sharing.fleet().await {
            Err(error @ (LedgerError::OtherSchema(_) | LedgerError::Unreadable(_))) => Err(error),
            _ => Ok(()),
        }
    }

    /// Applies one record of the local log. Records come in the order in which they were written; some may be missing.
    pub fn restore(&self, record: impl Into<LogRecord>) {
        match &self.backend {
            Backend::Local(store) => store.restore(record),
            Backend::Shared(sharing) => sharing.restore(record.into()),
        }
    }
}
