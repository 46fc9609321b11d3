//! Sums over the reported values of each row.
//!
//! The exponentials of a whole group of rows are computed in one loop over the flat values, which
//! fills every lane for any row width. Only the additions are done row by row.

use super::approx::exp_32;

/// Values whose terms are buffered. They fit into the first-level cache; longer rows are processed
/// in pieces.
pub(super) const VALUES: usize = 1024;

/// Independent partial sums of one row.
const LANES: usize = 8;

/// Terms that are added in 32 bits before their sum is added in 64. A longer run would round away a
/// long tail after a likely head: its terms are near the last bit of the sum, and equal terms round alike.
const RUN: usize = 4 * LANES;

/// One term per value, and the terms that a sum may read past the last one.
type Column = [f32; VALUES + LANES];

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

/// `exp(l)`, `l exp(l)` and `l^2 exp(l)` of a run of values.
#[derive(Debug)]
pub(super) struct Terms {
    /// The start and the end of the run in the values of the batch.
    from: usize,
    until: usize,
    mass: Column,
    surprise: Column,
    square: Column,
}

/// Whether a row that starts with `first` can be summed without a shift. Every row of a softmax can;
/// other rows could exceed the range of `f32`.
#[inline(always)]
pub(super) fn in_range(first: f32) -> bool {
    first > -40.0 && first < 1.0
}

/// The number of values that exceed the one before them or are NaN.
#[inline(always)]
pub(super) fn rises(values: &[f32]) -> u32 {
    let after = values.get(1..).unwrap_or_default();
    values.iter().zip(after).map(|(before, value)| 1 - u32::from(value <= before)).sum()
}

impl Terms {
    pub(super) const EMPTY: Terms = Terms {
        from: 0,
        until: 0,
        mass: [0.0; VALUES + LANES],
        surprise: [0.0; VALUES + LANES],
        square: [0.0; VALUES + LANES],
    };

    /// Discards the last run, whose values may be those of another batch.
    pub(super) fn clear(&mut self) {
        (self.from, self.until) = (0, 0);
    }

    /// Computes the terms of `values[from..until]`, at most [`VALUES`] of them.
    #[inline(always)]
    pub(super) fn fill<const FMA: bool, const STATS: bool>(&mut self, values: &[f32], from: usize, until: usize) {
        (self.from, self.until) = (from, until);
        let values = &values[from..until];
        let terms = self.mass.iter_mut().zip(&mut self.surprise).zip(&mut self.square);
        for (&value, ((mass, surprise), square)) in values.iter().zip(terms) {
            let e = exp_32::<FMA>(value);
            // Masked values are -inf or close to it. Their terms are not used, but computing them would
            // be slow or give NaN.
            let value = if value < -100.0 { -100.0 } else { value };
            *mass = e;
            *surprise = value * e;
            if STATS {
                *square = value * value * e;
            }
        }
    }

    /// Sums of the row `values[start..end]`, which is not empty, in order and [`in_range`]. A row that the
    /// last run does not cover is computed in separate runs.
    #[inline(always)]
    pub(super) fn sum<const FMA: bool, const STATS: bool>(
        &mut self,
        values: &[f32],
        start: usize,
        end: usize,
    ) -> HeadSums {
        let first = start + 1;
        let logprobs = if STATS { total(values, first, end) } else { 0.0 };
        if self.from <= start && end <= self.until {
            return HeadSums { logprobs, ..self.piece::<STATS>(first, end) };
        }
        let mut sums = HeadSums { logprobs, ..HeadSums::default() };
        for from in (first..end).step_by(VALUES) {
            let until = end.min(from + VALUES);
            self.fill::<FMA, STATS>(values, from, until);
            let piece = self.piece::<STATS>(from, until);
            sums.mass += piece.mass;
            sums.surprise += piece.surprise;
            sums.square += piece.square;
        }
        sums
    }

    #[inline(always)]
    fn piece<const STATS: bool>(&self, start: usize, end: usize) -> HeadSums {
        let (start, end) = (start - self.from, end - self.from);
        HeadSums {
            mass: total(&self.mass, start, end),
            surprise: total(&self.surprise, start, end),
            square: if STATS { total(&self.square, start, end) } else { 0.0 },
            logprobs: 0.0,
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

/// The sum of `terms[start..end]`, in 32-bit lanes with [few](RUN) terms each, so that the rounding error
/// stays that of single terms. Terms after `end` may be read but are not added.
#[inline(always)]
pub(super) fn total(terms: &[f32], start: usize, end: usize) -> f64 {
    let mut total = 0.0;
    let mut at = start;
    while at < end {
        let stop = end.min(at + RUN);
        let mut lanes = [0f32; LANES];
        let (chunks, rest) = terms[at..stop].as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, term) in lanes.iter_mut().zip(chunk) {
                *lane += term;
            }
        }
        if let Some(chunk) = terms[stop - rest.len()..].first_chunk::<LANES>() {
            // A blend in registers; a loop over `rest` would wait for memory.
            for lane in 0..LANES {
                lanes[lane] += if (lane as u32) < rest.len() as u32 { chunk[lane] } else { 0.0 };
            }
        } else {
            for (lane, term) in lanes.iter_mut().zip(rest) {
                *lane += term;
            }
        }
        at = stop;
        let [a, b, c, d, e, f, g, h] = lanes.map(f64::from);
        total += ((a + e) + (c + g)) + ((b + f) + (d + h));
    }
    total
}
