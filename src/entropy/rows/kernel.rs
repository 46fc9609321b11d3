//! The sums over whole rows, written once for every instruction set.
//!
//! A row is taken in blocks that stay in the first-level cache: widened to 32 bits, searched for the greatest
//! value, then summed in lanes with the exponentials. Everything is plain loops over plain arrays, and inlined,
//! because the shells in `cpu` lend their instruction set only to what is inlined into them.

use std::f64::consts::LOG2_E;

use super::{Dtype, Logits, Raw, RowStats, finish};
use crate::entropy::approx::mul_add_32;
use crate::entropy::{Flags, MASKED};

/// Values searched and summed at a time.
const BLOCK: usize = 2048;

/// Independent partial sums.
const LANES: usize = 32;

/// Values summed in 32 bits before the lanes are emptied into 64. Equal terms all round alike, so a longer run
/// would lean to one side by more than the terms are wrong.
const RUN: usize = 8 * LANES;

/// Sums of the lanes, in 64 bits.
const TOTALS: usize = 8;

/// Terms below 2^-125 count as nothing: they are next to the least normal number, and the greatest term is 1.
const FLOOR: f32 = -125.0;

/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// `2^f = 1 + f (c_1 + f (c_2 + ..))` for `|f| <= 1/2`, highest power first: least relative error (2e-9 before
/// rounding) with the 1 held, so that the greatest value counts exactly 1.
const EXP2: [f32; 6] = [1.535_336_3e-4, 1.339_887_5e-3, 9.618_437e-3, 5.550_332_4e-2, 2.402_264_8e-1, 6.931_472e-1];

/// Values of one storage type, as 32-bit floats.
pub(in crate::entropy) trait Widen: Copy {
    /// Bytes a value.
    const BYTES: usize;

    /// Writes the values that `bytes` holds, one for each of `values`.
    fn widen(self, bytes: &[u8], values: &mut [f32]);
}

/// Single precision.
#[derive(Debug, Clone, Copy)]
struct Single;

/// The upper half of single precision.
#[derive(Debug, Clone, Copy)]
struct Brain;

/// Half precision, in plain arithmetic.
#[derive(Debug, Clone, Copy)]
pub(in crate::entropy) struct Half;

/// The sums of one row so far, relative to the greatest value so far.
#[derive(Debug)]
struct Sums {
    top: f32,
    least: f32,
    z: [f64; TOTALS],
    s: [f64; TOTALS],
    q: [f64; TOTALS],
}

/// Computes the statistics of `logits` and appends them to `out`; `half` reads half precision.
#[inline(always)]
pub(in crate::entropy) fn run<const FMA: bool>(logits: &Logits<'_>, half: impl Widen, out: &mut Vec<RowStats>) {
    match logits.dtype {
        Dtype::F32 => rows::<FMA, _>(logits, Single, out),
        Dtype::Bf16 => rows::<FMA, _>(logits, Brain, out),
        Dtype::F16 => rows::<FMA, _>(logits, half, out),
    }
}

#[inline(always)]
fn rows<const FMA: bool, W: Widen>(logits: &Logits<'_>, format: W, out: &mut Vec<RowStats>) {
    let mut block = [0.0; BLOCK];
    out.reserve(logits.rows());
    for row in 0..logits.rows() {
        let Some(temperature) = logits.temperature(row) else {
            out.push(RowStats::unmeasured(Flags::NAN));
            continue;
        };
        let bytes = logits.row(row);
        let sums = Sums::of::<FMA, W>(bytes, format, temperature, &mut block);
        let chosen = match logits.chosen(row) {
            Some(id) => Raw::distance(value(bytes, format, id), f64::from(sums.top), temperature),
            None => f64::NAN,
        };
        out.push(finish(sums.raw(chosen), temperature));
    }
}

/// The value at one place of a row.
#[inline(always)]
fn value<W: Widen>(bytes: &[u8], format: W, at: usize) -> f32 {
    let mut value = [0.0];
    format.widen(&bytes[at * W::BYTES..][..W::BYTES], &mut value);
    value[0]
}

impl Sums {
    /// The sums of a row of at least one value.
    #[inline(always)]
    fn of<const FMA: bool, W: Widen>(bytes: &[u8], format: W, temperature: f32, block: &mut [f32; BLOCK]) -> Sums {
        // Held finite, because the greatest value is zero away from itself and zero times infinity is no number.
        let scale = (LOG2_E / f64::from(temperature)).min(f64::from(f32::MAX)) as f32;
        let zero = [0.0; TOTALS];
        let mut sums = Sums { top: MASKED, least: f32::INFINITY, z: zero, s: zero, q: zero };
        for bytes in bytes.chunks(BLOCK * W::BYTES) {
            let count = bytes.len() / W::BYTES;
            format.widen(bytes, &mut block[..count]);
            sums.add::<FMA>(&mut block[..count.next_multiple_of(LANES)], count, scale);
        }
        sums
    }

    /// Adds a block of values: `count` of them, the rest up to a multiple of the lanes to be overwritten.
    #[inline(always)]
    fn add<const FMA: bool>(&mut self, values: &mut [f32], count: usize, scale: f32) {
        // Comparisons pass over NaN, here on purpose and in the row because its sums will be NaN as well.
        values[count..].fill(f32::NAN);
        let (least, greatest) = extremes(values, self.top);
        values[count..].fill(f32::NEG_INFINITY);
        self.least = if least < self.least { least } else { self.least };
        if greatest > self.top {
            self.raise(greatest, scale);
        }
        let floor = FLOOR / scale;
        let (whole, rest) = values.split_at(count / LANES * LANES);
        if least > MASKED && least - self.top >= floor {
            self.sum::<FMA, false>(whole, scale, floor);
        } else {
            self.sum::<FMA, true>(whole, scale, floor);
        }
        self.sum::<FMA, true>(rest, scale, floor);
    }

    /// Makes the sums relative to a greater value.
    #[inline(always)]
    fn raise(&mut self, top: f32, scale: f32) {
        let shift = (f64::from(self.top) - f64::from(top)) * f64::from(scale);
        let factor = shift.exp2();
        for ((z, s), q) in self.z.iter_mut().zip(&mut self.s).zip(&mut self.q) {
            *q = factor * (*q + shift * (2.0 * *s + shift * *z));
            *s = factor * (*s + shift * *z);
            *z *= factor;
        }
        self.top = top;
    }

    /// Adds the terms of whole lanes of values. Without `CAREFUL` none of them may be masked or `floor` below the
    /// greatest.
    #[inline(always)]
    fn sum<const FMA: bool, const CAREFUL: bool>(&mut self, values: &[f32], scale: f32, floor: f32) {
        let top = self.top;
        for run in values.chunks(RUN) {
            let (mut z, mut s, mut q) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
            for chunk in run.as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    let mut t = chunk[lane] - top;
                    // In this sense of the comparisons NaN counts, and makes its sums NaN.
                    let counts = !CAREFUL || !((chunk[lane] <= MASKED) | (t < floor));
                    if CAREFUL {
                        t = if counts { t } else { 0.0 };
                    }
                    let d = t * scale;
                    let e = exp2::<FMA>(t, scale, d);
                    let e = if counts { e } else { 0.0 };
                    let de = d * e;
                    z[lane] += e;
                    s[lane] += de;
                    q[lane] = mul_add_32::<FMA>(d, de, q[lane]);
                }
            }
            empty(&z, &mut self.z);
            empty(&s, &mut self.s);
            empty(&q, &mut self.q);
        }
    }

    fn raw(&self, chosen: f64) -> Raw {
        let [z, s, q] = [&self.z, &self.s, &self.q].map(|totals| totals.iter().sum());
        Raw { top: f64::from(self.top), z, s, q, chosen, masked: self.least <= MASKED }
    }
}

/// The least value and the greatest, of those above `top`; NaN is passed over.
#[inline(always)]
fn extremes(values: &[f32], top: f32) -> (f32, f32) {
    let (mut least, mut greatest) = ([f32::INFINITY; LANES], [top; LANES]);
    for chunk in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let value = chunk[lane];
            least[lane] = if value < least[lane] { value } else { least[lane] };
            greatest[lane] = if value > greatest[lane] { value } else { greatest[lane] };
        }
    }
    (least.into_iter().fold(f32::INFINITY, f32::min), greatest.into_iter().fold(top, f32::max))
}

/// `2^d` for `d = t * scale`, from -125 to 0, with a relative error below 1e-7; garbage where `d` is NaN.
#[inline(always)]
fn exp2<const FMA: bool>(t: f32, scale: f32, d: f32) -> f32 {
    let shifted = d + ROUND;
    let exponent = shifted - ROUND;
    // Fused, the product is not rounded first: what is far below the top would notice.
    let rest = if FMA { t.mul_add(scale, -exponent) } else { d - exponent };
    let mut series = EXP2[0];
    for coefficient in [EXP2[1], EXP2[2], EXP2[3], EXP2[4], EXP2[5], 1.0] {
        series = mul_add_32::<FMA>(series, rest, coefficient);
    }
    f32::from_bits(series.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// Adds lanes to totals.
#[inline(always)]
fn empty(lanes: &[f32; LANES], totals: &mut [f64; TOTALS]) {
    for (at, total) in totals.iter_mut().enumerate() {
        let [a, b, c, d] = [0, 1, 2, 3].map(|group| lanes[group * TOTALS + at]);
        *total += f64::from((a + b) + (c + d));
    }
}

impl Widen for Single {
    const BYTES: usize = 4;

    #[inline(always)]
    fn widen(self, bytes: &[u8], values: &mut [f32]) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
}

impl Widen for Brain {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen(self, bytes: &[u8], values: &mut [f32]) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        }
    }
}

impl Widen for Half {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen(self, bytes: &[u8], values: &mut [f32]) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            let bits = u32::from(u16::from_le_bytes(*bytes));
            let magnitude = (bits & 0x7fff) << 13;
            // The exponents of the two formats differ by 112; the product also makes subnormal numbers normal.
            let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
            let infinite = magnitude >= 0x1f << 23;
            let finite = scaled.to_bits();
            *value = f32::from_bits(if infinite { magnitude | 0xff << 23 } else { finite } | (bits & 0x8000) << 16);
        }
    }
}
