// SPDX-License-Identifier: Apache-2.0
//! Normally distributed numbers, equal in every run.

/// Returns numbers with a standard deviation of 1.
pub(crate) fn normal() -> impl FnMut() -> f64 {
    let mut state = 88_172_645_463_325_252u64;
    let mut unit = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    move || (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos()
}
