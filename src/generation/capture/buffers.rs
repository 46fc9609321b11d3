// SPDX-License-Identifier: Apache-2.0
//! The memory of a step, which a thread keeps for its next one.

use std::cell::Cell;

use crate::engine::events::Numbers;
use crate::entropy::TokenStats;

/// The memory of a step. A new one would be allocated for each reply, and would not be in the processor's cache.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// The numbers of the current object.
    pub(super) numbers: Numbers,
    /// The statistics of its rows.
    pub(super) stats: Vec<TokenStats>,
    /// Its published entropies.
    pub(super) values: Vec<f32>,
    /// The engine's own exact values for it, one number per token; NaN where it reported none.
    pub(super) exact: Vec<f32>,
}

thread_local! {
    /// The memory for the next step on this thread. Each buffer is cleared before it is filled.
    static BUFFERS: Cell<Option<Box<Buffers>>> = const { Cell::new(None) };
}

/// The most tokens and logprobs of a step whose memory is kept: about 1 MB a thread.
const KEPT_TOKENS: usize = 4096;
const KEPT_LOGPROBS: usize = 32 * KEPT_TOKENS;

impl Buffers {
    /// The memory that the last step of this thread left, if any.
    pub(super) fn take() -> Option<Box<Self>> {
        BUFFERS.take()
    }

    pub(super) fn can_be_kept(&self) -> bool {
        let Self { numbers, stats, .. } = self;
        let tokens = numbers.chosen.capacity().max(numbers.exact.capacity()).max(stats.capacity());
        let logprobs = numbers.rows.capacity().max(numbers.support.capacity());
        tokens <= KEPT_TOKENS && logprobs <= KEPT_LOGPROBS
    }

    /// Leaves the memory to the next step of this thread.
    pub(super) fn keep(self: Box<Self>) {
        BUFFERS.set(Some(self));
    }
}
