// SPDX-License-Identifier: Apache-2.0
//! Splits the rows of a caller into jobs and waits for their numbers.

use std::collections::VecDeque;
use std::time::Instant;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::Cuda;
use super::driver::Unavailable;
use super::health::DRIVER_TIMEOUT;
use super::lane::{POLL_INTERVAL, SPIN_TIME};
use crate::entropy::{Cpu, Logits, RowStats};
use crate::logits::slices::{Measured, SLOT_BYTES, SliceShape, SlotJob, SlotLayout, TEMPERATURES};

impl Cuda {
    /// Appends one entry per row of `logits` to `out`; the CPU measures them if the device fails. For threads outside of a runtime, since it
    /// blocks.
    pub fn rows(&self, logits: &Logits<'_>, out: &mut Vec<RowStats>) {
        match self.try_rows(logits) {
            Some(stats) => out.extend(stats),
            None => Cpu::new().rows(logits, out),
        }
    }

    /// The numbers of the rows from the device; `None` if it fails, a temperature is outside [`TEMPERATURES`], or other callers hold all slots.
    pub(super) fn try_rows(&self, logits: &Logits<'_>) -> Option<Vec<RowStats>> {
        if logits.temperature.iter().any(|temperature| !TEMPERATURES.contains(temperature)) {
            return None;
        }
        let rows = SliceShape::try_new(logits.dtype, logits.rows(), logits.vocab, usize::MAX).ok()?;
        let (mut all, mut at) = (Vec::with_capacity(logits.rows()), 0);
        let mut waiting: VecDeque<oneshot::Receiver<Measured>> = VecDeque::new();
        let mut take = |part| self.numbers(part).map(|part| all.extend(part));
        for part in logits.bytes[..rows.bytes()].chunks(rows.slot_bytes()) {
            let mut slot = loop {
                match self.slot_pool.try_take(1) {
                    Some(mut slots) => break slots.pop()?,
                    // wait for the oldest of this call to free its slot
                    None => take(waiting.pop_front()?)?,
                }
            };
            slot.push(part, SLOT_BYTES);
            let count = part.len() / (logits.vocab * logits.dtype.bytes());
            let temperature = match logits.temperature {
                each if each.len() > 1 => each.get(at..at + count)?.to_vec(),
                all => all.to_vec(),
            };
            let chosen = logits.chosen.iter().skip(at).take(count).copied().collect();
            let shape = SlotLayout { dtype: logits.dtype, vocab: logits.vocab, temperature, chosen };
            let (reply, numbers) = oneshot::channel();
            if self.submit(SlotJob { slot, shape, since: Instant::now(), reply }).is_some() {
                return None;
            }
            waiting.push_back(numbers);
            at += count;
        }
        waiting.into_iter().try_for_each(take)?;
        Some(all)
    }

    /// Waits for numbers on a separate thread, at most until the device counts as hung.
    fn numbers(&self, mut part: oneshot::Receiver<Measured>) -> Option<Vec<RowStats>> {
        let begin = Instant::now();
        loop {
            match part.try_recv() {
                Ok(measured) => return measured.ok(),
                Err(TryRecvError::Closed) => return None,
                Err(TryRecvError::Empty) => match begin.elapsed() {
                    short if short < SPIN_TIME => std::thread::yield_now(),
                    long if long < DRIVER_TIMEOUT => std::thread::sleep(POLL_INTERVAL),
                    _ => {
                        self.health.lose(Unavailable::Hangs);
                        return None;
                    }
                },
            }
        }
    }
}
