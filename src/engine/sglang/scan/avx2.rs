//! Reads the numbers of a triple with AVX2.
#![expect(unsafe_code, reason = "vector loads and code compiled for an instruction set need it")]

use super::walk::{self, TripleNumbers, TripleReader};
use super::{Malformed, number};
use crate::logprobs::Rows;
use std::arch::x86_64::*;

/// The number of bytes of a triple that are read. Nothing beyond it is read, so that the buffer needs no padding.
const WINDOW: usize = 64;

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

    /// See [`super::rows`].
    pub(super) fn rows(self, bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
        #[target_feature(enable = "avx2,bmi1,bmi2")]
        fn shell(avx2: Avx2, bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
            walk::rows(avx2, bytes, at, out)
        }
        // SAFETY: `self` exists, so `new` found the features that `shell` is compiled for.
        unsafe { shell(self, bytes, at, out) }
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
    /// Reads numbers like `[-12.345,678`: 1 to 4 digits before the point, any number after it, and an id of up to 8 digits.
    ///
    /// The start of the next triple depends only on the mask below and a few bit operations, so the CPU can begin with it while it still
    /// multiplies the digits of this one.
    #[inline(always)]
    fn numbers(self, bytes: &[u8], at: usize) -> Option<TripleNumbers> {
        let window: &[u8; WINDOW] = bytes.get(at..)?.first_chunk()?;
        // SAFETY: `self` exists, so `new` found the features that `others` is compiled for.
        let other = unsafe { others(window[1..].first_chunk()?) };
        let negative = window[1] == b'-';
        if window[0] != b'[' || (other & 1 == 1) != negative {
            return None;
        }
        // The bytes that are not digits should be a sign, the point, and the commas after the two numbers.
        let other = other & !1;
        let point = 1 + other.trailing_zeros() as usize;
        let other = other & other.wrapping_sub(1);
        let comma = 1 + other.trailing_zeros() as usize;
        let other = other & other.wrapping_sub(1);
        let end = 1 + other.trailing_zeros() as usize;

        let first = 1 + usize::from(negative);
        let whole = point - first;
        if !(1..=4).contains(&whole) || window[point] != b'.' {
            return None;
        }
        let part = comma - (point + 1);
        if part == 0 || window[comma] != b',' {
            return None;
        }
        // Without a third bit in the mask, the end is the index after its 32 bytes.
        let id = end.saturating_sub(comma + 1);
        if !(1..=8).contains(&id) {
            return None;
        }
        let id_text = u64::from_le_bytes(*window[comma + 1..].first_chunk()?);
        if id_text as u8 == b'0' && id > 1 {
            return None;
        }
        let whole_text = u32::from_le_bytes(*window[first..].first_chunk()?);
        // SAFETY: `self` exists, so `new` found the features that `fraction` is compiled for.
        let fraction = unsafe { fraction(window[point + 1..].first_chunk()?, part) };
        let near = integral(whole_text, whole)? + fraction;
        // Below 2^-17 the 16 digits of the fraction are too few. Above, their error is less than 2^16 ulps.
        if near < 1.0 / 131_072.0 {
            return None;
        }
        let logprob = number::round(near, 1 << 17)?;
        Some(TripleNumbers {
            logprob: f32::from_bits(logprob.to_bits() | u32::from(negative) << 31),
            id: number::joined((id_text & 0x0F0F_0F0F_0F0F_0F0F) << (64 - 8 * id)) as u32,
            end: at + end,
        })
    }
}

/// A mask of the bytes that are not digits. Bit 0 is the first byte.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn others(text: &[u8; 32]) -> u32 {
    // SAFETY: `text` is a reference to the 32 bytes that are read.
    let text = unsafe { _mm256_loadu_si256(text.as_ptr().cast()) };
    let values = _mm256_sub_epi8(text, _mm256_set1_epi8(b'0' as i8));
    let digits = _mm256_cmpeq_epi8(_mm256_min_epu8(values, _mm256_set1_epi8(9)), values);
    !_mm256_movemask_epi8(digits) as u32
}

/// The fraction of the first `count` digits of `text`, at most 16.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn fraction(text: &[u8; 16], count: usize) -> f64 {
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
    let keep = &KEEP[16 - count.min(16)..][..16];
    // SAFETY: both point to 16 bytes, by the type of `text` and the slicing of `keep`.
    let (keep, text) = unsafe { (_mm_loadu_si128(keep.as_ptr().cast()), _mm_loadu_si128(text.as_ptr().cast())) };
    // Adjacent digits are joined to pairs, pairs to fours, fours to eights.
    let pairs = _mm_maddubs_epi16(_mm_and_si128(text, keep), _mm_set1_epi16(0x010A));
    let fours = _mm_madd_epi16(pairs, _mm_set1_epi32(0x0001_0064));
    let fours = _mm_packus_epi32(fours, fours);
    let eights = _mm_cvtsi128_si64(_mm_madd_epi16(fours, _mm_set1_epi32(0x0001_2710))) as u64;
    let sixteen = (eights & 0xFFFF_FFFF) * 100_000_000 + (eights >> 32);
    sixteen as i64 as f64 * 1e-16
}

/// The number of the first `count` digits of `text`, 1 to 4; `None` if it has a leading zero.
#[inline(always)]
fn integral(text: u32, count: usize) -> Option<f64> {
    /// The smallest number with this many digits.
    const LEAST: [u32; 5] = [0, 0, 10, 100, 1000];
    let digits = (text & 0x0F0F_0F0F) << (32 - 8 * count as u32);
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let value = (pairs & 0xFF) * 100 + (pairs >> 16 & 0xFF);
    (value >= LEAST[count]).then_some(f64::from(value))
}
