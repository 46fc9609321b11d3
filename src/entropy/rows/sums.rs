// SPDX-License-Identifier: Apache-2.0
//! The three sums over a row, relative to the greatest logit so far.

use super::kernel::Machine;
use super::{MASKED, Raw};

/// Independent partial sums.
pub(crate) const LANES: usize = 32;

/// Values that are summed in 32 bits before the lanes are added in 64. Equal terms round alike, so over a longer
/// run the bias would exceed the error of the terms themselves.
pub(crate) const RUN: usize = 8 * LANES;

/// Terms below 2^-125 are ignored: that is near the least normal number, and the greatest term is 1.
const FLOOR: f32 = -125.0;

/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// `2^f = 1 + f (c_1 + f (c_2 + ..))` for `|f| <= 1/2`, highest power first: the least relative error (2e-9, before
/// rounding) with a fixed 1, so that the term of the greatest value is exactly 1.
const EXP2: [f32; 6] = [1.535_336_3e-4, 1.339_887_5e-3, 9.618_437e-3, 5.550_332_4e-2, 2.402_264_8e-1, 6.931_472e-1];

/// How differences of logits become powers of two.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// The factor of a difference, `log2(e) / T`.
    by: f32,
    /// Its reciprocal in two parts, the first with so few bits that its product with any exponent is exact.
    step: [f32; 2],
    /// The difference at which a term is ignored.
    floor: f32,
}

/// The sums of a row so far.
#[derive(Debug)]
pub(crate) struct Sums {
    scale: Scale,
    top: f32,
    z: [f64; LANES],
    s: [f64; LANES],
    q: [f64; LANES],
}

impl Sums {
    /// Empty sums, for differences that are multiplied by `scale`.
    #[inline(always)]
    pub(crate) fn new(scale: f32) -> Sums {
        let step = 1.0 / f64::from(scale);
        let upper = f32::from_bits((step as f32).to_bits() & 0xffff_ff00);
        let step = [upper, (step - f64::from(upper)) as f32];
        let zero = [0.0; LANES];
        let scale = Scale { by: scale, step, floor: FLOOR / scale };
        Sums { scale, top: MASKED, z: zero, s: zero, q: zero }
    }

    /// Prepares for a block of `count` values: pads it to whole lanes, and returns how many of the first values
    /// can be added without `CAREFUL`.
    #[inline(always)]
    pub(crate) fn prepare(&mut self, values: &mut [f32], count: usize) -> usize {
        // NaN is skipped here: it is used as padding, and a NaN of the row makes the sums NaN later.
        values[count..].fill(f32::NAN);
        let (least, greatest) = extremes(values, self.top);
        values[count..].fill(f32::NEG_INFINITY);
        if greatest > self.top {
            self.raise(greatest);
        }
        let plain = least > MASKED && least - self.top >= self.scale.floor;
        if plain { count / LANES * LANES } else { 0 }
    }

    /// Adds the terms of at most a run of values in whole lanes. Without `CAREFUL`, none of them may be masked or
    /// so far below the greatest that it is ignored.
    #[inline(always)]
    pub(crate) fn add<M: Machine, const CAREFUL: bool>(&mut self, run: &[f32]) {
        let Sums { scale, top, .. } = *self;
        let (mut z, mut s, mut q) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for chunk in run.as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                let x = chunk[lane];
                let mut t = x - top;
                // With this form of the condition NaN is added, and makes the sums NaN.
                let counts = !(CAREFUL && ((x <= MASKED) | (t < scale.floor)));
                t = if counts { t } else { 0.0 };
                let d = t * scale.by;
                let e = exp2::<M>(t, d, &scale);
                let e = if counts { e } else { 0.0 };
                let de = d * e;
                z[lane] += e;
                s[lane] += de;
                q[lane] = fused::<M>(d, de, q[lane]);
            }
        }
        widen(&z, &mut self.z);
        widen(&s, &mut self.s);
        widen(&q, &mut self.q);
    }

    /// Makes the sums relative to a greater value.
    fn raise(&mut self, top: f32) {
        let shift = (f64::from(self.top) - f64::from(top)) * f64::from(self.scale.by);
        let factor = shift.exp2();
        for lane in 0..LANES {
            let (z, s, q) = (self.z[lane], self.s[lane], self.q[lane]);
            self.z[lane] = factor * z;
            self.s[lane] = factor * (s + shift * z);
            self.q[lane] = factor * (q + shift * (2.0 * s + shift * z));
        }
        self.top = top;
    }

    /// The totals, with no token chosen.
    pub(crate) fn raw(&self) -> Raw {
        let [z, s, q] = [&self.z, &self.s, &self.q].map(|totals| totals.iter().sum());
        Raw { scale: self.scale.by, top: f64::from(self.top), z, s, q, chosen: f64::NAN }
    }
}

/// The least value and the greatest, the latter at least `top`.
#[inline(always)]
fn extremes(values: &[f32], top: f32) -> (f32, f32) {
    let (mut least, mut greatest) = ([f32::INFINITY; LANES], [top; LANES]);
    for chunk in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            least[lane] = lesser(chunk[lane], least[lane]);
            greatest[lane] = greater(chunk[lane], greatest[lane]);
        }
    }
    // Halved and not folded one by one: 32 dependent comparisons would take as long as half a block.
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            least[lane] = lesser(least[lane + width], least[lane]);
            greatest[lane] = greater(greatest[lane + width], greatest[lane]);
        }
        width /= 2;
    }
    (least[0], greatest[0])
}

/// The lesser of two values, the second if the first is NaN. (`f32::min` ignores a NaN on either side, which takes
/// more than one instruction.)
#[inline(always)]
fn lesser(value: f32, other: f32) -> f32 {
    if value < other { value } else { other }
}

/// The greater of two values, the second if the first is NaN.
#[inline(always)]
fn greater(value: f32, other: f32) -> f32 {
    if value > other { value } else { other }
}

/// `2^d` for `d` from -125 to 0, where `d` is `t` scaled. Relative error below 1e-7; undefined for NaN.
#[inline(always)]
fn exp2<M: Machine>(t: f32, d: f32, scale: &Scale) -> f32 {
    let shifted = d + ROUND;
    let exponent = shifted - ROUND;
    // Computed from `t`, because the rounding error of `d` would be visible in values far below the greatest.
    let rest = if M::FMA {
        t.mul_add(scale.by, -exponent)
    } else {
        (t - exponent * scale.step[0] - exponent * scale.step[1]) * scale.by
    };
    let mut series = EXP2[0];
    for coefficient in [EXP2[1], EXP2[2], EXP2[3], EXP2[4], EXP2[5], 1.0] {
        series = fused::<M>(series, rest, coefficient);
    }
    f32::from_bits(series.to_bits().wrapping_add(shifted.to_bits() << 23))
}

#[inline(always)]
fn fused<M: Machine>(a: f32, b: f32, c: f32) -> f32 {
    if M::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Adds lanes to their totals.
#[inline(always)]
fn widen(lanes: &[f32; LANES], totals: &mut [f64; LANES]) {
    for (total, lane) in totals.iter_mut().zip(lanes) {
        *total += f64::from(*lane);
    }
}
