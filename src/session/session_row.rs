// SPDX-License-Identifier: Apache-2.0
//! The values of a session by their names, for conditions and tables.

use std::borrow::Cow;

use super::Turn;
use super::conditions::{Conditions, FieldValue, SessionFacts, SessionField};
use super::state::{Session, State};

/// A session while its state is locked.
pub(super) struct SessionRow<'a> {
    pub(super) session: &'a Session,
    pub(super) state: &'a State,
}

/// The policy that sampled the last tokens of a turn: the trainer's name of it, or else that of the engine, or else its epoch, unless another
/// process counted it. With an adapter, the policy is that of the adapter.
pub(super) fn policy_of(turn: &Turn) -> Option<Cow<'_, str>> {
    let span = turn.about.policy.last()?;
    let (name, epoch) = match &span.adapter {
        Some(adapter) => (adapter.version.as_deref(), adapter.epoch),
        None => (span.version.as_deref().or_else(|| span.updated_weight_version()), span.epoch),
    };
    let counted = || span.process.is_none().then(|| epoch.to_string().into());
    name.map(Cow::Borrowed).or_else(counted)
}

impl SessionFacts for SessionRow<'_> {
    fn field(&self, field: SessionField) -> Option<FieldValue<'_>> {
        let Self { session, state } = self;
        let flag = |flag: bool| FieldValue::Text(if flag { "true" } else { "false" }.into());
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53 are exact")]
        let count = |count: u64| FieldValue::Number(count as f64);
        let totals = &state.totals;
        Some(match field {
            SessionField::Session => FieldValue::Text((&*session.id).into()),
            SessionField::CreatedMs => count(state.created_ms),
            SessionField::Turns => count(u64::from(state.forest.next_id())),
            SessionField::SampledTokens => count(totals.sampled_tokens),
            SessionField::Rows => count(state.exported().rows.len() as u64),
            SessionField::TrainedTokens => count(state.exported().trained_tokens),
            SessionField::Faults => count(totals.faults.into()),
            SessionField::FrozenVersions => count(state.frozen.len() as u64),
            SessionField::Done => flag(state.done),
            SessionField::Incomplete => flag(state.incomplete.is_some()),
            SessionField::Running => count(state.running.into()),
            SessionField::Bytes => count(state.size()),
            SessionField::Reward => FieldValue::Number(state.exported().mean_reward()?),
            SessionField::MeanEntropy => FieldValue::Number(totals.entropy.mean()?),
            SessionField::HighEntropyShare => FieldValue::Number(totals.entropy.high_share()?),
            SessionField::FinishReason => {
                FieldValue::Text(state.forest.turns().last()?.about.finish.as_deref()?.into())
            }
            SessionField::Policy => FieldValue::Text(policy_of(state.forest.turns().last()?)?),
            SessionField::Flags => FieldValue::Names(totals.flags().collect()),
        })
    }

    fn tag(&self, name: &str) -> Option<&str> {
        self.state.tags.get(name)
    }
}

impl Session {
    /// Whether it meets all conditions.
    #[must_use]
    pub fn meets(&self, conditions: &Conditions) -> bool {
        conditions.accept(&SessionRow { session: self, state: &self.state() })
    }
}
