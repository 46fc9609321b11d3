//! What trainers say: that a session is frozen, what it is worth, and which policy samples.

use std::sync::Arc;

use serde_json::Value;

use super::state::{Session, SessionError};
use super::store::Store;
use crate::session::ledger::log::{Ack, Record};

impl Store {
    /// Freezes a session; returns the version and what tells when it is on disk.
    ///
    /// # Errors
    /// [`SessionError::Gone`].
    pub fn freeze(&self, session: &Arc<Session>) -> Result<(u32, Ack), SessionError> {
        let record = |turns| self.record(Record::Freeze { session: Arc::clone(&session.id), turns });
        let (version, ack) = session.freeze(record)?;
        self.finish(session);
        Ok((version, ack.unwrap_or_else(Ack::done)))
    }

    /// Attaches a reward.
    ///
    /// # Errors
    /// When the session is frozen, or has no such turn.
    pub fn reward(&self, session: &Session, leaf: Option<u32>, value: Value) -> Result<Ack, SessionError> {
        let record =
            |version, reward| self.record(Record::Reward { session: Arc::clone(&session.id), leaf, reward, version });
        let (bytes, ack) = session.reward(leaf, Arc::new(value), record)?;
        self.order().change(bytes);
        Ok(ack)
    }

    /// The trainer names the policy; returns the epoch.
    pub fn name_policy(&self, version: &str) -> (u64, Ack) {
        let epoch = self.policy.named(version);
        (epoch, self.record(Record::Policy { epoch, version: Some(version.into()) }))
    }

    /// A call has changed the weights.
    pub fn policy_changed(&self) -> Ack {
        let epoch = self.policy.changed();
        self.record(Record::Policy { epoch, version: None })
    }

    /// Another engine answers, or one that was gone: its weights need not be those of before. Returns the epoch.
    pub fn engine_replaced(&self) -> u64 {
        let epoch = self.policy.changed();
        self.moved(Some(epoch));
        epoch
    }

    /// The engine's label was seen on a reply that was asked for in `epoch`.
    pub fn policy_observed(&self, epoch: u64, label: &str) {
        self.moved(self.policy.observe(epoch, label));
    }

    /// `/model_info` shows this label, asked in `epoch`.
    pub fn policy_shown(&self, epoch: u64, label: &str) {
        self.moved(self.policy.shown(epoch, label));
    }

    fn moved(&self, epoch: Option<u64>) {
        if let Some(epoch) = epoch {
            self.note(Record::Policy { epoch, version: None });
        }
    }
}
