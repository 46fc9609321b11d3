//! The device as a [`Backend`]: splits the rows of a request into jobs and waits for their numbers.

use std::collections::VecDeque;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::abi::{TopKIn, TopKOut};
use super::batch::{MOST_ROWS, MOST_VALUES, TopKJob};
use super::driver::Unavailable;
use super::health::DRIVER_TIMEOUT;
use super::lane::{POLL_INTERVAL, SPIN_TIME};
use super::{Cuda, NAME};
use crate::entropy::{Backend, Cpu, Flags, Logits, RowStats, TokenStats, TopK, bounds};
use crate::logits::slices::{Measured, SLOT_BYTES, SliceShape, SlotJob, SlotLayout, TEMPERATURES};

impl Cuda {
    /// As [`Backend::top_k`], on the device. If it fails, returns false and adds nothing to `out`.
    pub(crate) fn try_top_k(&self, batch: &TopK<'_>, out: &mut Vec<TokenStats>) -> bool {
        if batch.vocab == Some(0) {
            return false; // the kernel takes 0 for an unknown vocabulary
        }
        let before = out.len();
        let mut row = 0;
        while row < batch.rows.len() {
            let Some((job, answer)) = part(batch, row) else { break };
            let count = job.ins.len();
            let answered = self.jobs().submit_top_k(job).then(|| answer.recv_timeout(DRIVER_TIMEOUT));
            let Some(Ok(numbers)) = answered else {
                if answered == Some(Err(RecvTimeoutError::Timeout)) {
                    // a driver call that does not return: later callers do not wait for it
                    self.health.lose(Unavailable::Hangs);
                }
                break;
            };
            out.extend(numbers.iter().enumerate().map(|(at, numbers)| stats(batch, row + at, numbers)));
            row += count;
        }
        let complete = row == batch.rows.len();
        if !complete {
            out.truncate(before);
        }
        complete
    }

    /// As [`Backend::rows`], on the device; `None` if it fails, a temperature is outside [`TEMPERATURES`], or other callers hold all slots.
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
}

impl Cuda {
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

/// The device, with the CPU as fallback. For threads outside of a runtime, since calls block.
impl Backend for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn top_k(&self, batch: &TopK<'_>, out: &mut Vec<TokenStats>) {
        if !self.try_top_k(batch, out) {
            Cpu::new().top_k(batch, out);
        }
    }

    fn rows(&self, logits: &Logits<'_>, out: &mut Vec<RowStats>) {
        match self.try_rows(logits) {
            Some(stats) => out.extend(stats),
            None => Cpu::new().rows(logits, out),
        }
    }
}

/// A job with the rows from `from` on that fit; `None` if not even one does.
fn part(batch: &TopK<'_>, from: usize) -> Option<(TopKJob, Receiver<Vec<TopKOut>>)> {
    let (mut values, mut ins) = (Vec::new(), Vec::new());
    for index in from..batch.rows.len().min(from + MOST_ROWS) {
        let row = batch.rows.row(index);
        if values.len() + row.len() > MOST_VALUES {
            break;
        }
        ins.push(TopKIn {
            start: u32::try_from(values.len()).expect("at most 2^20"),
            k: u32::try_from(row.len()).expect("at most 2^20"),
            chosen: batch.chosen.get(index).copied().unwrap_or(f32::NAN),
            vocab: batch.vocab.unwrap_or(0),
        });
        values.extend_from_slice(row);
    }
    let (reply, answer) = bounded(1);
    (!ins.is_empty()).then_some((TopKJob { values, ins, since: Instant::now(), reply }, answer))
}

/// The numbers of a row in the form that the CPU backend returns.
fn stats(batch: &TopK<'_>, row: usize, numbers: &TopKOut) -> TokenStats {
    let chosen = batch.chosen.get(row).copied().unwrap_or(f32::NAN);
    let wanted = |number: f32| if batch.stats { number } else { f32::NAN };
    let flags = Flags::from_bits(numbers.flags as u8);
    let first = batch.rows.row(row).iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let lacks_first = flags.is_measured() && bounds::lacks_first(chosen, first);
    let stats = TokenStats {
        renormalized: numbers.renormalized,
        lower: numbers.lower,
        upper: numbers.upper,
        estimate: numbers.estimate,
        tail_mass: numbers.tail_mass,
        varentropy: wanted(numbers.varentropy),
        margin: wanted(numbers.margin),
        confidence: wanted(numbers.confidence),
        surprisal: bounds::surprisal(chosen),
        rank: if batch.stats { numbers.rank } else { 0 },
        flags: flags | Flags::INCONSISTENT.when(lacks_first),
    };
    stats.checked()
}
