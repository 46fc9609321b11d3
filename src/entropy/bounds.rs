//! The statistics of many rows at once, computed from the sums of each row in lanes of 64-bit floats.

use super::approx::{exp_and_m1_64, ln_1p_64, ln_64, mul_add_64};

/// Rows that are computed together; a multiple of any lane count.
pub(super) const ROWS: usize = 32;

/// One number per row.
pub(super) type Column = [f64; ROWS];

/// The sums of each row. Every entry is finite for any row.
#[derive(Debug)]
pub(super) struct RowSums {
    /// `l_1`
    pub(super) first: Column,
    /// `l_2`, or `l_1` if there is no second value; read with statistics only.
    pub(super) second: Column,
    /// `l_k`
    pub(super) last: Column,
    /// `sum_{i>1} e_i`, `sum_{i>1} l_i e_i` and, with statistics, `sum_{i>1} l_i^2 e_i`, where
    /// `e_i = exp(l_i - shift)`.
    pub(super) mass: Column,
    pub(super) surprise: Column,
    pub(super) square: Column,
    /// 1 if the sums were shifted by `l_1`, else 0.
    pub(super) shifted: Column,
    /// A sampled token outside the row: its logprob, and 1 if there is one, else 0.
    pub(super) chosen: Column,
    pub(super) outside: Column,
    /// Error bar on the tail mass: this much for each nat of the head's entropy, on top of
    /// [`TAIL_ERROR`].
    pub(super) relative_error: Column,
    /// `n`, tail tokens (the sampled one not counted, once it is known).
    pub(super) tail: Column,
    /// `n / M(t)` of the log-normal tail.
    pub(super) length: Column,
}

/// The results for each row, in nats or as probabilities.
#[derive(Debug)]
pub(super) struct RowBounds {
    pub(super) renormalized: Column,
    pub(super) lower: Column,
    pub(super) upper: Column,
    /// Variance of the surprisal and `p_1 - p_2`; filled in with statistics only.
    pub(super) varentropy: Column,
    pub(super) margin: Column,
    /// `1 - sum p_i`, before and after a sampled token outside the row was moved into it.
    pub(super) outside_row: Column,
    pub(super) residual: Column,
    /// The error bar on `residual`, and the most it can be, `n p_k`.
    pub(super) error: Column,
    pub(super) cap: Column,
    /// The entropy of all known tokens, `sum phi(p_i)`.
    pub(super) truncated: Column,
    /// The tail mass the estimate uses, and `x`, `ln x` of the log-normal tail.
    pub(super) estimate_mass: Column,
    pub(super) x: Column,
    pub(super) ln_x: Column,
}

/// Error of the tail mass of a row of 32-bit logprobs: a softmax in `f32` leaves at most 2.2e-7.
pub(super) const TAIL_ERROR: f64 = 1e-6;

const LEAST: f64 = 1e-300;

impl RowSums {
    pub(super) const EMPTY: RowSums = RowSums {
        first: [0.0; ROWS],
        second: [0.0; ROWS],
        last: [0.0; ROWS],
        mass: [0.0; ROWS],
        surprise: [0.0; ROWS],
        square: [0.0; ROWS],
        shifted: [0.0; ROWS],
        chosen: [0.0; ROWS],
        outside: [0.0; ROWS],
        relative_error: [0.0; ROWS],
        tail: [0.0; ROWS],
        length: [1.0; ROWS],
    };
}

impl RowBounds {
    pub(super) const EMPTY: RowBounds = RowBounds {
        renormalized: [0.0; ROWS],
        lower: [0.0; ROWS],
        upper: [0.0; ROWS],
        varentropy: [0.0; ROWS],
        margin: [0.0; ROWS],
        outside_row: [0.0; ROWS],
        residual: [0.0; ROWS],
        error: [0.0; ROWS],
        cap: [0.0; ROWS],
        truncated: [0.0; ROWS],
        estimate_mass: [0.0; ROWS],
        x: [0.0; ROWS],
        ln_x: [0.0; ROWS],
    };
}

/// Fills in the first `rows` entries of `found` (and some after them).
#[inline(always)]
pub(super) fn find<const FMA: bool, const STATS: bool>(rows: usize, known: &RowSums, found: &mut RowBounds) {
    // Whole groups of lanes: the entries past `rows` are stale but finite.
    let rows = rows.next_multiple_of(8).min(ROWS);
    for i in 0..rows {
        let last = known.last[i];
        let (p_first, m1) = exp_and_m1_64::<FMA>(known.first[i]);
        let (p_last, _) = exp_and_m1_64::<FMA>(last);

        // The sums relative to l_1, and the mass as a probability, for shifted and unshifted sums.
        let shifted = known.shifted[i] > 0.0;
        let to_relative = 1.0 / if shifted { 1.0 } else { p_first };
        let to_mass = if shifted { p_first } else { 1.0 };
        let first = known.first[i];
        let z = known.mass[i] * to_relative;
        let surprise = known.surprise[i] * to_relative;

        // Two terms that are never negative, and a log that is exact for a tiny z. `mean` is the mean
        // of l - l_1 over the row.
        let partition = 1.0 / (1.0 + z);
        let mean = (surprise - first * z) * partition;
        let mean = if mean < 0.0 { mean } else { 0.0 };
        let renormalized = ln_1p_64::<FMA>(z) - mean;

        let p_chosen = known.outside[i] * exp_and_m1_64::<FMA>(known.chosen[i]).0;
        let truncated = -first * p_first - known.surprise[i] * to_mass - p_chosen * known.chosen[i];
        // 1 - sum p without subtracting a near-one p_1 from 1.
        let outside_row = -m1 - known.mass[i] * to_mass;
        let residual = outside_row - p_chosen;
        let error = mul_add_64::<FMA>(known.relative_error[i], truncated, TAIL_ERROR);

        let n = known.tail[i];
        let cap = n * p_last;
        let least = residual - error;
        let least = if least > 0.0 { least } else { 0.0 };
        let least = if least < cap { least } else { cap };
        let most = residual + error;
        let most = if most > 0.0 { most } else { 0.0 };
        let most = if most < cap { most } else { cap };

        // Least entropy: m tokens at the cap p_k and one with the remaining mass.
        let ratio = least / p_last;
        let whole = floor(ratio);
        let remainder = least - whole * p_last;
        let remainder = if remainder > 0.0 { remainder } else { 0.0 };
        // phi decreases above 1/e, which only the tail of a single reported value can reach. There
        // more mass means less entropy.
        let more = remainder + (most - least);
        let more = if more < p_last { more } else { p_last };
        let remainder = if remainder > 1.0 / std::f64::consts::E { more } else { remainder };
        let log = ln_64::<FMA>(if remainder > LEAST { remainder } else { LEAST });
        let lower = truncated - whole * p_last * last - remainder * log;

        // Greatest entropy: a uniform tail with the possible mass that is nearest to n/e.
        let peak = n / std::f64::consts::E;
        let peak = if peak > least { peak } else { least };
        let most = if most < peak { most } else { peak };
        let each = most / if n > 1.0 { n } else { 1.0 };
        let log = ln_64::<FMA>(if each > LEAST { each } else { LEAST });
        let upper = truncated - most * log;

        let mass = if residual > 0.0 { residual } else { 0.0 };
        let mass = if mass < cap { mass } else { cap };
        let x = mass / (p_last * known.length[i]);
        let ln_x = ln_64::<FMA>(if x > LEAST { x } else { LEAST });

        if STATS {
            let square = known.square[i] * to_relative - first * (2.0 * surprise - first * z);
            let varentropy = square * partition - mean * mean;
            found.varentropy[i] = if varentropy > 0.0 { varentropy } else { 0.0 };
            let (_, drop) = exp_and_m1_64::<FMA>(known.second[i] - first);
            found.margin[i] = 0.0 - p_first * drop;
        }
        found.renormalized[i] = renormalized;
        found.lower[i] = if lower < upper { lower } else { upper };
        found.upper[i] = upper;
        found.outside_row[i] = outside_row;
        found.residual[i] = residual;
        found.error[i] = error;
        found.cap[i] = cap;
        found.truncated[i] = truncated;
        found.estimate_mass[i] = mass;
        found.x[i] = x;
        found.ln_x[i] = ln_x;
    }
}

/// The floor of `x` in `0..2^51`, in arithmetic that every target can vectorize.
#[inline(always)]
fn floor(x: f64) -> f64 {
    const ROUND: f64 = 4_503_599_627_370_496.0;
    let near = (x + ROUND) - ROUND;
    if near > x { near - 1.0 } else { near }
}
