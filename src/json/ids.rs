// SPDX-License-Identifier: Apache-2.0
//! Formats lists of token ids as JSON text.

/// The number of ids that are formatted in the block before it is copied to the output.
const BLOCK: usize = 64;

/// The bytes of the block for each id: at most ten digits and a comma.
const MAX_ID_BYTES: usize = 10 + 1;

/// The surplus bytes after the last id: eight are written at a time, and the next id overwrites the surplus.
const SURPLUS: usize = 8;

/// Ids with at most six digits are below this.
const SHORT: u32 = 1_000_000;

type Block = [u8; MAX_ID_BYTES * BLOCK + SURPLUS];

/// By number below 1000: three digits, the first in the lowest byte.
static DIGITS: [u32; 1000] = {
    let mut digits = [0; 1000];
    let mut number = 0;
    while number < 1000 {
        let [hundreds, tens, ones] = [number / 100, number / 10 % 10, number % 10];
        digits[number] = u32::from_le_bytes([b'0' + hundreds as u8, b'0' + tens as u8, b'0' + ones as u8, 0]);
        number += 1;
    }
    digits
};

/// Appends ids with commas between them. Writes six digits at a time, because prompts of long sessions have 100,000 ids.
pub fn write_ids(out: &mut Vec<u8>, ids: &[u32]) {
    let mut block = [0; MAX_ID_BYTES * BLOCK + SURPLUS];
    for chunk in ids.chunks(BLOCK) {
        let mut at = 0;
        for id in chunk {
            at = if *id < SHORT { write(&mut block, at, *id, 0) } else { write_long(&mut block, at, *id) };
        }
        out.extend_from_slice(&block[..at]);
    }
    if !ids.is_empty() {
        out.pop();
    }
}

/// Writes an id of at most six digits and a comma at byte `at`, without leading zeros but for at least `digits` digits. Returns the position
/// after them.
#[inline(always)]
fn write(block: &mut Block, at: usize, id: u32, digits: usize) -> usize {
    const VALUES: u64 = 0x0000_0F0F_0F0F_0F0F;
    let [first, last] = [id / 1000, id % 1000].map(|three| u64::from(DIGITS[three as usize]));
    let text = first | last << 24 | u64::from(b',') << 48;
    // the last digit is written even if it is zero
    let least = 1 << (8 * (6 - digits.max(1)));
    let zeros = (text & VALUES | least).trailing_zeros() as usize / 8;
    block[at..at + 8].copy_from_slice(&(text >> (8 * zeros)).to_le_bytes());
    at + 7 - zeros
}

/// Writes an id of more digits, which no vocabulary has.
#[cold]
fn write_long(block: &mut Block, at: usize, id: u32) -> usize {
    let comma = write(block, at, id / SHORT, 0) - 1;
    write(block, comma, id % SHORT, 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_formatted_like_serde_json() {
        let lengths = [0, 1, 9, 10, 99, 100, 999, 1000, 1001, 9999, 10_000, 99_999, 100_000, 151_643, 999_999];
        let long = [1_000_000, 1_000_001, 20_030_040, 999_999_999, 1_000_000_000, u32::MAX];
        let ids: Vec<u32> = lengths.into_iter().chain(long).chain((0..5000).map(|at| at * 37)).collect();
        for ids in [&ids[..], &[], &[7], &ids[..BLOCK], &ids[..=BLOCK], &[u32::MAX; 2 * BLOCK]] {
            let mut text = b"[".to_vec();
            write_ids(&mut text, ids);
            text.push(b']');
            assert_eq!(String::from_utf8(text).unwrap(), serde_json::to_string(ids).unwrap());
        }
    }
}
