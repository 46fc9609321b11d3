// SPDX-License-Identifier: Apache-2.0
//! The rows that an export of the default classes has, without their tokens.

use smallvec::SmallVec;

use super::State;
use crate::session::reward_number;

/// The rows that an export of the default classes has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExportedRows {
    /// The rows by their last turns.
    pub rows: SmallVec<[ExportedRow; 1]>,
    /// The sampled tokens that they train.
    pub trained_tokens: u64,
}

/// A row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExportedRow {
    /// Its first turn.
    pub root: u32,
    /// Its sampled tokens.
    pub sampled_tokens: u64,
    /// Its latest reward, or else that of the session, if it is a number.
    pub reward: Option<f64>,
    /// Whether its last turn ended by length.
    pub is_truncated: bool,
}

impl ExportedRows {
    /// The mean of the rewards.
    #[must_use]
    pub fn mean_reward(&self) -> Option<f64> {
        let rewards = self.rows.iter().filter_map(|row| row.reward);
        let (count, sum) = rewards.fold((0_u32, 0.0), |(count, sum), reward| (count + 1, sum + reward));
        (count > 0).then(|| sum / f64::from(count))
    }
}

impl State {
    /// The rows that an export of the default classes has.
    pub(in crate::session) fn exported(&self) -> &ExportedRows {
        self.exported.get_or_init(|| {
            let (leaves, trained_tokens) = self.forest.exported();
            let rows = leaves.into_iter().map(|leaf| ExportedRow {
                root: leaf.root,
                sampled_tokens: leaf.sampled_tokens,
                reward: self.rewards.last(u32::MAX, leaf.turn).as_deref().and_then(reward_number),
                is_truncated: self.forest.turns()[leaf.turn as usize].about.finish.as_deref() == Some("length"),
            });
            ExportedRows { rows: rows.collect(), trained_tokens }
        })
    }
}
