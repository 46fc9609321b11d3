// SPDX-License-Identifier: Apache-2.0
//! Reads ids and the numbers of a triple with AVX2.
#![expect(unsafe_code, reason = "vector loads and code compiled for an instruction set need it")]

use super::walk::{self, IdReader, TripleNumbers, TripleReader};
use super::{Malformed, number};
use crate::json::digits::joined;
use crate::logprobs::Rows;
use std::arch::x86_64::*;

/// The number of bytes of a triple that are read. Nothing beyond it is read, so that the buffer needs no padding.
const WINDOW: usize = 64;

/// The number of bytes of ids that are searched at a time: eight ids with commas and spaces, of seven digits each.
const ID_BLOCK: usize = 64;

/// The bytes before a block that are loaded with its first id.
const ID_MARGIN: usize = 8;

/// Proof that the CPU supports the instructions used here.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// `None` if the CPU does not support them. The standard library caches the detection.
    pub(super) fn new() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
        has.then_some(Self(()))
    }

    /// See [`super::ids`].
    pub(super) fn ids(self, bytes: &[u8], at: usize, each: impl FnMut(&[u32])) -> Result<usize, Malformed> {
        #[target_feature(enable = "avx2,bmi1,bmi2")]
        fn shell(avx2: Avx2, bytes: &[u8], at: usize, each: impl FnMut(&[u32])) -> Result<usize, Malformed> {
            walk::ids(avx2, bytes, at, each)
        }
        // SAFETY: `self` exists, so `new` found the features that `shell` is compiled for.
        unsafe { shell(self, bytes, at, each) }
    }

    /// See [`super::id_run`].
    pub(super) fn id_run(self, bytes: &[u8], at: usize, each: impl FnMut(&[u32])) -> usize {
        #[target_feature(enable = "avx2,bmi1,bmi2")]
        fn shell(avx2: Avx2, bytes: &[u8], at: usize, each: impl FnMut(&[u32])) -> usize {
            avx2.run(bytes, at, each)
        }
        // SAFETY: `self` exists, so `new` found the features that `shell` is compiled for.
        unsafe { shell(self, bytes, at, each) }
    }

    /// See [`super::rows`].
    pub(super) fn rows<const IDS: bool>(self, bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
        #[target_feature(enable = "avx2,bmi1,bmi2")]
        fn shell<const IDS: bool>(avx2: Avx2, bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
            walk::rows::<IDS>(avx2, bytes, at, out)
        }
        // SAFETY: `self` exists, so `new` found the features that `shell` is compiled for.
        unsafe { shell::<IDS>(self, bytes, at, out) }
    }

    /// See [`super::triples`].
    pub(super) fn triples(
        self,
        bytes: &[u8],
        at: usize,
        logprobs: &mut Vec<f32>,
        ids: &mut Vec<u32>,
    ) -> Result<usize, Malformed> {
        #[target_feature(enable = "avx2,bmi1,bmi2")]
        fn shell(
            avx2: Avx2,
            bytes: &[u8],
            at: usize,
            logprobs: &mut Vec<f32>,
            ids: &mut Vec<u32>,
        ) -> Result<usize, Malformed> {
            walk::triples(avx2, bytes, at, logprobs, ids)
        }
        // SAFETY: `self` exists, so `new` found the features that `shell` is compiled for.
        unsafe { shell(self, bytes, at, logprobs, ids) }
    }
}

impl TripleReader for Avx2 {
    /// Reads numbers like `[-12.345,678`: a minus sign, 1 to 4 digits before the point, and with `IDS` an id of up to 8 digits.
    ///
    /// The start of the next triple depends only on the mask below and a few bit operations, so the CPU can begin with it while it still
    /// multiplies the digits of this one.
    #[inline(always)]
    fn numbers<const IDS: bool>(self, bytes: &[u8], at: usize) -> Option<TripleNumbers> {
        let window: &[u8; WINDOW] = bytes.get(at..)?.first_chunk()?;
        if window[..2] != *b"[-" {
            return None;
        }
        // The bytes that are not digits should be the point and the commas after the two numbers.
        // SAFETY: `self` exists, so `new` found the features that `others` is compiled for.
        let other = unsafe { others(window[2..].first_chunk()?) };
        let after_point = other & other.wrapping_sub(1);
        let after_comma = after_point & after_point.wrapping_sub(1);
        let point = 2 + other.trailing_zeros() as usize;
        let comma = 2 + after_point.trailing_zeros() as usize;
        let end = 2 + after_comma.trailing_zeros() as usize;
        // Each index is at most 2 + 32 + 1, within the window.
        let byte = |at: usize| window[at & (WINDOW - 1)];
        // The first two adjacent bytes that are not digits must be the comma after the id and the byte after it, so that no number is empty.
        let neighbours = 2 + (other & other >> 1).trailing_zeros() as usize;
        if after_comma == 0
            || neighbours != end
            || byte(point) != b'.'
            || byte(comma) != b','
            || byte(comma + 1) == b'0'
        {
            return None;
        }
        let (start, whole) = match window[2] {
            b'0' if point == 3 => (4, 0),
            b'1'..=b'9' if point < 7 => (2, point - 2),
            _ => return None,
        };
        let count = comma - start - usize::from(whole > 0);
        // SAFETY: `self` exists, so `new` found the features that `decimal` is compiled for.
        let near = unsafe { decimal(window[start..].first_chunk()?, whole, count) };
        // Below 2^-17 the 16 digits of the fraction are too few. Above, their error is less than 2^16 ulps.
        if near < 1.0 / 131_072.0 {
            return None;
        }
        let logprob = -number::round(near, 1 << 17)?;
        let id = if IDS {
            let length = end - (comma + 1);
            if length > 8 {
                return None;
            }
            let text = u64::from_le_bytes(*window[comma + 1..].first_chunk()?);
            joined((text & 0x0F0F_0F0F_0F0F_0F0F) << (64 - 8 * length)) as u32
        } else {
            0
        };
        Some(TripleNumbers { logprob, id, end: at + end })
    }
}

impl IdReader for Avx2 {
    /// Reads ids of up to eight digits, or of fewer with spaces before them: eight ids at a time while a block has so many.
    #[inline(always)]
    fn run(self, bytes: &[u8], mut at: usize, mut each: impl FnMut(&[u32])) -> usize {
        // the first load would include the digits of a number that begins before `at`
        if at.checked_sub(1).and_then(|before| bytes.get(before)).is_some_and(u8::is_ascii_digit) {
            return at;
        }
        let mut padded;
        loop {
            let inside = at.checked_sub(ID_MARGIN).and_then(|start| bytes.get(start..)?.first_chunk());
            let window = match inside {
                Some(window) => window,
                None => {
                    padded = window_at_an_end(bytes, at);
                    &padded
                }
            };
            // SAFETY: `self` exists, so `new` found the features that `eight_ids` is compiled for.
            let (ids, block) = unsafe { eight_ids(window) };
            if block.count == ids.len() {
                each(&ids);
                at += block.length;
                continue;
            }
            if block.count > 0 {
                each(&ids[..block.count]);
            }
            return at + block.length;
        }
    }
}

/// The bytes around `at` if fewer than a window are there. Zeros stand for the others; they end the run of ids.
#[cold]
fn window_at_an_end(bytes: &[u8], at: usize) -> [u8; ID_MARGIN + ID_BLOCK] {
    let mut window = [0; ID_MARGIN + ID_BLOCK];
    let before = at.min(ID_MARGIN);
    let text = bytes.get(at - before..).unwrap_or_default();
    let rest = &mut window[ID_MARGIN - before..];
    let length = text.len().min(rest.len());
    rest[..length].copy_from_slice(&text[..length]);
    window
}

/// The ids at the start of a block.
struct IdBlock {
    /// How many they are, at most 8.
    count: usize,
    /// Their bytes, with a comma after each.
    length: usize,
}

/// Reads the first ids of the block after [`ID_MARGIN`] bytes. An element begins at the block's first byte. Ids are read only if a comma
/// follows.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn eight_ids(window: &[u8; ID_MARGIN + ID_BLOCK]) -> ([u32; 8], IdBlock) {
    let block = window[ID_MARGIN..].as_ptr();
    // SAFETY: 32 bytes are read from the 64 of the block, at its start and in its middle.
    let (low, high) = unsafe { (_mm256_loadu_si256(block.cast()), _mm256_loadu_si256(block.add(32).cast())) };
    let commas = equal(low, high, b',');
    let mut rest = commas;
    let mut ends = [0; 8];
    for end in &mut ends {
        *end = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
    }
    // the bytes of the eight ids and their commas, or the whole block if it has fewer
    let used = if ends[7] < ID_BLOCK { u64::MAX >> (63 - ends[7]) } else { u64::MAX };

    let mut wrong = !(bits(digits(low), digits(high)) | commas);
    let mut separators = commas;
    if wrong & used != 0 {
        let spaces = equal(low, high, b' ');
        separators |= spaces;
        // a space may follow a comma or a space
        wrong &= !(spaces & (separators << 1 | 1));
    }
    let starts = separators << 1 | 1;
    // an empty element, and a leading zero
    wrong |= starts & (commas | equal(low, high, b'0') & !(separators >> 1));
    // nine bytes without a comma
    let pairs = commas | commas >> 1;
    let fours = pairs | pairs >> 2;
    wrong |= !(fours | fours >> 4 | commas >> 8);

    // each lane ends with the last digit of an id
    let mut lanes = [0; 8];
    for (lane, end) in lanes.iter_mut().zip(ends) {
        *lane = i64::from_le_bytes(*window[end..].first_chunk().expect("the window is 72 bytes"));
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let fours =
        _mm256_packus_epi32(last_digits(_mm256_set_epi64x(d, c, b, a)), last_digits(_mm256_set_epi64x(h, g, f, e)));
    let ids = _mm256_madd_epi16(fours, _mm256_set1_epi32(0x0001_2710));
    // the packing has interleaved the halves of the two vectors
    let ids = _mm256_permute4x64_epi64::<0b11_01_10_00>(ids);
    let mut read = [0; 8];
    // SAFETY: the array has the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(read.as_mut_ptr().cast(), ids) };
    if ends[7] < ID_BLOCK && wrong & used == 0 {
        return (read, IdBlock { count: 8, length: ends[7] + 1 });
    }
    // those before the first wrong byte
    let right = commas & used & !wrong & wrong.wrapping_sub(1);
    (read, IdBlock { count: right.count_ones() as usize, length: ID_BLOCK - right.leading_zeros() as usize })
}

/// A mask of those of 64 bytes that equal `byte`. Bit 0 is that of the first byte.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn equal(low: __m256i, high: __m256i, byte: u8) -> u64 {
    let byte = _mm256_set1_epi8(byte as i8);
    bits(_mm256_cmpeq_epi8(low, byte), _mm256_cmpeq_epi8(high, byte))
}

/// Ones in the bytes that are digits.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn digits(text: __m256i) -> __m256i {
    let values = _mm256_sub_epi8(text, _mm256_set1_epi8(b'0' as i8));
    _mm256_cmpeq_epi8(_mm256_min_epu8(values, _mm256_set1_epi8(9)), values)
}

/// The high bits of 64 bytes. Bit 0 is that of the first byte.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn bits(low: __m256i, high: __m256i) -> u64 {
    u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32
}

/// The number of the digits at the end of each lane of eight bytes, as two numbers of four digits.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn last_digits(text: __m256i) -> __m256i {
    // a signed comparison of the bytes as if '0' were the smallest number
    let values = _mm256_add_epi8(text, _mm256_set1_epi8((0x80 - b'0') as i8));
    let others = _mm256_cmpgt_epi8(values, _mm256_set1_epi8(i8::MIN + 9));
    // also all bytes before another one
    let others = _mm256_or_si256(others, _mm256_srli_epi64::<8>(others));
    let others = _mm256_or_si256(others, _mm256_srli_epi64::<16>(others));
    let others = _mm256_or_si256(others, _mm256_srli_epi64::<32>(others));
    let digits = _mm256_and_si256(_mm256_andnot_si256(others, text), _mm256_set1_epi8(0x0F));
    let pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(0x010A));
    _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x0001_0064))
}

/// A mask of the bytes that are not digits. Bit 0 is the first byte.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn others(text: &[u8; 32]) -> u32 {
    // SAFETY: `text` is a reference to the 32 bytes that are read.
    let text = unsafe { _mm256_loadu_si256(text.as_ptr().cast()) };
    !_mm256_movemask_epi8(digits(text)) as u32
}

/// Parses `count` digits, `whole` of them before the point. If `whole` is 0, `text` begins after the point. Digits after the 16th are ignored,
/// and after the 15th if `text` has a point.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn decimal(text: &[u8; 16], whole: usize, count: usize) -> f64 {
    /// A load at offset 16 - n is a mask that keeps n digits.
    const KEEP: [u8; 32] = {
        let mut keep = [0; 32];
        let mut i = 0;
        while i < 16 {
            keep[i] = 0x0F;
            i += 1;
        }
        keep
    };
    /// The order of the bytes without the point, by the number of digits before it.
    const ORDERS: [[u8; 16]; 5] = {
        let mut orders = [[0; 16]; 5];
        let mut whole = 0;
        while whole < 5 {
            let mut i = 0;
            while i < 16 {
                orders[whole][i] = if whole > 0 && i >= whole { i as u8 + 1 } else { i as u8 };
                i += 1;
            }
            if whole > 0 {
                // writes 0
                orders[whole][15] = 0x80;
            }
            whole += 1;
        }
        orders
    };
    /// The value of the last of the first and of the second eight digits.
    const SCALES: [[f64; 2]; 5] = [[1e-8, 1e-16], [1e-7, 1e-15], [1e-6, 1e-14], [1e-5, 1e-13], [1e-4, 1e-12]];
    // SAFETY: 16 bytes are read from each array
    let (text, order, keep, scale) = unsafe {
        (
            _mm_loadu_si128(text.as_ptr().cast()),
            _mm_loadu_si128(ORDERS[whole].as_ptr().cast()),
            _mm_loadu_si128(KEEP[16 - count.min(16)..][..16].as_ptr().cast()),
            _mm_loadu_pd(SCALES[whole].as_ptr()),
        )
    };
    let digits = _mm_and_si128(_mm_shuffle_epi8(text, order), keep);
    // Adjacent digits are joined to pairs, pairs to fours, fours to eights.
    let pairs = _mm_maddubs_epi16(digits, _mm_set1_epi16(0x010A));
    let fours = _mm_madd_epi16(pairs, _mm_set1_epi32(0x0001_0064));
    let fours = _mm_packus_epi32(fours, fours);
    let eights = _mm_mul_pd(_mm_cvtepi32_pd(_mm_madd_epi16(fours, _mm_set1_epi32(0x0001_2710))), scale);
    _mm_cvtsd_f64(_mm_add_sd(_mm_unpackhi_pd(eights, eights), eights))
}
