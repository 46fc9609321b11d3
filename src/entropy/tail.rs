// SPDX-License-Identifier: Apache-2.0
//! The log-normal tail of the point estimate.
//!
//! Logits are taken for a Gaussian that is cut at rank `k`: the `n = V - k` tokens of the tail have
//! `l = l_k + s (u - t)`, where `u` is a standard normal below `t`, `Phi(t) = n / V`, and `s` is the
//! spread of the logits. With `M(z) = Phi(z) / phi(z)`, `z = t - s` and `A = z + 1 / M(z)`, the mean
//! of `exp(s (u - t))` and the mean of `-s (u - t)` weighted with it are
//!
//! ```text
//! r = n p_k M(z) / M(t)
//! F = s (t - s + phi(t - s) / Phi(t - s)) = (t - z) A
//! T = r (-l_k + F)
//! ```
//!
//! which are the moments of a truncated normal. So `z` follows from the single number
//! `x = r M(t) / (n p_k)` by `M(z) = x`, and `F = t A - z A` for any `k` and `V`. One table of `A` and
//! `-z A` over `ln x` works for every row, and no equation is solved per token. The spread has its
//! limits there: the flat tail is `x = M(t)` with `F = 0`, and an endless spread is `x = 0` with
//! `F = 1`, the excess of an exponential.

use std::sync::LazyLock;

use super::approx::{floor, low_bits};

const KNOTS: usize = 512;
/// The least tabulated `x`. Below it, the series of `F` has an error of less than `t x^3 < 5e-8`.
const STEEPEST: f64 = 1.0 / 512.0;
/// The greatest tabulated `ln x`. For one token of a vocabulary of 32 bits, `ln M(t)` is 20.3.
const FLATTEST: f64 = 21.0;

/// The number of intervals between the knots.
const INTERVALS: usize = KNOTS - 1;

/// `A` and `-z A` over `ln x`, as cubics through values and slopes at even steps.
#[derive(Debug)]
pub(super) struct Table {
    first: f64,
    steps_per_unit: f64,
    cubics: Box<[Cubics; INTERVALS]>,
}

/// The coefficients of both cubics on one interval, lowest power first.
type Cubics = [[f64; 2]; 4];

/// The interval of the table that has an `ln x`.
#[derive(Debug, Clone, Copy)]
pub(super) struct TablePlace {
    /// The index of the interval; any number for an `x` below the table.
    pub(super) index: u64,
    /// The position in the interval, from 0 to 1; negative for an `x` below the table.
    pub(super) position: f64,
}

/// Where rows of one width cut the Gaussian.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) k: usize,
    pub(super) vocab: u64,
    /// `t`
    pub(super) quantile: f64,
    /// `n / M(t)`, which is `r / p_k` for `x = 1`.
    pub(super) length: f64,
}

#[derive(Debug, Clone, Copy)]
struct TableKnot {
    excess: f64,
    excess_slope: f64,
    factor: f64,
    factor_slope: f64,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

impl Table {
    /// The table of this process, built on first use in about 0.3 ms.
    pub(super) fn shared() -> &'static Table {
        &TABLE
    }

    fn new() -> Table {
        let first = STEEPEST.ln();
        let step = (FLATTEST - first) / (KNOTS - 1) as f64;
        let mut z = -1.0 / STEEPEST;
        let mut knot = |index: usize| {
            let target = first + step * index as f64;
            // Newton from the knot before; d(ln M)/dz = A.
            for _ in 0..4 {
                let ratio = mills(z);
                z += (target - ratio.ln()) / (z + 1.0 / ratio);
            }
            TableKnot::at(z, step)
        };
        let mut cubics = Box::new([Cubics::default(); INTERVALS]);
        let mut left = knot(0);
        for (index, cubics) in cubics.iter_mut().enumerate() {
            let right = knot(index + 1);
            let excess = cubic([left.excess, left.excess_slope, right.excess, right.excess_slope]);
            let factor = cubic([left.factor, left.factor_slope, right.factor, right.factor_slope]);
            *cubics = std::array::from_fn(|power| [excess[power], factor[power]]);
            left = right;
        }
        Table { first, steps_per_unit: 1.0 / step, cubics }
    }

    /// The interval of an `ln x`.
    #[inline(always)]
    pub(super) fn place(&self, ln_x: f64) -> TablePlace {
        const LAST: f64 = (INTERVALS - 1) as f64;
        let place = (ln_x - self.first) * self.steps_per_unit;
        let index = floor(place);
        let index = if index < LAST { index } else { LAST };
        let within = place - index;
        let within = if within < 1.0 { within } else { 1.0 };
        TablePlace { index: low_bits(index), position: if place < 0.0 { place } else { within } }
    }

    /// `F`: the mean surprisal of the tail in excess of `-l_k`, in nats, given `x`, the place of `ln x`, and `t`.
    #[inline(always)]
    pub(super) fn excess(&self, x: f64, place: TablePlace, quantile: f64) -> f64 {
        let TablePlace { index, position } = place;
        if position < 0.0 {
            return 1.0 + x * (quantile - 2.0 * x);
        }
        let [one, two, three, four] = &self.cubics[(index as usize).min(INTERVALS - 1)];
        let mut values = [0.0; 2];
        for (at, value) in values.iter_mut().enumerate() {
            *value = one[at] + position * (two[at] + position * (three[at] + position * four[at]));
        }
        values[0] + quantile * values[1]
    }
}

impl Cut {
    pub(super) const EMPTY: Cut = Cut { k: 0, vocab: 0, quantile: 0.0, length: 1.0 };

    /// The cut of `k` of `vocab` values, `1 <= k < vocab`. Takes about two microseconds.
    #[cold]
    #[inline(never)]
    pub(super) fn new(k: usize, vocab: u64) -> Cut {
        let (head, total) = (k as f64, vocab as f64);
        let tail = total - head;
        let quantile = if head < tail { -quantile(head / total) } else { quantile(tail / total) };
        Cut { k, vocab, quantile, length: tail / mills(quantile) }
    }
}

impl TableKnot {
    /// Values at `z`, slopes for one `step` of `ln x`, by `dz / d(ln x) = 1 / A`.
    fn at(z: f64, step: f64) -> TableKnot {
        let inverse = 1.0 / mills(z);
        let factor = z + inverse;
        let slope = 1.0 / factor - inverse;
        TableKnot { excess: -z * factor, excess_slope: -step * (1.0 + z * slope), factor, factor_slope: step * slope }
    }
}

/// `M(z) = Phi(z) / phi(z)`, the Mills ratio of the standard normal at `-z`, for `z < 8`.
fn mills(z: f64) -> f64 {
    if z < -3.0 {
        // Laplace's continued fraction, from its end.
        return 1.0 / (1..=40).rev().fold(-z, |inner, term| f64::from(term) / inner - z);
    }
    // Phi = 1/2 + phi (z + z^3 / 3 + z^5 / (3 5) + ..)
    let (mut term, mut series) = (z, z);
    for odd in (3..400).step_by(2) {
        term *= z * z / f64::from(odd);
        series += term;
        if term.abs() < 1e-17 * series.abs() {
            break;
        }
    }
    (std::f64::consts::PI / 2.0).sqrt() * (0.5 * z * z).exp() + series
}

/// The `z <= 0` at which the standard normal has this probability below it, `0 < probability <= 1/2`.
fn quantile(probability: f64) -> f64 {
    let ln_target = probability.ln();
    let mut z = 0.0;
    // Newton in ln Phi, which is concave with the slope 1/M: after one step it converges from one side.
    for _ in 0..60 {
        let ratio = mills(z);
        let ln_phi = -0.5 * (z * z + (2.0 * std::f64::consts::PI).ln());
        let step = (ln_target - ratio.ln() - ln_phi) * ratio;
        z += step;
        if step.abs() < 1e-13 {
            break;
        }
    }
    z
}

/// The coefficients of the cubic on `0..1` with the given value and slope at either end.
fn cubic([from, from_slope, to, to_slope]: [f64; 4]) -> [f64; 4] {
    let rise = to - from;
    let bend = from_slope + to_slope - 2.0 * rise;
    [from, from_slope, rise - from_slope - bend, bend]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of `weight(u)` over a standard normal below `t`, by Simpson's rule over 24 units.
    fn integral(t: f64, weight: impl Fn(f64) -> f64) -> f64 {
        const STEPS: u32 = 40_000;
        let step = 24.0 / f64::from(STEPS);
        let value = |at: u32| {
            let u = t - step * f64::from(at);
            (-0.5 * u * u).exp() * weight(u)
        };
        let ends = value(0) + value(STEPS);
        let inside: f64 = (1..STEPS).map(|at| value(at) * if at % 2 == 1 { 4.0 } else { 2.0 }).sum();
        (ends + inside) * step / 3.0 / (2.0 * std::f64::consts::PI).sqrt()
    }

    /// The model itself: `r / p_k` and `F` of a tail with the spread `s`, without the Mills ratio.
    fn tail(k: usize, vocab: u64, t: f64, s: f64) -> (f64, f64) {
        let n = (vocab - k as u64) as f64;
        let all = integral(t, |_| 1.0);
        let mass = integral(t, |u| (s * (u - t)).exp());
        let surprise = integral(t, |u| -s * (u - t) * (s * (u - t)).exp());
        (n * mass / all, surprise / mass)
    }

    #[test]
    fn table_matches_the_integrals_of_a_truncated_normal() {
        let table = Table::shared();
        for (k, vocab) in [(1, 262_144), (3, 151_936), (20, 49_152), (128, 151_936), (900, 1000), (20, 4_000_000_000)] {
            let cut = Cut::new(k, vocab);
            let share = 1.0 - k as f64 / vocab as f64;
            assert!((integral(cut.quantile, |_| 1.0) - share).abs() < 1e-10, "the quantile of {k} of {vocab}");
            for s in [1e-3, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0] {
                let (ratio, excess) = tail(k, vocab, cut.quantile, s);
                let x = ratio / cut.length;
                let error = table.excess(x, table.place(x.ln()), cut.quantile) - excess;
                assert!(error.abs() < 1e-7, "k = {k}, V = {vocab}, s = {s}: {excess} is off by {error:e}");
            }
        }
    }

    #[test]
    fn limits_of_the_spread_are_exact() {
        let table = Table::shared();
        for (k, vocab) in [(1, 1 << 32), (5, 50_000), (20, 151_936), (999, 1000)] {
            let Cut { quantile, length, .. } = Cut::new(k, vocab);
            let flat = (vocab - k as u64) as f64 / length;
            let excess = table.excess(flat, table.place(flat.ln()), quantile);
            assert!(excess.abs() < 1e-7, "a flat tail of {k} of {vocab} has {excess:e}");
            for x in [0.0, 1e-300, 1e-9] {
                let excess = table.excess(x, table.place(f64::max(x, 1e-300).ln()), quantile);
                assert!((excess - 1.0).abs() < 1e-7, "an endless spread of {k} of {vocab} has {excess}");
            }
        }
    }

    #[test]
    fn series_and_table_agree() {
        let (below, above) = (STEEPEST * (1.0 - 1e-9), STEEPEST * (1.0 + 1e-9));
        for quantile in [-4.0, 0.0, 6.3] {
            let table = Table::shared();
            let [below, above] = [below, above].map(|x| table.excess(x, table.place(x.ln()), quantile));
            assert!((below - above).abs() < 1e-7, "{below} {above}");
        }
    }

    #[test]
    fn series_and_fraction_of_the_mills_ratio_agree() {
        let (fraction, series) = (mills(-3.0 - 1e-13), mills(-3.0));
        assert!((fraction - series).abs() < 1e-12, "{fraction} {series}");
        assert!((mills(0.0) - (std::f64::consts::PI / 2.0).sqrt()).abs() < 1e-15);
    }
}
