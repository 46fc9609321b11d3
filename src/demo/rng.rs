// SPDX-License-Identifier: Apache-2.0
//! A deterministic random number generator.

/// SplitMix64, with a 64-bit state. Tests rely on the same numbers on every machine.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a uniform random number in [0, 1).
    pub(super) fn next_f64(&mut self) -> f64 {
        unit(self.next_u64())
    }
}

/// Mixes `x`: each bit of the result depends on all bits of `x`.
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Converts the upper 53 bits to a number in [0, 1).
pub(super) fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
