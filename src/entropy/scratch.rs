//! The reusable memory of one thread: the values, sums and bounds of a group of rows.

use super::bounds::{ROWS, RowBounds, RowSums};
use super::head::{self, HeadSums, Terms, VALUES};
use super::tail::Cut;
use super::{Flags, MASKED};

/// Rounding to bfloat16 changes `l` by up to `2^-8 |l|`, so the mass by that share of the head's
/// entropy. A tenth is added for higher-order terms.
const BF16_ERROR: f64 = 1.1 / 256.0;

/// Everything a thread reuses from batch to batch.
#[derive(Debug)]
pub(super) struct Scratch {
    terms: Terms,
    pub(super) known: RowSums,
    pub(super) found: RowBounds,
    pub(super) notes: [RowNote; ROWS],
    cut: Cut,
    tidied: Vec<f32>,
}

/// One row, `values[start..end]`, and its sampled token's logprob or NaN.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScratchRow<'a> {
    pub(super) values: &'a [f32],
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) chosen: f32,
}

/// The data of a row besides the columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowNote {
    pub(super) flags: Flags,
    /// The row is the whole distribution: its renormalised entropy is the entropy.
    pub(super) whole: bool,
    /// Values that are not masked.
    pub(super) k: usize,
    pub(super) chosen: f32,
    pub(super) rank: u32,
    pub(super) confidence: f32,
    /// `t` of the log-normal tail.
    pub(super) quantile: f64,
}

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch {
            terms: Terms::EMPTY,
            known: RowSums::EMPTY,
            found: RowBounds::EMPTY,
            notes: [RowNote::EMPTY; ROWS],
            cut: Cut::EMPTY,
            tidied: Vec::new(),
        }
    }

    /// Prepares a group of rows. Returns whether all of them are in descending order.
    #[inline(always)]
    pub(super) fn open<const FMA: bool, const STATS: bool>(
        &mut self,
        values: &[f32],
        start: usize,
        ends: &[usize],
    ) -> bool {
        let until = ends[ends.len() - 1];
        if until - start <= VALUES {
            self.terms.fill::<FMA, STATS>(values, start, until);
        } else {
            self.terms.clear();
        }
        // One count over all values, minus the rises from one row to the next.
        let mut between = 0;
        let mut before = start;
        for &end in ends {
            if before > start && end > before {
                between += head::rises(&values[before - 1..=before]);
            }
            before = end;
        }
        head::rises(&values[start..until]) == between
    }

    /// Adds one row at `slot`.
    #[inline(always)]
    pub(super) fn take<const FMA: bool, const STATS: bool>(
        &mut self,
        slot: usize,
        row: ScratchRow<'_>,
        vocab: u64,
        sorted: bool,
    ) {
        let ScratchRow { values, start, mut end, chosen } = row;
        let mut flags = Flags::empty();
        let plain = start < end && head::in_range(values[start]) && (sorted || head::rises(&values[start..end]) == 0);
        if !plain {
            self.take_odd::<STATS>(slot, row, vocab);
            return;
        }
        if values[end - 1] <= MASKED {
            flags = Flags::MASKED;
            end = start + values[start..end].partition_point(|value| *value > MASKED);
        }
        let sums = self.terms.sum::<FMA, STATS>(values, start, end);
        self.enter::<STATS>(slot, &values[start..end], chosen, vocab, sums, flags);
    }

    /// Adds a row that is out of order or out of range, or marks it as not measurable.
    #[cold]
    #[inline(never)]
    fn take_odd<const STATS: bool>(&mut self, slot: usize, row: ScratchRow<'_>, vocab: u64) {
        let mut tidied = std::mem::take(&mut self.tidied);
        match tidy(&row.values[row.start..row.end], &mut tidied) {
            Ok(flags) => {
                let first = tidied[0];
                let shift = if head::in_range(first) { 0.0 } else { first };
                let sums = HeadSums::plain(&tidied, shift);
                self.enter::<STATS>(slot, &tidied, row.chosen, vocab, sums, flags);
            }
            // The columns keep the values of an earlier row, which are not read.
            Err(flags) => self.notes[slot] = RowNote { flags, chosen: row.chosen, ..RowNote::EMPTY },
        }
        self.tidied = tidied;
    }

    /// Adds a row that is in descending order and has no masked values.
    #[inline(always)]
    fn enter<const STATS: bool>(
        &mut self,
        slot: usize,
        row: &[f32],
        chosen: f32,
        vocab: u64,
        sums: HeadSums,
        mut flags: Flags,
    ) {
        let k = row.len();
        let (first, last) = (row[0], row[k - 1]);
        let known_chosen = chosen > MASKED && chosen < f32::INFINITY;
        let outside = known_chosen && chosen < last;
        let bf16 = is_bf16(row);
        let mut tail = vocab.saturating_sub(k as u64);
        if flags.contains(Flags::MASKED) {
            tail = 0;
        }
        let whole = tail == 0;
        let moved = outside && !whole;
        tail -= u64::from(moved);
        flags |= Flags::BF16.when(bf16)
            | Flags::CHOSEN_OUTSIDE.when(outside)
            | Flags::INCONSISTENT.when((k as u64) > vocab || (outside && whole) || lacks_first(chosen, first));
        // A row without a tail does not use it, and must not replace that of the rows between such rows.
        if !whole && (self.cut.k != k || self.cut.vocab != vocab) {
            self.cut = Cut::new(k, vocab);
        }

        let known = &mut self.known;
        known.first[slot] = first.into();
        known.last[slot] = last.into();
        known.mass[slot] = sums.mass;
        known.surprise[slot] = sums.surprise;
        known.shifted[slot] = if head::in_range(first) { 0.0 } else { 1.0 };
        known.chosen[slot] = if moved { chosen.into() } else { 0.0 };
        known.outside[slot] = if moved { 1.0 } else { 0.0 };
        known.relative_error[slot] = if bf16 { BF16_ERROR } else { 0.0 };
        known.tail[slot] = tail as f64;
        known.length[slot] = self.cut.length;

        let note = &mut self.notes[slot];
        (note.flags, note.whole, note.k) = (flags, whole, k);
        (note.chosen, note.quantile) = (chosen, self.cut.quantile);
        if STATS {
            known.square[slot] = sums.square;
            known.second[slot] = row[usize::from(k > 1)].into();
            note.confidence = (-(f64::from(first) + sums.logprobs) / k as f64) as f32;
            // Most sampled tokens are among the first few.
            let above = row.iter().take_while(|value| **value > chosen).count();
            note.rank = if known_chosen && !outside { above as u32 + 1 } else { 0 };
        }
    }
}

impl RowNote {
    const EMPTY: RowNote = RowNote {
        flags: Flags::MISSING,
        whole: false,
        k: 0,
        chosen: f32::NAN,
        rank: 0,
        confidence: f32::NAN,
        quantile: 0.0,
    };
}

/// Whether every value has the 16 low bits of a bfloat16; exact zeros alone are no evidence.
#[inline(always)]
fn is_bf16(row: &[f32]) -> bool {
    // The last value suffices for nearly every row of another type.
    row[row.len() - 1].to_bits() & 0xffff == 0
        && row.iter().all(|value| value.to_bits() & 0xffff == 0)
        && row.iter().any(|value| *value != 0.0)
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

/// The most by which a sampled token may exceed the first value of its row, in nats. Above it, the row lacks the likeliest token.
const ABOVE_FIRST: f32 = 1e-3;

/// Whether the row lacks the likeliest token: the sampled one is above its first value.
#[inline(always)]
pub(crate) fn lacks_first(chosen: f32, first: f32) -> bool {
    chosen < f32::INFINITY && chosen > first + ABOVE_FIRST
}
