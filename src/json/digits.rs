// SPDX-License-Identifier: Apache-2.0
//! Reads decimal digits eight at a time.

/// Sets the high bit of each byte of `word` that is not a digit, and clears all other bits.
#[inline]
#[must_use]
pub(super) fn other_than_digits(word: u64) -> u64 {
    const HIGH_BITS: u64 = u64::from_le_bytes([0x80; 8]);
    let values = word ^ u64::from_le_bytes([b'0'; 8]);
    // 0x76 + 10 sets the high bit
    ((values & !HIGH_BITS).wrapping_add(u64::from_le_bytes([0x76; 8])) | values) & HIGH_BITS
}

/// Parses the integer at `at` if it has 1 to 7 digits and eight bytes are left. Returns it and the number of its digits; `None` if the number
/// has another format.
#[inline(always)]
pub(crate) fn short_integer(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let text = u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?);
    let values = text ^ 0x3030_3030_3030_3030;
    let others = other_than_digits(text);
    let count = others.trailing_zeros() as usize / 8;
    if !(1..=7).contains(&count) || count > 1 && values & 0xFF == 0 {
        return None;
    }
    let next = (text >> (8 * count)) as u8;
    if matches!(next, b'.' | b'e' | b'E') {
        return None;
    }
    Some((joined(values << (64 - 8 * count)) as u32, count))
}

/// The number of eight digit characters, the first in the lowest byte; `None` if one is not a digit.
#[inline(always)]
pub(crate) fn eight_digits(text: u64) -> Option<u64> {
    const HIGH: u64 = 0xF0F0_F0F0_F0F0_F0F0;
    // The high half of a digit is 3, and remains 3 after adding 6.
    let carried = text.wrapping_add(0x0606_0606_0606_0606);
    let digits = text & HIGH == 0x3030_3030_3030_3030 && carried & HIGH == 0x3030_3030_3030_3030;
    digits.then(|| joined(text & !HIGH))
}

/// The number whose decimal digits are the bytes of `digits`, the first in the lowest byte.
#[inline(always)]
pub(crate) fn joined(digits: u64) -> u64 {
    // Adjacent digits are joined to pairs, pairs to fours, fours to eight, each in the lower lane of the two.
    let pairs = (digits.wrapping_mul(10).wrapping_add(digits >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs.wrapping_mul(100).wrapping_add(pairs >> 16)) & 0x0000_FFFF_0000_FFFF;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xFFFF_FFFF
}
