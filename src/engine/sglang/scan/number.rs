// SPDX-License-Identifier: Apache-2.0
//! Parses decimal numbers with the rounding of `serde_json` and a cast: to the nearest f64, then to the nearest f32.

use super::{Malformed, lex};
use crate::json::digits::{eight_digits, short_integer};

/// Powers of ten; exact up to 10^22 and correctly rounded above.
const POW10: [f64; 41] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38, 1e39,
    1e40,
];

/// Returns the f32 nearest to an f64 that `near` approximates within `ulps` units in the last place. Returns `None` if the result is
/// ambiguous, because two f32 are about equally near. `near` must be large enough for a normal f32.
#[inline(always)]
pub(super) fn round(near: f64, ulps: u64) -> Option<f32> {
    // An f32 keeps 23 of the 52 fraction bits. Halfway between two f32 the other 29 bits are 10…0.
    const HALFWAY: u64 = 1 << 28;
    const DROPPED: u64 = (1 << 29) - 1;
    debug_assert!(near >= f64::from(f32::MIN_POSITIVE), "{near} has fewer than 23 bits as an f32");
    let clear = (near.to_bits().wrapping_sub(HALFWAY).wrapping_add(ulps) & DROPPED) > 2 * ulps;
    clear.then_some(near as f32)
}

/// Parses the number or null at `at`. Returns it and the index after it.
#[inline(always)]
pub(super) fn nullable(bytes: &[u8], at: usize) -> Result<(f32, usize), Malformed> {
    match lex::word(bytes, at, b"null") {
        Some(at) => Ok((f32::NAN, at)),
        None => float(bytes, at),
    }
}

/// Parses the token id at `at`. Returns it and the index after it.
#[inline(always)]
pub(super) fn integer(bytes: &[u8], at: usize) -> Result<(u32, usize), Malformed> {
    match short_integer(bytes, at) {
        Some((value, length)) => Ok((value, at + length)),
        None => long_integer(bytes, at),
    }
}

/// [`integer`] of any length, and its errors.
fn long_integer(bytes: &[u8], at: usize) -> Result<(u32, usize), Malformed> {
    let mut value = 0u64;
    let mut end = at;
    // Ten digits hold every u32 and do not overflow a u64.
    while let Some(digit @ b'0'..=b'9') = bytes.get(end)
        && end - at < 10
    {
        value = value * 10 + u64::from(digit - b'0');
        end += 1;
    }
    let padded = end - at > 1 && bytes[at] == b'0';
    let more = matches!(bytes.get(end), Some(b'0'..=b'9' | b'.' | b'e' | b'E'));
    match u32::try_from(value) {
        Ok(value) if end > at && !padded && !more => Ok((value, end)),
        _ => Err(Malformed { at }),
    }
}

/// Parses the number at `at`. Returns it and the index after it.
pub(super) fn float(bytes: &[u8], at: usize) -> Result<(f32, usize), Malformed> {
    let negative = bytes.get(at) == Some(&b'-');
    let first = at + usize::from(negative);
    let sign = if negative { -1.0 } else { 1.0 };
    let decimal = match bytes.get(first) {
        Some(b'0'..=b'9') => Decimal::read(bytes, first)?,
        Some(b'N') if !negative => return word(bytes, first, b"NaN", f32::NAN),
        Some(b'I') => return word(bytes, first, b"Infinity", sign * f32::INFINITY),
        _ => return Err(Malformed { at: first }),
    };
    match decimal.value() {
        Some(value) => Ok((sign * value, decimal.end)),
        None => Ok((exact(bytes, at, decimal.end)?, decimal.end)),
    }
}

fn word(bytes: &[u8], at: usize, word: &[u8], value: f32) -> Result<(f32, usize), Malformed> {
    lex::word(bytes, at, word).map(|at| (value, at)).ok_or(Malformed { at })
}

/// Parses the well-formed number `bytes[at..end]` with the standard library.
#[cold]
fn exact(bytes: &[u8], at: usize, end: usize) -> Result<f32, Malformed> {
    let value = std::str::from_utf8(&bytes[at..end]).ok().and_then(|text| text.parse::<f64>().ok());
    // JSON has no infinity: a number that overflows an f64 is refused, as by `serde_json`. It may still overflow the f32.
    value.filter(|value| value.is_finite()).map(|value| value as f32).ok_or(Malformed { at })
}

/// An unsigned decimal, `digits * 10^exponent`.
struct Decimal {
    /// Its digits as one number, modulo 2^64.
    digits: u64,
    /// The number of digits without leading zeros.
    count: usize,
    exponent: i64,
    /// The index after it.
    end: usize,
}

impl Decimal {
    /// Parses the decimal that starts with the digit at `at`.
    #[inline(always)]
    fn read(bytes: &[u8], at: usize) -> Result<Self, Malformed> {
        let (mut digits, mut count, mut end) = (0, 0, at + 1);
        if bytes[at] != b'0' {
            end = run(bytes, at, &mut digits);
            count = end - at;
        } else if let Some(b'0'..=b'9') = bytes.get(end) {
            return Err(Malformed { at: end });
        }
        let mut exponent = 0;
        if let Some(b'.') = bytes.get(end) {
            let start = end + 1;
            let mut significant = start;
            while count == 0 && bytes.get(significant) == Some(&b'0') {
                significant += 1;
            }
            end = run(bytes, significant, &mut digits);
            if end == start {
                return Err(Malformed { at: end });
            }
            count += end - significant;
            exponent -= (end - start) as i64;
        }
        if let Some(b'e' | b'E') = bytes.get(end) {
            let (power, after) = power(bytes, end + 1)?;
            exponent += power;
            end = after;
        }
        Ok(Self { digits, count, exponent, end })
    }

    /// The nearest f32; `None` if two f64 operations are not precise enough.
    #[inline(always)]
    fn value(&self) -> Option<f32> {
        if self.count == 0 {
            return Some(0.0);
        }
        // More than 19 digits may overflow the u64.
        let power = *POW10.get(usize::try_from(self.exponent.unsigned_abs()).ok()?)?;
        if self.count > 19 {
            return None;
        }
        let digits = self.digits as f64;
        let near = if self.exponent < 0 { digits / power } else { digits * power };
        // The conversion, the power and the operation each add at most one unit in the last place.
        if near < f64::from(f32::MIN_POSITIVE) { None } else { round(near, 8) }
    }
}

/// Appends the digits from `at` on to `value`. Returns the index after them.
#[inline(always)]
fn run(bytes: &[u8], mut at: usize, value: &mut u64) -> usize {
    while let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let Some(eight) = eight_digits(u64::from_le_bytes(*eight)) else { break };
        *value = value.wrapping_mul(100_000_000).wrapping_add(eight);
        at += 8;
    }
    while let Some(digit @ b'0'..=b'9') = bytes.get(at) {
        *value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        at += 1;
    }
    at
}

/// Parses the exponent at `at`, the index after the `e`. Returns it and the index after it. A huge exponent is clamped to a large one.
fn power(bytes: &[u8], at: usize) -> Result<(i64, usize), Malformed> {
    let negative = bytes.get(at) == Some(&b'-');
    let start = at + usize::from(negative || bytes.get(at) == Some(&b'+'));
    let mut end = start;
    let mut power = 0i64;
    while let Some(digit @ b'0'..=b'9') = bytes.get(end) {
        power = (power * 10 + i64::from(digit - b'0')).min(1 << 56);
        end += 1;
    }
    if end == start {
        return Err(Malformed { at: end });
    }
    Ok((if negative { -power } else { power }, end))
}
