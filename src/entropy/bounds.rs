// SPDX-License-Identifier: Apache-2.0
//! The statistics of many rows at once, computed from the sums of each row in lanes of 64-bit floats.

use std::ops::Range;

use super::approx::{exp_and_m1_64, floor, ln_1p_64, ln_64, mul_add_64};
use super::head::{PartSums, Parts, in_range, whole as sum};
use super::lanes::LANES;
use super::tail::{Cut, Table, TablePlace};
use super::{Flags, MASKED};

/// Rows that are computed together; a multiple of any lane count.
pub(super) const ROWS: usize = 32;

/// One number per row.
type Column<T> = [T; ROWS];

/// The sums of each row. Every entry but the sampled token's is finite for any row.
#[derive(Debug)]
pub(super) struct RowSums {
    /// `l_1`
    pub(super) first: Column<f32>,
    /// `l_2`, or `l_1` if there is no second value; read with statistics only.
    pub(super) second: Column<f32>,
    /// `l_k`
    pub(super) last: Column<f32>,
    /// The sampled token's logprob, or NaN.
    pub(super) chosen: Column<f32>,
    /// `sum_{i>1} e_i`, `sum_{i>1} l_i e_i` and, with statistics, `sum_{i>1} l_i^2 e_i`, where
    /// `e_i = exp(l_i - shift)`. The shift is `l_1` if that is not [`in_range`], else 0.
    pub(super) mass: Column<Parts>,
    pub(super) surprise: Column<Parts>,
    pub(super) square: Column<Parts>,
    /// `n`, tail tokens (a sampled one outside the row included). 0 if the row is the whole distribution: its renormalised
    /// entropy is the entropy.
    pub(super) tail: Column<f64>,
    /// `n / M(t)` and `t` of the log-normal tail.
    pub(super) length: Column<f64>,
    pub(super) quantile: Column<f64>,
    /// The bits of [`Flags`] that the row's values show.
    pub(super) flags: Column<u64>,
}

/// The results for each row, in nats or as probabilities.
#[derive(Debug)]
pub(super) struct RowBounds {
    pub(super) renormalized: Column<f32>,
    pub(super) lower: Column<f32>,
    pub(super) upper: Column<f32>,
    pub(super) estimate: Column<f32>,
    pub(super) tail_mass: Column<f32>,
    pub(super) surprisal: Column<f32>,
    /// Variance of the surprisal and `p_1 - p_2`; filled in with statistics only.
    pub(super) varentropy: Column<f32>,
    pub(super) margin: Column<f32>,
    /// The bits of [`Flags`].
    pub(super) flags: Column<u64>,
    /// The entropy of all known tokens, `sum phi(p_i)`.
    truncated: Column<f64>,
    /// The tail mass that the estimate uses, `x` of the log-normal tail, its [`TablePlace`], and the mean surprisal of the tail in
    /// excess of `-l_k`.
    mass: Column<f64>,
    x: Column<f64>,
    index: Column<u64>,
    position: Column<f64>,
    excess: Column<f64>,
}

/// Error of the tail mass of a row of 32-bit logprobs: a softmax in `f32` leaves at most 2.2e-7.
pub(super) const TAIL_ERROR: f64 = 1e-6;

/// Rounding to bfloat16 changes `l` by up to `2^-8 |l|`, so the mass by that share of the head's
/// entropy. A tenth is added for higher-order terms.
const BF16_ERROR: f64 = 1.1 / 256.0;

const LEAST: f64 = 1e-300;

impl RowSums {
    pub(super) const EMPTY: RowSums = RowSums {
        first: [0.0; ROWS],
        second: [0.0; ROWS],
        last: [0.0; ROWS],
        chosen: [0.0; ROWS],
        mass: [[0.0; 4]; ROWS],
        surprise: [[0.0; 4]; ROWS],
        square: [[0.0; 4]; ROWS],
        tail: [0.0; ROWS],
        length: [1.0; ROWS],
        quantile: [0.0; ROWS],
        flags: [0; ROWS],
    };

    /// Sets the numbers of one row besides the tail's. The sampled token is known.
    #[inline(always)]
    pub(super) fn set<const STATS: bool>(&mut self, slot: usize, row: &[f32], sums: &PartSums, flags: Flags) {
        self.first[slot] = row[0];
        self.last[slot] = row[row.len() - 1];
        self.mass[slot] = sums.mass;
        self.surprise[slot] = sums.surprise;
        self.flags[slot] = flags.bits().into();
        if STATS {
            self.second[slot] = row[usize::from(row.len() > 1)];
            self.square[slot] = sums.square;
        }
    }

    /// Sets the tail of some rows.
    #[inline(always)]
    pub(super) fn set_tail(&mut self, slots: Range<usize>, tail: u64, cut: &Cut) {
        self.tail[slots.clone()].fill(tail as f64);
        self.length[slots.clone()].fill(cut.length);
        self.quantile[slots].fill(cut.quantile);
    }
}

impl RowBounds {
    pub(super) const EMPTY: RowBounds = RowBounds {
        renormalized: [0.0; ROWS],
        lower: [0.0; ROWS],
        upper: [0.0; ROWS],
        estimate: [0.0; ROWS],
        tail_mass: [0.0; ROWS],
        surprisal: [0.0; ROWS],
        varentropy: [0.0; ROWS],
        margin: [0.0; ROWS],
        flags: [0; ROWS],
        truncated: [0.0; ROWS],
        mass: [0.0; ROWS],
        x: [0.0; ROWS],
        index: [0; ROWS],
        position: [0.0; ROWS],
        excess: [0.0; ROWS],
    };
}

/// The bits of `flag` if `condition` holds.
#[inline(always)]
fn flag(flag: Flags, condition: bool) -> u64 {
    if condition { flag.bits().into() } else { 0 }
}

/// Fills in the first `rows` entries of `found` (and some after them). `bounded` is true if the vocabulary size is known.
#[inline(always)]
pub(super) fn find<const FMA: bool, const STATS: bool>(
    rows: usize,
    known: &RowSums,
    found: &mut RowBounds,
    bounded: bool,
) {
    let table = Table::shared();
    if rows < LANES / 2 {
        for row in 0..rows {
            fill::<FMA, STATS>(row..row + 1, table, known, found, bounded);
        }
    } else {
        // Whole vectors: the entries past `rows` are stale but finite.
        fill::<FMA, STATS>(0..rows.next_multiple_of(LANES).min(ROWS), table, known, found, bounded);
    }
}

/// Fills in the entries `rows` of `found`.
#[inline(always)]
fn fill<const FMA: bool, const STATS: bool>(
    rows: Range<usize>,
    table: &Table,
    known: &RowSums,
    found: &mut RowBounds,
    bounded: bool,
) {
    for i in rows.clone() {
        let (l_first, l_last) = (known.first[i], known.last[i]);
        let (first, last) = (f64::from(l_first), f64::from(l_last));
        let (p_first, m1) = exp_and_m1_64::<FMA>(first);
        let (p_last, _) = exp_and_m1_64::<FMA>(last);

        // A sampled token outside the row is moved into it. No tail has room for one if the row is the whole distribution.
        let chosen = known.chosen[i];
        let outside = (chosen > MASKED) & (chosen < f32::INFINITY) & (chosen < l_last);
        let whole = known.tail[i] == 0.0;
        let moved = outside & !whole;
        let l_chosen = f64::from(if moved { chosen } else { 0.0 });
        let p_chosen = if moved { exp_and_m1_64::<FMA>(l_chosen).0 } else { 0.0 };
        let n = known.tail[i] - if moved { 1.0 } else { 0.0 };

        // The sums relative to l_1, and the mass as a probability, for shifted and unshifted sums.
        let is_shifted = !in_range(l_first);
        let to_relative = 1.0 / if is_shifted { 1.0 } else { p_first };
        let to_mass = if is_shifted { p_first } else { 1.0 };
        let (mass, sum_surprise) = (sum(&known.mass[i]), sum(&known.surprise[i]));
        let z = mass * to_relative;
        let surprise = sum_surprise * to_relative;

        // Two terms that are never negative, and a log that is exact for a tiny z. `mean` is the mean
        // of l - l_1 over the row.
        let partition = 1.0 / (1.0 + z);
        let mean = (surprise - first * z) * partition;
        let mean = if mean < 0.0 { mean } else { 0.0 };
        let renormalized = (ln_1p_64::<FMA>(z) - mean) as f32;

        let truncated = -first * p_first - sum_surprise * to_mass - p_chosen * l_chosen;
        // 1 - sum p without subtracting a near-one p_1 from 1.
        let outside_row = -m1 - mass * to_mass;
        let residual = outside_row - p_chosen;
        let is_bf16 = known.flags[i] & u64::from(Flags::BF16.bits()) != 0;
        let error = mul_add_64::<FMA>(if is_bf16 { BF16_ERROR } else { 0.0 }, truncated, TAIL_ERROR);

        let cap = n * p_last;
        let least = residual - error;
        let least = if least > 0.0 { least } else { 0.0 };
        let least = if least < cap { least } else { cap };
        let most = residual + error;
        let most = if most > 0.0 { most } else { 0.0 };
        let most = if most < cap { most } else { cap };

        // Least entropy: m tokens at the cap p_k and one with the remaining mass.
        let ratio = least / p_last;
        let full = floor(ratio);
        let remainder = least - full * p_last;
        let remainder = if remainder > 0.0 { remainder } else { 0.0 };
        // phi decreases above 1/e, which only the tail of a single reported value can reach. There
        // more mass means less entropy.
        let more = remainder + (most - least);
        let more = if more < p_last { more } else { p_last };
        let remainder = if remainder > 1.0 / std::f64::consts::E { more } else { remainder };
        let log = ln_64::<FMA>(if remainder > LEAST { remainder } else { LEAST });
        let lower = truncated - full * p_last * last - remainder * log;

        // Greatest entropy: a uniform tail with the possible mass that is nearest to n/e.
        let peak = n / std::f64::consts::E;
        let peak = if peak > least { peak } else { least };
        let most = if most < peak { most } else { peak };
        let each = most / if n > 1.0 { n } else { 1.0 };
        let log = ln_64::<FMA>(if each > LEAST { each } else { LEAST });
        let upper = truncated - most * log;
        let lower = if lower < upper { lower } else { upper };

        // No distribution over the vocabulary has the row as its top-k.
        let too_much = residual < -error;
        let too_little = residual > cap + error;
        // The residual of a whole row is only the rounding of its sum, of either sign.
        let negative = if whole { too_much } else { residual < 0.0 };
        let inconsistent = too_much | too_little | (outside & whole) | lacks_first(chosen, l_first);
        let flags = known.flags[i]
            | flag(Flags::CHOSEN_OUTSIDE, outside)
            | flag(Flags::NEGATIVE_RESIDUAL, negative)
            | flag(Flags::INCONSISTENT, inconsistent);
        let consistent = flags & u64::from(Flags::INCONSISTENT.bits()) == 0;
        found.flags[i] = flags;

        // Interval and estimate are valid for consistent rows only; without a vocabulary size there is no greatest entropy.
        let lower = if whole { renormalized } else { lower as f32 };
        let upper = if whole { renormalized } else { upper as f32 };
        let has_upper = consistent & (bounded | whole);
        found.renormalized[i] = renormalized;
        found.lower[i] = if consistent { lower } else { f32::NAN };
        found.upper[i] = if has_upper { upper } else { f32::NAN };
        found.tail_mass[i] = if !whole & (outside_row > 0.0) { outside_row as f32 } else { 0.0 };
        found.surprisal[i] = surprisal(chosen);
        if STATS {
            let square = sum(&known.square[i]) * to_relative - first * (2.0 * surprise - first * z);
            let varentropy = square * partition - mean * mean;
            found.varentropy[i] = (if varentropy > 0.0 { varentropy } else { 0.0 }) as f32;
            let (_, drop) = exp_and_m1_64::<FMA>(f64::from(known.second[i]) - first);
            found.margin[i] = (0.0 - p_first * drop) as f32;
        }

        let mass = if residual > 0.0 { residual } else { 0.0 };
        let mass = if mass < cap { mass } else { cap };
        let x = mass / (p_last * known.length[i]);
        let place = table.place(ln_64::<FMA>(if x > LEAST { x } else { LEAST }));
        (found.index[i], found.position[i]) = (place.index, place.position);
        found.truncated[i] = truncated;
        found.mass[i] = mass;
        found.x[i] = x;
    }
    for i in rows.clone() {
        let place = TablePlace { index: found.index[i], position: found.position[i] };
        found.excess[i] = table.excess(found.x[i], place, known.quantile[i]);
    }
    for i in rows.clone() {
        let last = f64::from(known.last[i]);
        let estimate = (found.truncated[i] + found.mass[i] * (found.excess[i] - last)) as f32;
        let (lower, upper) = (found.lower[i], found.upper[i]);
        let estimate = if estimate < lower { lower } else { estimate };
        // An unknown upper end is NaN, and the estimate with it.
        found.estimate[i] = if estimate < upper { estimate } else { upper };
    }
}

/// `-l` of the sampled token; NaN when unknown, infinite when it is masked.
#[inline(always)]
fn surprisal(chosen: f32) -> f32 {
    // Not `-l`: a certain token has surprisal 0, not -0.
    let known = 0.0 - chosen;
    let surprisal = if chosen <= MASKED { f32::INFINITY } else { known };
    if chosen == f32::INFINITY { f32::NAN } else { surprisal }
}

/// The most by which a sampled token may exceed the first value of its row, in nats. Above it, the row lacks the likeliest token.
const ABOVE_FIRST: f32 = 1e-3;

/// Whether the row lacks the likeliest token: the sampled one is above its first value.
#[inline(always)]
fn lacks_first(chosen: f32, first: f32) -> bool {
    chosen < f32::INFINITY && chosen > first + ABOVE_FIRST
}
