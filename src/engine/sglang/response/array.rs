// SPDX-License-Identifier: Apache-2.0
//! Reads or skips the lists of a reply.

use std::ops::Range;

use crate::engine::events::Array;
use crate::engine::sglang::scan;
use crate::json::{Cursor, Malformed};

/// Reads a list, or skips it if it has another format: another product may use the same name. The reply is then parsed without it.
pub(super) fn optional<'a, T>(
    cursor: &mut Cursor<'a>,
    read: impl FnOnce(&mut Cursor<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    let start = cursor.clone();
    match read(cursor) {
        Ok(value) => Ok(Some(value)),
        Err(_) => {
            *cursor = start;
            cursor.skip()?;
            Ok(None)
        }
    }
}

/// Parses an array: skips its known prefix and calls `read` for the rest.
pub(super) fn array(
    cursor: &mut Cursor<'_>,
    known: impl FnOnce(usize) -> usize,
    read: impl FnOnce(&[u8], usize) -> Result<usize, scan::Malformed>,
) -> Result<Array, Malformed> {
    cursor.expect(b'[')?;
    let start = cursor.position();
    let known = known(start);
    let end = read(cursor.bytes(), start + known).map_err(|error| Malformed::new(error.at))?;
    cursor.seek(end);
    Ok(Array { content: start..end - 1, known })
}

/// Skips a flat array of numbers by searching its end. Falls back to the JSON parser for other values.
pub(super) fn skip_numbers(cursor: &mut Cursor<'_>) -> Result<Range<usize>, Malformed> {
    let start = cursor.position();
    let rest = &cursor.bytes()[start + 1..];
    match memchr::memchr3(b']', b'[', b'"', rest) {
        Some(at) if rest[at] == b']' => {
            let end = start + 1 + at + 1;
            cursor.seek(end);
            Ok(start..end)
        }
        _ => cursor.skip(),
    }
}

pub(super) fn count_numbers(array: &[u8]) -> usize {
    let commas = memchr::memchr_iter(b',', array).count();
    if commas == 0 && !array.iter().any(u8::is_ascii_digit) { 0 } else { commas + 1 }
}
