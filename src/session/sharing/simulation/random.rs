// SPDX-License-Identifier: Apache-2.0
//! Random numbers from a seed.

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// An index below `end`.
    pub(super) fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("it is below a usize")
    }

    /// Whether an event of this probability, in thousandths, occurs.
    pub(super) fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }

    /// An independent generator.
    pub(super) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }
}
