// SPDX-License-Identifier: Apache-2.0
//! Branch-free exponentials and logarithms in plain arithmetic, which the compiler can vectorize.
//!
//! The library functions are more exact than logprobs need, and compute one number at a time.
//! These use Taylor series (their coefficients are easy to verify) after the usual reduction by
//! powers of two. `FMA` is true if the target has a fused multiply-add instruction; on other targets
//! `mul_add` would call a slow emulation.

use std::f64::consts::LN_2;

use super::lanes::Lanes;

// ln 2 in two parts, the first with so few bits that its product with any exponent is exact.
const LN2_HIGH_32: f32 = f32::from_bits(std::f32::consts::LN_2.to_bits() & 0xffff_c000);
const LN2_LOW_32: f32 = (LN_2 - LN2_HIGH_32 as f64) as f32;
const LN2_HIGH_64: f64 = f64::from_bits(LN_2.to_bits() & 0xffff_ffff_ff00_0000);
const LN2_LOW_64: f64 = LN_2 - LN2_HIGH_64;

// Adding 1.5 * 2^(mantissa bits) leaves the nearest integer in the low bits.
const ROUND_32: f32 = 12_582_912.0;
const ROUND_64: f64 = 6_755_399_441_055_744.0;

#[inline(always)]
pub(super) fn mul_add_64<const FMA: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` for `x <= 1`, relative error below 2e-7; anything below -87 counts as -87 (1.6e-38). Several vectors at once, because
/// each needs all constants, and those do not fit into the registers.
#[inline(always)]
pub(super) fn exp_32<M: Lanes, const N: usize>(machine: M, mut x: [M::Vector; N]) -> [M::Vector; N] {
    let (log2_e, round) = (machine.splat(std::f32::consts::LOG2_E), machine.splat(ROUND_32));
    let mut shifted = x;
    for at in 0..N {
        x[at] = machine.at_least(x[at], -87.0);
        shifted[at] = machine.mul_add(x[at], log2_e, round);
        let exponent = machine.add(shifted[at], machine.splat(-ROUND_32));
        x[at] = machine.mul_add(exponent, machine.splat(-LN2_HIGH_32), x[at]);
        x[at] = machine.mul_add(exponent, machine.splat(-LN2_LOW_32), x[at]);
    }
    let mut series = [machine.splat(1.0 / 5040.0); N];
    for factorial in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        let coefficient = machine.splat(1.0 / factorial);
        for at in 0..N {
            series[at] = machine.mul_add(series[at], x[at], coefficient);
        }
    }
    for at in 0..N {
        series[at] = machine.scale(series[at], shifted[at]);
    }
    series
}

/// `(e^x, e^x - 1)`, both to a relative error below 1e-13 (1e-15 for small `x`); `x` is clamped to ±700.
#[inline(always)]
pub(super) fn exp_and_m1_64<const FMA: bool>(x: f64) -> (f64, f64) {
    let x = if x < -700.0 { -700.0 } else { x };
    let x = if x > 700.0 { 700.0 } else { x };
    let shifted = mul_add_64::<FMA>(x, std::f64::consts::LOG2_E, ROUND_64);
    let exponent = shifted - ROUND_64;
    let rest = mul_add_64::<FMA>(exponent, -LN2_HIGH_64, x);
    let rest = mul_add_64::<FMA>(exponent, -LN2_LOW_64, rest);
    let mut series = 1.0 / 6_227_020_800.0;
    for factorial in
        [479_001_600.0, 39_916_800.0, 3_628_800.0, 362_880.0, 40_320.0, 5_040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0]
    {
        series = mul_add_64::<FMA>(series, rest, 1.0 / factorial);
    }
    let minus_one = series * rest;
    let scale = f64::from_bits(1f64.to_bits().wrapping_add(shifted.to_bits() << 52));
    let minus_one = mul_add_64::<FMA>(minus_one, scale, scale - 1.0);
    (mul_add_64::<FMA>(series * rest, scale, scale), minus_one)
}

/// `ln(1 + x)` for finite `x >= 0`, relative error near 1e-13 down to the smallest `x`.
#[inline(always)]
pub(super) fn ln_1p_64<const FMA: bool>(x: f64) -> f64 {
    let sum = 1.0 + x;
    let (mantissa, exponent) = split(sum);
    // Without a power of two to factor out, 1 + x is not computed, so a tiny x is not rounded.
    let fraction = if sum < std::f64::consts::SQRT_2 { x } else { mantissa - 1.0 };
    ln_parts::<FMA>(fraction, exponent)
}

/// `ln x` for normal positive finite `x`, relative error near 1e-13 (absolute near `x = 1`).
#[inline(always)]
pub(super) fn ln_64<const FMA: bool>(x: f64) -> f64 {
    let (mantissa, exponent) = split(x);
    ln_parts::<FMA>(mantissa - 1.0, exponent)
}

/// 2^52: adding it to a smaller number leaves the integer in the low bits.
const INTEGER: f64 = 4_503_599_627_370_496.0;

/// The floor of `x` in `0..2^51`, in arithmetic that every target can vectorize.
#[inline(always)]
pub(super) fn floor(x: f64) -> f64 {
    let near = (x + INTEGER) - INTEGER;
    if near > x { near - 1.0 } else { near }
}

/// An integer in `0..2^51` without a 64-bit conversion, which few vector units have.
#[inline(always)]
pub(super) fn low_bits(x: f64) -> u64 {
    (x + INTEGER).to_bits() & 0x000f_ffff_ffff_ffff
}

/// `x = mantissa * 2^exponent` with the mantissa within a factor of about `sqrt 2` of one.
#[inline(always)]
fn split(x: f64) -> (f64, f64) {
    const HALF_SQRT_BITS: u64 = 0x3fe6_a09e_0000_0000;
    let bits = x.to_bits().wrapping_sub(HALF_SQRT_BITS);
    let mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(HALF_SQRT_BITS));
    // The exponent as a float without a 64-bit conversion, which few vector units have: biased to
    // be positive, it becomes the low bits of 2^52.
    let biased = (bits >> 52).wrapping_add(1024) & 0xfff;
    let exponent = f64::from_bits(0x4330_0000_0000_0000 | biased) - (4_503_599_627_370_496.0 + 1024.0);
    (mantissa, exponent)
}

/// `ln((1 + fraction) 2^exponent)` by the series of the inverse hyperbolic tangent.
#[inline(always)]
fn ln_parts<const FMA: bool>(fraction: f64, exponent: f64) -> f64 {
    let s = fraction / (2.0 + fraction);
    let square = s * s;
    let mut series = 2.0 / 17.0;
    for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = mul_add_64::<FMA>(series, square, 2.0 / odd);
    }
    mul_add_64::<FMA>(exponent, LN_2, s * series)
}

#[cfg(test)]
mod tests {
    use super::super::rows::kernel::Plain;
    use super::*;

    fn relative(got: f64, want: f64) -> f64 {
        if want == 0.0 { got.abs() } else { ((got - want) / want).abs() }
    }

    fn sweep<const FMA: bool>() {
        for step in 0..200_000 {
            let x = 1.0 - step as f32 * 4.4e-4;
            let [[got, ..]] = exp_32(Plain::<FMA>, [[x; 8]]);
            let error = relative(got.into(), f64::from(x.max(-87.0)).exp());
            assert!(error < 2e-7, "exp_32({x}) is off by {error:e}");
            let x = 700.0 - step as f64 * 7e-3;
            let (exp, m1) = exp_and_m1_64::<FMA>(x);
            let error = relative(exp, x.exp()).max(relative(m1, x.exp_m1()));
            assert!(error < 1e-13, "exp_and_m1_64({x}) is off by {error:e}");
            let tiny = -(10f64.powf(-step as f64 * 8e-5));
            let error = relative(exp_and_m1_64::<FMA>(tiny).1, tiny.exp_m1());
            assert!(error < 2e-15, "e^{tiny:e} - 1 is off by {error:e}");
            let x = 10f64.powf(step as f64 * 3e-3 - 300.0);
            let error = (ln_64::<FMA>(x) - x.ln()).abs() / x.ln().abs().max(1.0);
            assert!(error < 1e-13, "ln_64({x:e}) is off by {error:e}");
            let error = relative(ln_1p_64::<FMA>(x), x.ln_1p());
            assert!(error < 1e-13, "ln_1p_64({x:e}) is off by {error:e}");
        }
        assert_eq!(ln_64::<FMA>(1.0), 0.0);
        assert_eq!(ln_1p_64::<FMA>(0.0), 0.0);
        assert_eq!(exp_and_m1_64::<FMA>(0.0), (1.0, 0.0));
    }

    #[test]
    fn approximations_follow_the_library() {
        sweep::<false>();
        sweep::<true>();
    }
}
