//! The power-law tail of the point estimate.
//!
//! The tail is `q(j) = p_k (j/k')^-a` over ranks `k' = k + 1/2 .. V + 1/2`. With `b = a - 1`,
//! `L = ln((V + 1/2) / k')` and `y = bL`, its mass and its entropy are
//!
//! ```text
//! r = p_k k' L w(y)                        w(y) = (1 - e^-y) / y
//! T = r (-l_k + F)                         F = (L + y) h(y) / w(y)
//!                                          h(y) = (1 - e^-y (1 + y)) / y^2
//! ```
//!
//! so `y` follows from the single number `x = r / (p_k k' L)` by `w(y) = x`, and `F = A + L G` with
//! `A = y h/w` and `G = h/w`, for any `k` and `V`. So one table of `A` and `G` over `ln x` works for
//! every row, and no equation is solved per token.

use std::sync::LazyLock;

const KNOTS: usize = 512;
/// Beyond this `y` the tail ends long before the vocabulary does: `w = 1/y` to 3e-10.
const STEEPEST: f64 = 22.0;
/// `y >= -L`, as no tail rises, and `L < 20.6` for five values of a 32-bit vocabulary.
const FLATTEST: f64 = -21.0;

/// For rows with fewer values, the power law is not more accurate than the middle of the
/// interval.
pub(super) const LEAST_VALUES: usize = 5;

/// `A` and `G` over `ln x`, as cubics through values and slopes at even steps.
#[derive(Debug)]
pub(super) struct Table {
    first: f64,
    steps_per_unit: f64,
    knots: Vec<TableKnot>,
}

/// The geometry of the power-law tail, which is the same for rows of one width.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ladder {
    pub(super) k: usize,
    pub(super) vocab: u64,
    /// `L`
    pub(super) span: f64,
    /// `k' L`, which is `r / p_k` if `y` is zero.
    pub(super) length: f64,
}

#[derive(Debug, Clone, Copy)]
struct TableKnot {
    a: f64,
    a_slope: f64,
    g: f64,
    g_slope: f64,
}

/// `w`, `h` and the slope of `h` at one `y`.
struct Curve {
    w: f64,
    h: f64,
    h_slope: f64,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

impl Table {
    /// The table of this process, built on first use in about 0.1 ms.
    pub(super) fn shared() -> &'static Table {
        &TABLE
    }

    fn new() -> Table {
        let first = Curve::at(STEEPEST).w.ln();
        let step = (Curve::at(FLATTEST).w.ln() - first) / (KNOTS - 1) as f64;
        let mut y = STEEPEST;
        let knots = (0..KNOTS).map(|index| {
            let target = first + step * index as f64;
            // Newton from the knot before; d(ln w)/dy = -h/w.
            for _ in 0..3 {
                let Curve { w, h, .. } = Curve::at(y);
                y += (w.ln() - target) * w / h;
            }
            TableKnot::at(y, step)
        });
        Table { first, steps_per_unit: 1.0 / step, knots: knots.collect() }
    }

    /// `F`: the mean surprisal of the tail in excess of `-l_k`, in nats, given `x`, `ln x`, `L`.
    #[inline(always)]
    pub(super) fn excess(&self, x: f64, ln_x: f64, span: f64) -> f64 {
        let place = (ln_x - self.first) * self.steps_per_unit;
        if place < 0.0 {
            return 1.0 + x * span;
        }
        let index = (place as usize).min(KNOTS - 2);
        let Some([left, right]) = self.knots[index..].first_chunk() else {
            return f64::NAN;
        };
        let u = (place - index as f64).min(1.0);
        let a = cubic(u, [left.a, left.a_slope, right.a, right.a_slope]);
        let g = cubic(u, [left.g, left.g_slope, right.g, right.g_slope]);
        a + span * g
    }
}

impl Ladder {
    pub(super) const EMPTY: Ladder = Ladder { k: 0, vocab: 0, span: 0.0, length: 1.0 };

    pub(super) fn new(k: usize, vocab: u64) -> Ladder {
        let reach = k as f64 + 0.5;
        let span = ((vocab as f64 + 0.5) / reach).ln();
        // A row as wide as the vocabulary has no tail, so any finite value works.
        let length = if span > 0.0 { reach * span } else { 1.0 };
        Ladder { k, vocab, span, length }
    }
}

impl TableKnot {
    /// Values at `y`, slopes for one `step` of `ln x`.
    fn at(y: f64, step: f64) -> TableKnot {
        let Curve { w, h, h_slope } = Curve::at(y);
        let g = h / w;
        let g_by_y = h_slope / w + g * g;
        TableKnot { a: y * g, a_slope: -step * (g + y * g_by_y) / g, g, g_slope: -step * g_by_y / g }
    }
}

impl Curve {
    fn at(y: f64) -> Curve {
        if y.abs() > 0.5 {
            let e = (-y).exp();
            let h = (1.0 - e * (1.0 + y)) / (y * y);
            return Curve { w: -(-y).exp_m1() / y, h, h_slope: (e - 2.0 * h) / y };
        }
        // Near zero the closed forms cancel: h = sum (m+1)/(m+2)! (-y)^m, and w likewise.
        let (mut w, mut h, mut h_slope) = (0.0, 0.0, 0.0);
        let (mut power, mut slope_power, mut factorial) = (1.0, 0.0, 1.0);
        for m in 0..16 {
            let m = f64::from(m);
            factorial *= m + 1.0;
            w += power / factorial;
            let weight = (m + 1.0) / (factorial * (m + 2.0));
            h += weight * power;
            h_slope += weight * m * slope_power;
            slope_power = -power;
            power *= -y;
        }
        Curve { w, h, h_slope }
    }
}

/// The cubic on `0..1` with the given value and slope at either end.
#[inline(always)]
fn cubic(u: f64, [from, from_slope, to, to_slope]: [f64; 4]) -> f64 {
    let rise = to - from;
    let bend = from_slope + to_slope - 2.0 * rise;
    from + u * (from_slope + u * ((rise - from_slope - bend) + u * bend))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `F` from a bisected `y`, with the integrals of the tail in their textbook form.
    fn excess_by_bisection(x: f64, span: f64) -> f64 {
        let (mut low, mut high) = (-30.0, 1e9);
        for _ in 0..200 {
            let y = 0.5 * (low + high);
            if Curve::at(y).w > x { low = y } else { high = y }
        }
        let Curve { w, h, .. } = Curve::at(0.5 * (low + high));
        (span + 0.5 * (low + high)) * h / w
    }

    #[test]
    fn table_matches_the_solved_equation() {
        let table = Table::shared();
        let mut worst = 0f64;
        for span in [0.01, 0.5, 2.0, 7.0, 9.0, 20.5f64] {
            let flattest = (span.exp_m1() / span).ln();
            for step in 0..=20_000 {
                let ln_x = flattest - f64::from(step) * 1e-3;
                let error = table.excess(ln_x.exp(), ln_x, span) - excess_by_bisection(ln_x.exp(), span);
                worst = worst.max(error.abs());
            }
        }
        assert!(worst < 1e-6, "the table is off by {worst:e} nat per unit of tail mass");
    }

    #[test]
    fn series_and_closed_form_agree() {
        for y in [0.5, -0.5f64] {
            let (inside, outside) = (Curve::at(y), Curve::at(y * (1.0 + 1e-12)));
            assert!((inside.w - outside.w).abs() < 1e-11);
            assert!((inside.h - outside.h).abs() < 1e-11);
            assert!((inside.h_slope - outside.h_slope).abs() < 1e-11);
        }
    }

    #[test]
    fn flat_tail_has_no_excess() {
        let span = 9f64;
        let x = span.exp_m1() / span;
        assert!(Table::shared().excess(x, x.ln(), span).abs() < 1e-7);
    }
}
