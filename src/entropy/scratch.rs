// SPDX-License-Identifier: Apache-2.0
//! The reusable memory of one thread: the sums and bounds of a group of rows.

use std::ops::Range;

use super::bounds::{ROWS, RowBounds, RowSums};
use super::head::{self, HeadSums, PartSums, whole};
use super::lanes::Lanes;
use super::tail::Cut;
use super::{Flags, MASKED};

/// The upper bound of an unknown vocabulary size.
const LARGEST_VOCAB: u64 = 1 << 32;

/// Everything a thread reuses from batch to batch.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) known: RowSums,
    pub(super) found: RowBounds,
    /// Filled in with statistics only.
    pub(super) notes: [RowNote; ROWS],
    /// The last one that was computed.
    cut: Cut,
    /// The width of the rows whose tail all columns have, those of `cut`; 0 if they differ.
    width: usize,
    tidied: Vec<f32>,
}

/// Consecutive rows of a batch, at most [`ROWS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Group<'a> {
    /// The values of the batch.
    pub(super) values: &'a [f32],
    /// Where the first row starts, and one past the last value of each row.
    pub(super) start: usize,
    pub(super) ends: &'a [usize],
    /// The logprobs of the sampled tokens; the last ones may be missing.
    pub(super) chosen: &'a [f32],
    pub(super) vocab: Option<u32>,
}

/// The statistics of a row that are not computed in columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowNote {
    /// Values that are not masked.
    pub(super) k: usize,
    pub(super) rank: u32,
    pub(super) confidence: f32,
}

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch {
            known: RowSums::EMPTY,
            found: RowBounds::EMPTY,
            notes: [RowNote { k: 0, rank: 0, confidence: f32::NAN }; ROWS],
            cut: Cut::EMPTY,
            width: 0,
            tidied: Vec::new(),
        }
    }

    /// Computes the sums of a group.
    #[inline(always)]
    pub(super) fn sum<M: Lanes, const STATS: bool>(&mut self, machine: M, group: &Group<'_>) {
        let Group { values, mut start, ends, chosen, vocab } = *group;
        let vocab = vocab.map_or(LARGEST_VOCAB, u64::from);
        let ends = &ends[..ends.len().min(ROWS)];
        let known = chosen.len().min(ends.len());
        self.known.chosen[..known].copy_from_slice(&chosen[..known]);
        self.known.chosen[known..].fill(f32::NAN);
        if self.width != self.cut.k || self.cut.vocab != vocab {
            self.width = if self.cut.vocab == vocab { self.cut.k } else { 0 };
            self.known.set_tail(0..ROWS, self.cut.vocab - self.cut.k as u64, &self.cut);
        }
        for (slot, &end) in ends.iter().enumerate() {
            self.take::<M, STATS>(machine, slot, values, start..end, vocab);
            start = end;
        }
    }

    /// Adds the row `values[start..end]` at `slot`.
    #[inline(always)]
    fn take<M: Lanes, const STATS: bool>(
        &mut self,
        machine: M,
        slot: usize,
        values: &[f32],
        range: Range<usize>,
        vocab: u64,
    ) {
        let row = &values[range.clone()];
        if let (Some(&first), Some(&last)) = (row.first(), row.last())
            && head::in_range(first)
        {
            let k = if last > MASKED { row.len() } else { unmasked(row) };
            let (sums, is_sorted) = PartSums::sorted::<M, STATS>(machine, values, range.start, range.start + k);
            if is_sorted {
                if k == self.width && k == row.len() && !may_be_bf16(last) {
                    self.known.set::<STATS>(slot, row, &sums, Flags::empty());
                } else {
                    self.enter::<STATS>(slot, &row[..k], vocab, &sums, Flags::MASKED.when(k < row.len()));
                }
                if STATS {
                    self.note(slot, &row[..k], &sums);
                }
                return;
            }
        }
        self.take_odd::<STATS>(slot, row, vocab);
    }

    /// Adds a row that is out of order or out of range, or marks it as not measurable.
    #[cold]
    #[inline(never)]
    fn take_odd<const STATS: bool>(&mut self, slot: usize, row: &[f32], vocab: u64) {
        let mut tidied = std::mem::take(&mut self.tidied);
        match tidy(row, &mut tidied) {
            Ok(flags) => {
                let first = tidied[0];
                let shift = if head::in_range(first) { 0.0 } else { first };
                let sums = HeadSums::plain(&tidied, shift).into();
                self.enter::<STATS>(slot, &tidied, vocab, &sums, flags);
                if STATS {
                    self.note(slot, &tidied, &sums);
                }
            }
            // The columns keep the values of an earlier row, which are not read.
            Err(flags) => self.known.flags[slot] = flags.bits().into(),
        }
        self.tidied = tidied;
    }

    /// Adds a row that is in descending order and has no masked values, and may be of another width than those before it.
    #[inline(never)]
    fn enter<const STATS: bool>(&mut self, slot: usize, row: &[f32], vocab: u64, sums: &PartSums, flags: Flags) {
        let k = row.len();
        let tail = if flags.contains(Flags::MASKED) { 0 } else { vocab.saturating_sub(k as u64) };
        // A row without a tail does not use it, and must not replace that of the rows between such rows.
        if tail > 0 && (self.cut.k != k || self.cut.vocab != vocab) {
            self.cut = Cut::new(k, vocab);
        }
        let bf16 = Flags::BF16.when(is_bf16(row));
        self.known.set::<STATS>(slot, row, sums, flags | bf16 | Flags::INCONSISTENT.when((k as u64) > vocab));
        self.known.set_tail(slot..slot + 1, tail, &self.cut);
        self.width = 0;
    }

    /// Computes the statistics that are not computed in columns.
    #[inline(always)]
    fn note(&mut self, slot: usize, row: &[f32], sums: &PartSums) {
        let (k, chosen) = (row.len(), self.known.chosen[slot]);
        let confidence = (-(f64::from(row[0]) + whole(&sums.logprobs)) / k as f64) as f32;
        // Most sampled tokens are among the first few.
        let above = row.iter().take_while(|value| **value > chosen).count();
        let is_inside = chosen >= row[k - 1] && chosen < f32::INFINITY;
        self.notes[slot] = RowNote { k, rank: if is_inside { above as u32 + 1 } else { 0 }, confidence };
    }
}

/// The number of values before the masked ones at the end of a row.
#[cold]
fn unmasked(row: &[f32]) -> usize {
    row.iter().rposition(|value| *value > MASKED || value.is_nan()).map_or(0, |at| at + 1)
}

/// Whether a row may hold bfloat16 values by its last one, which suffices for nearly every row of another type.
#[inline(always)]
fn may_be_bf16(last: f32) -> bool {
    last.to_bits() & 0xffff == 0
}

/// Whether every value has the 16 low bits of a bfloat16; exact zeros alone are no evidence.
#[inline(always)]
fn is_bf16(row: &[f32]) -> bool {
    row.iter().all(|value| value.to_bits() & 0xffff == 0) && row.iter().any(|value| *value != 0.0)
}

/// Copies a row without its masked values into `tidied`, in descending order, and returns its
/// flags. The error is the flags of a row that cannot be measured.
#[cold]
fn tidy(row: &[f32], tidied: &mut Vec<f32>) -> Result<Flags, Flags> {
    if row.iter().any(|value| value.is_nan() || *value == f32::INFINITY) {
        return Err(Flags::NAN);
    }
    tidied.clear();
    tidied.extend(row.iter().filter(|value| **value > MASKED));
    tidied.sort_unstable_by(|a, b| b.total_cmp(a));
    let flags = Flags::MASKED.when(tidied.len() < row.len());
    if tidied.is_empty() { Err(flags | Flags::MISSING) } else { Ok(flags) }
}
