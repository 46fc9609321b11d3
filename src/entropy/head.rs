// SPDX-License-Identifier: Apache-2.0
//! Sums over the reported values of each row.

use super::approx::exp_32;
use super::lanes::{LANES, Lanes};

/// Terms that are added in 32 bits before their sum is added in 64. A longer run would round away a
/// long tail after a likely head: its terms are near the last bit of the sum, and equal terms round alike.
const RUN: usize = 4 * LANES;

/// Sums over a row in descending order `l_1 >= .. >= l_k`, with `e_i = exp(l_i - shift)`. The first
/// value is left out: added to its 1, the tail of a near-certain row would be lost to rounding.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HeadSums {
    /// `sum_{i>1} e_i`
    pub(super) mass: f64,
    /// `sum_{i>1} l_i e_i`
    pub(super) surprise: f64,
    /// `sum_{i>1} l_i^2 e_i`; with statistics only.
    pub(super) square: f64,
    /// `sum_{i>1} l_i`; with statistics only.
    pub(super) logprobs: f64,
}

/// A sum in four parts, which [`whole`] adds up. The parts of many rows are added at once.
pub(super) type Parts = [f64; 4];

/// [`HeadSums`] in parts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PartSums {
    pub(super) mass: Parts,
    pub(super) surprise: Parts,
    pub(super) square: Parts,
    pub(super) logprobs: Parts,
}

/// Whether a row that starts with `first` can be summed without a shift. Every row of a softmax can;
/// other rows could exceed the range of `f32`.
#[inline(always)]
pub(super) fn in_range(first: f32) -> bool {
    (first > -40.0) & (first < 1.0)
}

/// The value before a run and the values of one, of which there may be fewer: those after the run are read but not added.
type Run = [f32; RUN + 1];

/// The sum that `parts` are of.
#[inline(always)]
pub(super) fn whole(parts: &Parts) -> f64 {
    (parts[0] + parts[2]) + (parts[1] + parts[3])
}

impl PartSums {
    /// The sums of the row `values[start..end]`, which is not empty, and whether it is in descending order without NaN. The
    /// sums are only valid if it is, and if its first value is [`in_range`] and its last is not masked.
    #[inline(always)]
    pub(super) fn sorted<M: Lanes, const STATS: bool>(
        machine: M,
        values: &[f32],
        start: usize,
        end: usize,
    ) -> (PartSums, bool) {
        if end - start <= RUN + 1 {
            return PartSums::after::<M, STATS>(machine, values, start, end);
        }
        let (mut sums, mut is_sorted) = (HeadSums::default(), true);
        for start in (start..end - 1).step_by(RUN) {
            let (run, run_is_sorted) = PartSums::after::<M, STATS>(machine, values, start, end.min(start + RUN + 1));
            sums.mass += whole(&run.mass);
            sums.surprise += whole(&run.surprise);
            if STATS {
                sums.square += whole(&run.square);
                sums.logprobs += whole(&run.logprobs);
            }
            is_sorted &= run_is_sorted;
        }
        (sums.into(), is_sorted)
    }

    /// [`Self::sorted`] for the values after `values[start]`, at most [`RUN`] of them.
    #[inline(always)]
    fn after<M: Lanes, const STATS: bool>(machine: M, values: &[f32], start: usize, end: usize) -> (PartSums, bool) {
        let count = end - start - 1;
        let mut copy;
        let run = match values[start..].first_chunk() {
            Some(run) => run,
            None => {
                copy = [0.0; RUN + 1];
                copy[..=count].copy_from_slice(&values[start..end]);
                &copy
            }
        };
        match count.div_ceil(LANES) {
            0 | 1 => PartSums::run::<M, STATS, 1>(machine, run, count),
            2 => PartSums::run::<M, STATS, 2>(machine, run, count),
            3 => PartSums::run::<M, STATS, 3>(machine, run, count),
            _ => PartSums::run::<M, STATS, 4>(machine, run, count),
        }
    }

    /// The sums of the first `count` values of a run, which fit into `N` vectors.
    #[inline(always)]
    fn run<M: Lanes, const STATS: bool, const N: usize>(machine: M, run: &Run, count: usize) -> (PartSums, bool) {
        let chunk = |at: usize| run[at..].first_chunk().expect("a run has this many values");
        let zero = machine.splat(0.0);
        let mut values = [zero; N];
        for (at, value) in values.iter_mut().enumerate() {
            *value = machine.load(chunk(LANES * at + 1));
        }
        let terms = exp_32(machine, values);
        let (mut mass, mut surprise, mut square, mut logprobs, mut rises) = (zero, zero, zero, zero, zero);
        for at in 0..N {
            let (value, term) = (values[at], terms[at]);
            let count = if at + 1 < N { LANES } else { count - LANES * at };
            let first = |vector| if at + 1 < N { vector } else { machine.first(vector, count) };
            // Masked values are -inf or close to it. Rows with them are not used, but their terms would be slow.
            let finite = machine.at_least(value, -100.0);
            mass = machine.add(mass, first(term));
            surprise = machine.add(surprise, first(machine.mul(finite, term)));
            if STATS {
                square = machine.add(square, first(machine.mul(machine.mul(finite, finite), term)));
                logprobs = machine.add(logprobs, first(value));
            }
            let before = machine.load(chunk(LANES * at));
            rises = machine.either(rises, first(machine.rises(value, before)));
        }
        let mut sums =
            PartSums { mass: machine.halves(mass), surprise: machine.halves(surprise), ..PartSums::default() };
        if STATS {
            (sums.square, sums.logprobs) = (machine.halves(square), machine.halves(logprobs));
        }
        (sums, !machine.any(rises))
    }
}

impl From<HeadSums> for PartSums {
    fn from(sums: HeadSums) -> PartSums {
        let part = |sum| [sum, 0.0, 0.0, 0.0];
        PartSums {
            mass: part(sums.mass),
            surprise: part(sums.surprise),
            square: part(sums.square),
            logprobs: part(sums.logprobs),
        }
    }
}

impl HeadSums {
    /// The sums of any row in descending order, one value at a time, with `shift` subtracted.
    pub(super) fn plain(row: &[f32], shift: f32) -> HeadSums {
        let mut sums = HeadSums::default();
        for &value in &row[1..] {
            let e = (f64::from(value) - f64::from(shift)).exp();
            let value = f64::from(value);
            sums.mass += e;
            sums.surprise += value * e;
            sums.square += value * value * e;
            sums.logprobs += value;
        }
        sums
    }
}
