//! Formats lists of token ids as JSON text.

/// The number of ids that are formatted in the block before it is copied to the output.
const BLOCK: usize = 64;

/// The bytes of the block for each id: at most ten digits, and four bytes for the comma and surplus bytes. Digits are copied four bytes at
/// a time; the next id overwrites the surplus.
const MAX_ID_BYTES: usize = 10 + 4;

/// By number below 1000: three digits and a comma.
static DIGITS: [[u8; 4]; 1000] = {
    let mut digits = [[0; 4]; 1000];
    let mut number = 0;
    while number < 1000 {
        let [hundreds, tens, ones] = [number / 100, number / 10 % 10, number % 10];
        digits[number] = [b'0' + hundreds as u8, b'0' + tens as u8, b'0' + ones as u8, b','];
        number += 1;
    }
    digits
};

/// Appends ids with commas between them. Writes three digits at a time, because prompts of long sessions have 100,000 ids.
pub fn write_ids(out: &mut Vec<u8>, ids: &[u32]) {
    let mut block = [0; MAX_ID_BYTES * BLOCK];
    for chunk in ids.chunks(BLOCK) {
        let mut at = 0;
        for id in chunk {
            at = write(&mut block, at, *id);
        }
        out.extend_from_slice(&block[..at]);
    }
    if !ids.is_empty() {
        out.pop();
    }
}

/// Writes an id and a comma at byte `at`. Returns the position after them.
fn write(block: &mut [u8], at: usize, id: u32) -> usize {
    let (rest, last) = (id / 1000, (id % 1000) as usize);
    let at = match rest {
        0 => return write_first(block, at, last),
        1..1000 => write_first(block, at, rest as usize) - 1,
        // rare: no vocabulary is this large
        _ => write(block, at, rest) - 1,
    };
    block[at..at + 4].copy_from_slice(&DIGITS[last]);
    at + 4
}

/// Writes a number below 1000, without leading zeros, and a comma. Returns the position after them.
fn write_first(block: &mut [u8], at: usize, number: usize) -> usize {
    let zeros = usize::from(number < 100) + usize::from(number < 10);
    let digits = u32::from_le_bytes(DIGITS[number]) >> (8 * zeros);
    block[at..at + 4].copy_from_slice(&digits.to_le_bytes());
    at + 4 - zeros
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
