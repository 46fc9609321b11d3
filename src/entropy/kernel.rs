//! Rows in, statistics out: the whole computation, written once for every instruction set.
//!
//! Rows are taken in groups. Exponentials run over the values of a group in lanes, and what follows
//! from the sums (logarithms, mostly) over its rows. All of it is plain loops over plain arrays, and
//! inlined, because the shells in `cpu` lend their instruction set only to what is inlined into them.
//! For the same reason the arithmetic is not in a closure, which would not inherit the set.

use super::bounds::{self, ROWS};
use super::head::VALUES;
use super::scratch::{Scratch, ScratchRow};
use super::tail::Table;
use super::{TokenStats, TopK};

/// No vocabulary is larger, so an unknown one is bounded by this.
const LARGEST_VOCAB: u64 = 1 << 32;

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
            scratch.take::<FMA, STATS>(slot, ScratchRow { values, start, end, chosen }, vocab, sorted);
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
