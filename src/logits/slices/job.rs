// SPDX-License-Identifier: Apache-2.0
//! A slot of rows to measure, with the channel for the reply.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use tokio::sync::oneshot;

use super::Slot;
use crate::entropy::{Cpu, Dtype, Logits, RowStats};
use crate::metrics::SliceMetrics;

/// The layout of the bytes of a slot: contiguous whole rows.
#[derive(Debug)]
pub(crate) struct SlotLayout {
    pub(crate) dtype: Dtype,
    pub(crate) vocab: usize,
    /// One per row, one for all, or none.
    pub(crate) temperature: Vec<f32>,
    /// The sampled token of each row, negative if unknown; empty if no row has one.
    pub(crate) chosen: Vec<i64>,
}

/// Why rows were not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// An internal failure; the log has the panic.
    #[error("tokentap failed to measure these rows")]
    Panicked,
    /// The driver hangs with them.
    #[error("the CUDA device hangs with these rows; send them again to have the CPU measure them")]
    Stuck,
    /// The process is ending.
    #[error("tokentap is shutting down")]
    Ending,
}

/// The numbers of a slot, one entry per row.
pub(crate) type Measured = Result<Vec<RowStats>, MeasureError>;

/// Rows in a slot, and the channel for their numbers.
#[derive(Debug)]
pub(crate) struct SlotJob {
    pub(crate) slot: Slot,
    pub(crate) shape: SlotLayout,
    pub(crate) since: Instant,
    pub(crate) reply: oneshot::Sender<Measured>,
}

impl SlotJob {
    pub(crate) fn rows(&self) -> usize {
        self.slot.filled().len() / (self.shape.vocab * self.shape.dtype.bytes())
    }

    /// Whether the caller has gone.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.reply.is_closed()
    }

    /// The rows as input of the kernels.
    pub(crate) fn logits(&self) -> Logits<'_> {
        Logits {
            dtype: self.shape.dtype,
            vocab: self.shape.vocab,
            bytes: self.slot.filled(),
            temperature: &self.shape.temperature,
            chosen: &self.shape.chosen,
        }
    }

    /// Measures the rows on this thread; a panic fails only this entry.
    pub(crate) fn measure(self, cpu: &Cpu, metrics: &SliceMetrics) {
        let begin = Instant::now();
        let by = [cpu.name()];
        metrics.wait.with_label_values(&by).observe((begin - self.since).as_secs_f64());
        let mut numbers = Vec::with_capacity(self.rows());
        let measured = catch_unwind(AssertUnwindSafe(|| cpu.rows(&self.logits(), &mut numbers)));
        let measured = measured.map(|()| numbers).map_err(|_| MeasureError::Panicked);
        metrics.compute.with_label_values(&by).observe(begin.elapsed().as_secs_f64());
        metrics.batch.with_label_values(&by).observe(self.rows() as f64);
        metrics.rows.with_label_values(&by).inc_by(self.rows() as u64);
        self.finish(measured);
    }

    /// Frees the slot, then answers: the slot is free when the answer is read.
    pub(crate) fn finish(self, measured: Measured) {
        let Self { slot, reply, .. } = self;
        drop(slot);
        // the receiver may be gone
        let _ = reply.send(measured);
    }
}
