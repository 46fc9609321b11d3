// SPDX-License-Identifier: Apache-2.0
//! Decides which token columns are requested from the engine.

use super::ForcingFacts;
use crate::columns::{COLUMNS, ColumnFault, ExpertShape, ROUTED_EXPERTS_AT, SAMPLING_MASK_AT};
use crate::engine::plan::{ColumnPlan, ColumnPlans};
use crate::engine::sglang::request::PerItem;

/// The values of a token that are assumed for routed experts of an unknown shape: more than the largest usual models have (94 x 8).
const UNKNOWN_VALUES: u64 = 768;

/// The columns that tokentap requests with a request, the same for all its sequences.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ForcedColumns {
    /// By their positions in the table.
    plans: ColumnPlans,
    /// The number of leading tokens that columns of processed tokens leave out.
    pub(crate) start: usize,
    /// The expected bytes of all requested columns in the reply, those of the client included.
    pub(crate) bytes: u64,
}

impl ForcedColumns {
    /// The columns of the item at `at`: what the client requests itself is not forced.
    pub(super) fn of_item(&self, facts: &ForcingFacts<'_>, at: usize) -> ColumnPlans {
        let mut plans = self.plans;
        if facts.request.routed_experts {
            plans[ROUTED_EXPERTS_AT] = ColumnPlan::Requested;
        }
        if facts.request.sampling_mask.get(at) == Some(&true) {
            plans[SAMPLING_MASK_AT] = ColumnPlan::Requested;
        }
        plans
    }
}

impl ForcingFacts<'_> {
    /// Decides for the whole request.
    pub(super) fn force_columns(&self) -> ForcedColumns {
        let mut forced = ForcedColumns::default();
        let own_mask = !matches!(self.request.sampling_mask, PerItem::Absent) || self.request.sampling_mode.is_some();
        if self.request.routed_experts {
            forced.bytes = self.expert_bytes(0);
        } else if self.columns.wanted[ROUTED_EXPERTS_AT] {
            let plan = match self.column_obstacle().or_else(|| self.lacks_experts()) {
                Some(fault) => Err(fault),
                None => self.expert_start().ok_or(ColumnFault::ReplyBudget),
            };
            if let Ok(start) = plan {
                (forced.start, forced.bytes) = (start, self.expert_bytes(start));
            }
            forced.plans[ROUTED_EXPERTS_AT] = plan.map_or_else(ColumnPlan::Missing, |_| ColumnPlan::Forced);
        }
        if self.columns.wanted[SAMPLING_MASK_AT] {
            let plan = match self.column_obstacle().or_else(|| self.dropped_column(SAMPLING_MASK_AT)) {
                Some(fault) => Err(fault),
                None if own_mask => Err(ColumnFault::NotRequested),
                None => self.mask_bytes(),
            };
            forced.bytes = forced.bytes.saturating_add(plan.unwrap_or(0));
            forced.plans[SAMPLING_MASK_AT] = plan.map_or_else(ColumnPlan::Missing, |_| ColumnPlan::Forced);
        }
        forced
    }

    /// Why no column is requested, whichever it is.
    fn column_obstacle(&self) -> Option<ColumnFault> {
        let mut samplings = (0..self.prompts()).filter_map(|at| self.request.sampling.get(at));
        if self.upstream.product.is_none() {
            // tokentap does not know yet what the engine does with unknown members
            Some(ColumnFault::NotRequested)
        } else if !self.upstream.traits().ignores_unknown_members {
            Some(ColumnFault::NotReturned)
        } else if !self.request.is_readable() || samplings.any(|sampling| sampling.beams) {
            Some(ColumnFault::NotRequested)
        } else {
            self.refused_before.then_some(ColumnFault::Refused)
        }
    }

    fn lacks_experts(&self) -> Option<ColumnFault> {
        let is_off = self.upstream.routed_experts == Some(false);
        self.dropped_column(ROUTED_EXPERTS_AT).or_else(|| is_off.then_some(ColumnFault::NotReturned))
    }

    /// Why the column at `at` of the table is not requested from engines behind a router that drops the request.
    fn dropped_column(&self, at: usize) -> Option<ColumnFault> {
        self.upstream.dropped.contains(&COLUMNS[at].request).then_some(ColumnFault::Dropped)
    }

    /// The first start with which the routed experts fit their part of the largest reply.
    fn expert_start(&self) -> Option<usize> {
        let bound = expert_bound(self.limits.max_reply_bytes);
        self.columns.starts.into_iter().find(|start| self.expert_bytes(*start) <= bound)
    }

    /// The expected bytes of the routed experts from token `start` on. Each sample repeats its prompt.
    fn expert_bytes(&self, start: usize) -> u64 {
        let request = self.request;
        let is_text = (0..self.prompts()).all(|at| request.prompt_ids(at).is_none());
        // a token has at least one byte
        let text = request.text_span.as_ref().filter(|_| is_text).map_or(0, |span| span.len() as u64);
        let rows = (0..self.prompts()).map(|at| {
            let prompt = request.prompt_ids(at).map_or(0, |ids| ids.len());
            (prompt.saturating_sub(start) as u64).saturating_add(self.expected_tokens(at))
        });
        let rows = rows.fold(text, u64::saturating_add).saturating_mul(request.n() as u64);
        let values = self.columns.experts.map_or(UNKNOWN_VALUES, |experts| experts.values());
        rows.saturating_mul(wire_bytes(values))
    }

    /// The expected bytes of the sampling masks, if the engine can return those of all items.
    fn mask_bytes(&self) -> Result<u64, ColumnFault> {
        if self.upstream.sampling_mask.is_none() {
            return Err(if self.upstream.probed { ColumnFault::NotReturned } else { ColumnFault::NotRequested });
        }
        let mut bytes = 0_u64;
        for at in 0..self.prompts() {
            let support = self.support(at).ok_or(ColumnFault::OpenSupport)?;
            let each = self.support_bytes(at, support).map_err(|_| ColumnFault::ReplyBudget)?;
            bytes = bytes.saturating_add(each);
        }
        Ok(bytes)
    }
}

/// The bytes of a token's routed experts in a reply: four for each value, in base64.
fn wire_bytes(values: u64) -> u64 {
    values.saturating_mul(16) / 3
}

/// The most expected bytes of the routed experts of a reply: three quarters of the largest reply that is read. The rest is for its text and
/// its logprobs.
fn expert_bound(max_reply_bytes: u64) -> u64 {
    max_reply_bytes / 4 * 3
}

/// The most tokens, prompt and reply together, of which routed experts of this shape are requested.
#[must_use]
pub(crate) fn expert_tokens(shape: ExpertShape, max_reply_bytes: u64) -> u64 {
    expert_bound(max_reply_bytes) / wire_bytes(shape.values()).max(1)
}

/// Whether the forced columns include the one at `at` of the table.
pub(crate) fn forces(plans: &ColumnPlans, at: usize) -> bool {
    debug_assert!(at < COLUMNS.len(), "a position in the table");
    plans[at] == ColumnPlan::Forced
}
