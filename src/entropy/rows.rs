// SPDX-License-Identifier: Apache-2.0
//! Whole rows of logits, and the statistics of the tokens sampled from them.
//!
//! With `d_i = (x_i - m) log2(e) / T` and `m` the greatest logit, three sums are enough:
//! `z = sum 2^d_i`, `s = sum d_i 2^d_i` and `q = sum d_i^2 2^d_i`. The entropy `ln 2 (log2 z - s / z)` is then
//! a sum of two terms that are not negative, so nothing cancels and it is never below zero, where the textbook
//! `log_z - sum p_i x_i / T` loses the last bits of two large numbers. A block with a greater logit changes the sums
//! so far to `z e`, `(s + z δ) e` and `(q + 2 s δ + z δ^2) e` with `e = 2^δ` and `δ` the (negative) step in `d`.

pub(crate) mod format;
pub(crate) mod kernel;
mod sums;

use std::f64::consts::{LN_2, LOG2_E};

use super::{Flags, MASKED};
use format::{Bfloat16, Half, Single, ValueFormat};
use kernel::Plain;

/// How the values of a slice are stored, little endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// The upper half of single precision.
    Bf16,
    /// IEEE half precision.
    F16,
}

/// A batch of whole rows of logits to measure.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    /// How each value is stored.
    pub dtype: Dtype,
    /// Values per row.
    pub vocab: usize,
    /// `rows * vocab` values, row after row, at any alignment; bytes after the last whole row are ignored.
    pub bytes: &'a [u8],
    /// The divisors of the logits: one value per row, or one for all rows, or none for 1. A row without a value, or
    /// with one that is not a normal number above zero, is not measured ([`Flags::NAN`]).
    pub temperature: &'a [f32],
    /// The sampled token of each row. Negative and missing ones are unknown.
    pub chosen: &'a [i64],
}

/// The statistics of a token by its row of logits, for `softmax(logits / T)`. NaN if the row was not
/// measured (see [`Flags::is_measured`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowStats {
    /// `-sum p_i ln p_i` in nats, never negative.
    pub entropy: f64,
    /// `ln sum exp(x_i / T)`.
    pub log_z: f64,
    /// The probability of the likeliest token.
    pub p_max: f64,
    /// Variance of the surprisal, `sum p_i (ln p_i)^2 - entropy^2`, in nats squared.
    pub varentropy: f64,
    /// `-ln p` of the sampled token in nats: infinite when it is masked, NaN when it is unknown or outside
    /// the vocabulary.
    pub surprisal: f64,
    /// [`Flags::MISSING`] (all masked) or [`Flags::NAN`].
    pub flags: Flags,
}

/// The sums over one row, the result of every backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw {
    /// The factor of `x_i - m`: `log2(e) / T`, rounded to 32 bits by the backend.
    pub(crate) scale: f32,
    /// `m`, the greatest logit, before any temperature.
    pub(crate) top: f64,
    /// `sum 2^d_i` over the tokens that are not masked: at least 1, or 0 if all tokens are masked.
    pub(crate) z: f64,
    /// `sum d_i 2^d_i`; this one or `z` is NaN when a logit was NaN or positive infinity.
    pub(crate) s: f64,
    /// `sum d_i^2 2^d_i`.
    pub(crate) q: f64,
    /// `d` of the sampled token: minus infinity when it is masked, NaN when it is unknown.
    pub(crate) chosen: f64,
}

impl Dtype {
    /// Bytes per value.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 | Dtype::F16 => 2,
        }
    }

    /// The name in safetensors.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "F32",
            Dtype::Bf16 => "BF16",
            Dtype::F16 => "F16",
        }
    }
}

impl<'a> Logits<'a> {
    /// The number of whole rows; none when a row has no values.
    pub fn rows(&self) -> usize {
        self.bytes.len().checked_div(self.row_bytes()).unwrap_or(0)
    }

    /// The byte range of a row.
    fn range(&self, row: usize) -> (usize, usize) {
        let start = row * self.row_bytes();
        (start, start + self.row_bytes())
    }

    /// The temperature of a row, if it is valid.
    pub(crate) fn temperature(&self, row: usize) -> Option<f32> {
        let temperature = match self.temperature {
            [] => Some(1.0),
            [all] => Some(*all),
            each => each.get(row).copied(),
        };
        temperature.filter(|temperature| temperature.is_normal() && *temperature > 0.0)
    }

    /// The index of the sampled token in its row, if it is valid.
    pub(crate) fn chosen(&self, row: usize) -> Option<usize> {
        let id = usize::try_from(*self.chosen.get(row)?).ok()?;
        (id < self.vocab).then_some(id)
    }

    /// `d` of the sampled token of a row with this greatest logit; NaN if the token is unknown.
    pub(crate) fn chosen_distance(&self, row: usize, top: f64, temperature: f32) -> f64 {
        let Some(id) = self.chosen(row) else { return f64::NAN };
        let at = self.range(row).0 + id * self.dtype.bytes();
        let bytes = &self.bytes[at..at + self.dtype.bytes()];
        let mut logit = [0.0];
        match self.dtype {
            Dtype::F32 => Single::widen(Plain::<false>, bytes, &mut logit),
            Dtype::Bf16 => Bfloat16::widen(Plain::<false>, bytes, &mut logit),
            Dtype::F16 => Half::widen(Plain::<false>, bytes, &mut logit),
        }
        distance(logit[0], top, temperature)
    }

    fn row_bytes(&self) -> usize {
        // A width that overflows is wider than any slice.
        self.vocab.saturating_mul(self.dtype.bytes())
    }
}

impl RowStats {
    /// Statistics without values, only with flags.
    pub(crate) fn unmeasured(flags: Flags) -> RowStats {
        let nan = f64::NAN;
        RowStats { entropy: nan, log_z: nan, p_max: nan, varentropy: nan, surprisal: nan, flags }
    }
}

/// `log2(e) / T` in 32 bits.
fn scale(temperature: f32) -> f32 {
    (LOG2_E / f64::from(temperature)) as f32
}

/// `d` of a logit in a row with this greatest one.
fn distance(logit: f32, top: f64, temperature: f32) -> f64 {
    if logit <= MASKED {
        return f64::NEG_INFINITY;
    }
    (f64::from(logit) - top) * (LOG2_E / f64::from(temperature))
}

/// Computes the statistics of a row from its sums.
pub(crate) fn finish(raw: Raw, temperature: f32) -> RowStats {
    let Raw { scale, top, z, s, q, chosen } = raw;
    if !(z.is_finite() && s.is_finite() && q.is_finite()) {
        return RowStats::unmeasured(Flags::NAN);
    }
    if z == 0.0 {
        return RowStats::unmeasured(Flags::MISSING);
    }
    let mean = s / z;
    let varentropy = LN_2 * LN_2 * (q / z - mean * mean).max(0.0);
    // The scale was rounded, so the sums belong to a slightly different temperature. The derivatives correct
    // this: `d log2 z = mean dβ/β` and `d entropy = -varentropy dβ/β`, a correction of at most about 1e-5.
    let rounding = LOG2_E / f64::from(temperature) / f64::from(scale) - 1.0;
    let log = z.log2() + mean * rounding;
    RowStats {
        entropy: LN_2 * (z.log2() - mean) - varentropy * rounding,
        log_z: top / f64::from(temperature) + LN_2 * log,
        p_max: (-log).exp2(),
        varentropy,
        surprisal: LN_2 * (log - chosen),
        flags: Flags::empty(),
    }
}
