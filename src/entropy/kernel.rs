// SPDX-License-Identifier: Apache-2.0
//! Computes statistics from top-k rows. The code is the same for every instruction set.
//!
//! Rows are processed in groups. The sums over a row are vectorized over its values, and the computation from the sums
//! (mostly logarithms) over the rows of the group. All of it is plain loops over arrays, and inlined, because the
//! functions in `cpu` enable their instruction set only for code inlined into them. The arithmetic is not in closures,
//! because these would not get the instruction set.

use super::bounds::{ROWS, RowBounds, RowSums};
use super::scratch::{Group, Scratch};
use super::{TokenStats, TopK};

/// The two steps of a group. Each instruction set has a function for each of them: in one function, they have too many variables
/// for the registers.
pub(super) trait Steps: Copy {
    /// Computes the sums of the rows.
    fn sum<const STATS: bool>(self, scratch: &mut Scratch, group: &Group<'_>);

    /// Computes the numbers of the first `rows` rows from their sums. `bounded` is true if the vocabulary size is known.
    fn bound<const STATS: bool>(self, rows: usize, known: &RowSums, found: &mut RowBounds, bounded: bool);
}

/// Computes the statistics of `batch` and appends them to `out`.
pub(super) fn run(steps: impl Steps, batch: &TopK<'_>, scratch: &mut Scratch, out: &mut Vec<TokenStats>) {
    if batch.stats {
        groups::<true>(steps, batch, scratch, out);
    } else {
        groups::<false>(steps, batch, scratch, out);
    }
}

fn groups<const STATS: bool>(steps: impl Steps, batch: &TopK<'_>, scratch: &mut Scratch, out: &mut Vec<TokenStats>) {
    let (mut start, mut chosen) = (0, batch.chosen);
    out.reserve(batch.rows.len());
    for ends in batch.rows.ends().chunks(ROWS) {
        let group = Group { values: batch.rows.values(), start, ends, chosen, vocab: batch.vocab };
        steps.sum::<STATS>(scratch, &group);
        // separate references, so that the compiler knows that they do not overlap and adds no check at run time
        steps.bound::<STATS>(ends.len(), &scratch.known, &mut scratch.found, batch.vocab.is_some());
        out.extend((0..ends.len()).map(|slot| scratch.report::<STATS>(slot)));
        start = ends[ends.len() - 1];
        chosen = chosen.get(ends.len()..).unwrap_or_default();
    }
}
