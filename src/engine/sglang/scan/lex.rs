// SPDX-License-Identifier: Apache-2.0
//! Skips the parts of JSON without a value to parse: white space, punctuation, literals and strings.

use super::Malformed;

/// Returns the first index from `at` on that is not white space.
#[inline(always)]
pub(super) fn blank(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// Returns the index after `byte`, which must be at `at`.
#[inline(always)]
pub(super) fn byte(bytes: &[u8], at: usize, byte: u8) -> Result<usize, Malformed> {
    if bytes.get(at) == Some(&byte) { Ok(at + 1) } else { Err(Malformed { at }) }
}

/// Returns the index after `word`, if it is at `at`.
#[inline(always)]
pub(super) fn word(bytes: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    bytes.get(at..)?.starts_with(word).then_some(at + word.len())
}

/// Returns the index after the comma that must follow `at`, and after the white space around it.
#[inline(always)]
pub(super) fn comma(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    Ok(blank(bytes, byte(bytes, blank(bytes, at), b',')?))
}

/// Returns the index after the null or string that must be at `at`.
#[inline(always)]
pub(super) fn text(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    match word(bytes, at, b"null") {
        Some(at) => Ok(at),
        None => string(bytes, at),
    }
}

/// Returns the index after the string that must be at `at`. Like `serde_json` it accepts only valid UTF-8 without unpaired surrogates.
fn string(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    let start = byte(bytes, at, b'"')?;
    let mut at = start;
    let mut ascii = true;
    loop {
        match bytes.get(at) {
            Some(b'"') => break,
            Some(b'\\') => at = escape(bytes, at + 1)?,
            Some(0x20..0x80) => at += 1,
            Some(0x80..) => {
                ascii = false;
                at += 1;
            }
            Some(_) | None => return Err(Malformed { at }),
        }
    }
    if !ascii && let Err(error) = std::str::from_utf8(&bytes[start..at]) {
        return Err(Malformed { at: start + error.valid_up_to() });
    }
    Ok(at + 1)
}

/// Returns the index after the escape whose backslash is just before `at`.
fn escape(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    match bytes.get(at) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 1),
        Some(b'u') => match unit(bytes, at + 1)? {
            0xD800..=0xDBFF => {
                let low = word(bytes, at + 5, br"\u").ok_or(Malformed { at: at + 5 })?;
                match unit(bytes, low)? {
                    0xDC00..=0xDFFF => Ok(low + 4),
                    _ => Err(Malformed { at: low }),
                }
            }
            0xDC00..=0xDFFF => Err(Malformed { at }),
            _ => Ok(at + 5),
        },
        _ => Err(Malformed { at }),
    }
}

/// Parses the UTF-16 unit of the four hexadecimal digits at `at`.
fn unit(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    let digits = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(Malformed { at: bytes.len() })?;
    digits.iter().try_fold(0, |unit, &digit| {
        let value = char::from(digit).to_digit(16).ok_or(Malformed { at })?;
        Ok(unit << 4 | value)
    })
}
