//! Rows in, statistics out: the whole computation, once, for any lane count.
//!
//! Rows are taken in groups. The sums of a row run over its values in lanes; what follows from the
//! sums (logarithms, mostly) runs over the rows of a group in lanes. Nothing is allocated beyond
//! the caller's vector unless a row is out of order or masked.

use super::bounds::{self, Found, Known, ROWS};
use super::head::{self, Sums, Terms, VALUES};
use super::tail::{LEAST_VALUES, Table};
use super::{Flags, MASKED, TokenStats, TopK};

/// No vocabulary is larger, so an unknown one is bounded by this.
const LARGEST_VOCAB: u64 = 1 << 32;

/// Rounding to bfloat16 moves `l` by up to `2^-8 |l|`, so the mass by that share of the head's
/// entropy; a tenth on top for what is left out.
const BF16_ERROR: f64 = 1.1 / 256.0;

/// What is kept of a row besides the columns.
#[derive(Debug, Clone, Copy)]
struct Note {
    flags: Flags,
    /// The row is the whole distribution: its renormalised entropy is the entropy.
    whole: bool,
    /// Values that are not masked.
    k: usize,
    chosen: f32,
    rank: u32,
    confidence: f32,
    /// `L` of the power-law tail.
    span: f64,
}

/// The geometry of the power-law tail, which rows of one width share.
#[derive(Debug, Clone, Copy)]
struct Ladder {
    k: usize,
    vocab: u64,
    span: f64,
    length: f64,
}

/// Everything a thread reuses from batch to batch.
#[derive(Debug)]
pub(super) struct Scratch {
    terms: Terms,
    known: Known,
    found: Found,
    notes: [Note; ROWS],
    ladder: Ladder,
    tidied: Vec<f32>,
}

/// One row, `values[start..end]`, and its sampled token's logprob or NaN.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    values: &'a [f32],
    start: usize,
    end: usize,
    chosen: f32,
}

/// Computes the statistics of `batch` and appends them to `out`.
#[inline(always)]
pub(super) fn run<const FMA: bool, const STATS: bool>(
    batch: &TopK<'_>,
    scratch: &mut Scratch,
    out: &mut Vec<TokenStats>,
) {
    let values = batch.rows.values();
    let vocab = batch.vocab.map_or(LARGEST_VOCAB, u64::from);
    let table = Table::shared();
    out.reserve(batch.rows.len());
    let (mut start, mut index) = (0, 0);
    while index < batch.rows.len() {
        let ends = group(&batch.rows.ends()[index..], start);
        let until = ends[ends.len() - 1];
        let sorted = scratch.open::<FMA, STATS>(values, start, ends);
        for (slot, &end) in ends.iter().enumerate() {
            let chosen = batch.chosen.get(index + slot).copied().unwrap_or(f32::NAN);
            scratch.take::<FMA, STATS>(slot, Row { values, start, end, chosen }, vocab, sorted);
            start = end;
        }
        bounds::find::<FMA, STATS>(ends.len(), &scratch.known, &mut scratch.found);
        let bounded = batch.vocab.is_some();
        for slot in 0..ends.len() {
            out.push(scratch.report::<STATS>(slot, table, bounded));
        }
        (start, index) = (until, index + ends.len());
    }
}

/// As many rows as fit a group, at least one; the first of them starts at `start`.
#[inline(always)]
fn group(ends: &[usize], start: usize) -> &[usize] {
    let ends = &ends[..ends.len().min(ROWS)];
    let fitting = ends.iter().take_while(|end| **end - start <= VALUES).count();
    &ends[..fitting.max(1)]
}

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch {
            terms: Terms::EMPTY,
            known: Known::EMPTY,
            found: Found::EMPTY,
            notes: [Note::EMPTY; ROWS],
            ladder: Ladder { k: 0, vocab: 0, span: 0.0, length: 1.0 },
            tidied: Vec::new(),
        }
    }

    /// Prepares a group of rows, and says whether all of them are in descending order.
    #[inline(always)]
    fn open<const FMA: bool, const STATS: bool>(&mut self, values: &[f32], start: usize, ends: &[usize]) -> bool {
        let until = ends[ends.len() - 1];
        if until - start <= VALUES {
            self.terms.fill::<FMA, STATS>(values, start, until);
        }
        // One count over all values, less the rises from one row to the next.
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

    /// Enters one row at `slot`.
    #[inline(always)]
    fn take<const FMA: bool, const STATS: bool>(&mut self, slot: usize, row: Row<'_>, vocab: u64, sorted: bool) {
        let Row { values, start, mut end, chosen } = row;
        let mut flags = Flags::empty();
        if start < end && head::in_range(values[start]) {
            if values[end - 1] <= MASKED {
                flags = Flags::MASKED;
                end = start + values[start..end].partition_point(|value| *value > MASKED);
            }
            if sorted || head::rises(&values[start..end]) == 0 {
                let sums = self.terms.sum::<FMA, STATS>(values, start, end);
                self.enter::<STATS>(slot, &values[start..end], chosen, vocab, sums, flags);
                return;
            }
        }
        self.take_odd::<STATS>(slot, row, vocab);
    }

    /// Enters a row that is out of order or out of range, or notes that it cannot be measured.
    #[cold]
    #[inline(never)]
    fn take_odd<const STATS: bool>(&mut self, slot: usize, row: Row<'_>, vocab: u64) {
        let mut tidied = std::mem::take(&mut self.tidied);
        match tidy(&row.values[row.start..row.end], &mut tidied) {
            Ok(flags) => {
                let first = tidied[0];
                let shift = if head::in_range(first) { 0.0 } else { first };
                let sums = Sums::plain(&tidied, shift);
                self.enter::<STATS>(slot, &tidied, row.chosen, vocab, sums, flags);
            }
            // The columns keep what an earlier row left, which goes unread.
            Err(flags) => self.notes[slot] = Note { flags, chosen: row.chosen, ..Note::EMPTY },
        }
        self.tidied = tidied;
    }

    /// Enters a row that is in descending order and has no masked value left.
    #[inline(always)]
    fn enter<const STATS: bool>(
        &mut self,
        slot: usize,
        row: &[f32],
        chosen: f32,
        vocab: u64,
        sums: Sums,
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
            | Flags::INCONSISTENT.when((k as u64) > vocab || (outside && whole));
        if self.ladder.k != k || self.ladder.vocab != vocab {
            self.ladder = Ladder::new(k, vocab);
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
        known.ladder[slot] = self.ladder.length;

        let note = &mut self.notes[slot];
        (note.flags, note.whole, note.k) = (flags, whole, k);
        (note.chosen, note.span) = (chosen, self.ladder.span);
        if STATS {
            known.square[slot] = sums.square;
            known.second[slot] = row[usize::from(k > 1)].into();
            note.confidence = (-head::total(row) / k as f64) as f32;
            // Most sampled tokens are among the first few.
            let above = row.iter().take_while(|value| **value > chosen).count();
            note.rank = if known_chosen && !outside { above as u32 + 1 } else { 0 };
        }
    }

    #[inline(always)]
    fn report<const STATS: bool>(&self, slot: usize, table: &Table, bounded: bool) -> TokenStats {
        let (note, found) = (&self.notes[slot], &self.found);
        let surprisal = surprisal(note.chosen);
        if !note.flags.is_measured() {
            return TokenStats { surprisal, ..TokenStats::unmeasured(note.flags) };
        }
        let mut flags = note.flags;
        let (residual, error) = (found.residual[slot], found.error[slot]);
        let outside_row = found.outside_row[slot];
        let too_much = residual < -error;
        let too_little = residual > found.cap[slot] + error;
        flags |= Flags::NEGATIVE_RESIDUAL.when(residual < 0.0) | Flags::INCONSISTENT.when(too_much | too_little);

        let renormalized = found.renormalized[slot];
        let (mut lower, mut upper) = (found.lower[slot], found.upper[slot]);
        let mass = found.estimate_mass[slot];
        let mut estimate = if note.k < LEAST_VALUES {
            0.5 * (lower + upper)
        } else {
            let excess = table.excess(found.x[slot], found.ln_x[slot], note.span);
            let estimate = found.truncated[slot] + mass * (excess - self.known.last[slot]);
            estimate.max(lower).min(upper)
        };
        let mut tail_mass = outside_row.max(0.0);
        if note.whole {
            (lower, estimate, upper) = (renormalized, renormalized, renormalized);
            tail_mass = 0.0;
        } else if !bounded {
            (estimate, upper) = (f64::NAN, f64::NAN);
        }
        if too_much {
            (lower, estimate, upper) = (f64::NAN, f64::NAN, f64::NAN);
        }

        let mut stats = TokenStats {
            renormalized: renormalized as f32,
            lower: lower as f32,
            upper: upper as f32,
            estimate: estimate as f32,
            tail_mass: tail_mass as f32,
            surprisal,
            ..TokenStats::unmeasured(flags)
        };
        if STATS {
            stats.varentropy = found.varentropy[slot] as f32;
            stats.confidence = note.confidence;
            stats.rank = note.rank;
            stats.margin = match (note.k, note.whole) {
                (1, true) => self.known.first[slot].exp() as f32,
                (1, false) => f32::NAN,
                _ => found.margin[slot] as f32,
            };
        }
        stats
    }
}

impl Note {
    const EMPTY: Note =
        Note { flags: Flags::MISSING, whole: false, k: 0, chosen: f32::NAN, rank: 0, confidence: f32::NAN, span: 0.0 };
}

impl Ladder {
    fn new(k: usize, vocab: u64) -> Ladder {
        let reach = k as f64 + 0.5;
        let span = ((vocab as f64 + 0.5) / reach).ln();
        // A row as wide as the vocabulary has no tail; any finite ladder will do.
        let length = if span > 0.0 { reach * span } else { 1.0 };
        Ladder { k, vocab, span, length }
    }
}

#[inline(always)]
fn surprisal(chosen: f32) -> f32 {
    match chosen {
        f32::INFINITY => f32::NAN,
        masked if masked <= MASKED => f32::INFINITY,
        // Not `-l`: a certain token has surprisal 0, not -0.
        known => 0.0 - known,
    }
}

/// Whether every value has the 16 low bits of a bfloat16; exact zeros alone are no evidence.
#[inline(always)]
fn is_bf16(row: &[f32]) -> bool {
    // The last value settles it for nearly every row of another kind.
    row[row.len() - 1].to_bits() & 0xffff == 0
        && row.iter().all(|value| value.to_bits() & 0xffff == 0)
        && row.iter().any(|value| *value != 0.0)
}

/// Copies a row without its masked values into `tidied`, in descending order, with the flags that
/// tell; or gives the flags of a row that cannot be measured.
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
