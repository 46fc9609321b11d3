//! Computes statistics from top-k rows. The code is the same for every instruction set.
//!
//! Rows are processed in groups. Exponentials are vectorized over the values of a group, and the
//! computation from the sums (mostly logarithms) over its rows. All of it is plain loops over arrays, and
//! inlined, because the functions in `cpu` enable their instruction set only for code inlined into them.
//! The arithmetic is not in closures, because these would not get the instruction set.

use super::bounds::{self, ROWS};
use super::head::VALUES;
use super::scratch::{Scratch, ScratchRow};
use super::tail::Table;
use super::{TokenStats, TopK};

/// The upper bound of an unknown vocabulary size.
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

/// The rows of the next group, at least one. The first one starts at `start`.
#[inline(always)]
fn group(ends: &[usize], start: usize) -> &[usize] {
    let ends = &ends[..ends.len().min(ROWS)];
    let fitting = ends.iter().take_while(|end| **end - start <= VALUES).count();
    &ends[..fitting.max(1)]
}
