// SPDX-License-Identifier: Apache-2.0
//! Unusual conditions of a row of logprobs, as a set of bits.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A set of conditions that were detected while a row was measured.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

const NAMES: [(Flags, &str); 7] = [
    (Flags::NAN, "nan"),
    (Flags::MASKED, "masked"),
    (Flags::NEGATIVE_RESIDUAL, "negative_residual"),
    (Flags::INCONSISTENT, "inconsistent"),
    (Flags::MISSING, "missing"),
    (Flags::BF16, "bf16"),
    (Flags::CHOSEN_OUTSIDE, "chosen_outside"),
];

impl Flags {
    /// A value was NaN or positive infinity; nothing was measured.
    pub const NAN: Flags = Flags(1);
    /// Some values were masked tokens; the rest of the row is taken as the whole distribution.
    pub const MASKED: Flags = Flags(1 << 1);
    /// The reported probabilities sum to a little more than one; the tail mass was set to zero.
    pub const NEGATIVE_RESIDUAL: Flags = Flags(1 << 2);
    /// No distribution over the vocabulary has this row as its top-k: it sums to too much or to too little, is wider than the
    /// vocabulary, or lacks the likeliest token. Only the renormalised entropy is given.
    pub const INCONSISTENT: Flags = Flags(1 << 3);
    /// The row has no value, or only masked ones; nothing was measured.
    pub const MISSING: Flags = Flags(1 << 4);
    /// The row holds bfloat16 values; the interval allows for their rounding in the tail mass.
    pub const BF16: Flags = Flags(1 << 5);
    /// The sampled token is below every reported one; the interval makes use of it.
    pub const CHOSEN_OUTSIDE: Flags = Flags(1 << 6);

    /// The set with no member.
    pub const fn empty() -> Flags {
        Flags(0)
    }

    /// Whether every member of `other` is a member of this set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the row has an entropy at all.
    #[inline(always)]
    pub const fn is_measured(self) -> bool {
        self.0 & (Flags::NAN.0 | Flags::MISSING.0) == 0
    }

    /// The names of the members, as used in metrics and records.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().filter(move |(flag, _)| self.contains(*flag)).map(|(_, name)| name)
    }

    /// The set as bits, in the order of the constants, lowest first.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set with these [bits](Flags::bits).
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u8) -> Flags {
        Flags(bits)
    }

    /// `self` if `condition` holds, else the empty set.
    #[inline(always)]
    pub(crate) fn when(self, condition: bool) -> Flags {
        Flags(if condition { self.0 } else { 0 })
    }
}

impl BitOr for Flags {
    type Output = Flags;
    #[inline(always)]
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    #[inline(always)]
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_lists_its_members() {
        let set = Flags::MASKED | Flags::BF16;
        assert!(set.contains(Flags::BF16) && !set.contains(Flags::NAN | Flags::BF16));
        assert!(set.is_measured() && !(set | Flags::MISSING).is_measured());
        assert_eq!(format!("{set:?}"), r#"{"masked", "bf16"}"#);
        assert_eq!(Flags::NAN.when(false), Flags::empty());
    }
}
