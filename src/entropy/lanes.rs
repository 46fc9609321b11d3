// SPDX-License-Identifier: Apache-2.0
//! Eight 32-bit floats that are computed together.
//!
//! Loops over arrays of eight, which the compiler vectorizes, became code of twice the length: it shuffled lanes of which only
//! the sum is needed.

use super::rows::kernel::Plain;

/// The floats of a vector.
pub(super) const LANES: usize = 8;

/// The instructions that the sums over a row need.
pub(super) trait Lanes: Copy {
    /// Eight floats.
    type Vector: Copy;

    /// The vector of these floats.
    fn load(self, values: &[f32; LANES]) -> Self::Vector;

    /// The vector of eight times the same float.
    fn splat(self, value: f32) -> Self::Vector;

    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a * b + c`, rounded once if the machine can do that.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// `least` where a float is below it. NaN stays.
    fn at_least(self, a: Self::Vector, least: f32) -> Self::Vector;

    /// `a * 2^n`, where the low bits of `shifted` are `n`.
    fn scale(self, a: Self::Vector, shifted: Self::Vector) -> Self::Vector;

    /// Sets all bits where `value` is above `before` or one of them is NaN, and clears the others.
    fn rises(self, value: Self::Vector, before: Self::Vector) -> Self::Vector;

    /// The bits that are set in `a` or in `b`.
    fn either(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Clears the bits after the first `count` lanes.
    fn first(self, a: Self::Vector, count: usize) -> Self::Vector;

    /// Whether a lane has its sign bit set.
    fn any(self, a: Self::Vector) -> bool;

    /// The sum of each of the first four floats and the one four lanes after it.
    fn halves(self, a: Self::Vector) -> [f64; 4];
}

/// All bits set in the first so many lanes.
pub(super) const FIRST_LANES: [[u32; LANES]; LANES + 1] = {
    let mut masks = [[0; LANES]; LANES + 1];
    let mut count = 0;
    while count <= LANES {
        let mut lane = 0;
        while lane < count {
            masks[count][lane] = u32::MAX;
            lane += 1;
        }
        count += 1;
    }
    masks
};

impl<const FMA: bool> Lanes for Plain<FMA> {
    type Vector = [f32; LANES];

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> [f32; LANES] {
        *values
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn add(self, mut a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            a[lane] += b[lane];
        }
        a
    }

    #[inline(always)]
    fn mul(self, mut a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            a[lane] *= b[lane];
        }
        a
    }

    #[inline(always)]
    fn mul_add(self, mut a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            // `mul_add` would call a slow emulation on other machines
            a[lane] = if FMA { a[lane].mul_add(b[lane], c[lane]) } else { a[lane] * b[lane] + c[lane] };
        }
        a
    }

    #[inline(always)]
    fn at_least(self, a: [f32; LANES], least: f32) -> [f32; LANES] {
        a.map(|lane| if lane < least { least } else { lane })
    }

    #[inline(always)]
    fn scale(self, mut a: [f32; LANES], shifted: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            a[lane] = f32::from_bits(a[lane].to_bits().wrapping_add(shifted[lane].to_bits() << 23));
        }
        a
    }

    #[inline(always)]
    fn rises(self, mut value: [f32; LANES], before: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            value[lane] = f32::from_bits(if value[lane] <= before[lane] { 0 } else { u32::MAX });
        }
        value
    }

    #[inline(always)]
    fn either(self, mut a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            a[lane] = f32::from_bits(a[lane].to_bits() | b[lane].to_bits());
        }
        a
    }

    #[inline(always)]
    fn first(self, mut a: [f32; LANES], count: usize) -> [f32; LANES] {
        for lane in 0..LANES {
            a[lane] = f32::from_bits(a[lane].to_bits() & FIRST_LANES[count.min(LANES)][lane]);
        }
        a
    }

    #[inline(always)]
    fn any(self, a: [f32; LANES]) -> bool {
        a.iter().fold(0, |bits, lane| bits | lane.to_bits()) >> 31 != 0
    }

    #[inline(always)]
    fn halves(self, a: [f32; LANES]) -> [f64; 4] {
        let mut sums = [0.0; 4];
        for lane in 0..4 {
            sums[lane] = f64::from(a[lane]) + f64::from(a[lane + 4]);
        }
        sums
    }
}
