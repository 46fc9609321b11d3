//! Lists of a reply, passed, jumped over or read.

use std::ops::Range;

use crate::engine::scan;
use crate::json::{Cursor, Malformed};

/// An array of which the part behind what is known was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// What stands between the brackets.
    pub content: Range<usize>,
    /// Bytes at the start of the content that are known from the event before.
    pub known: usize,
}

/// A list that is not what it is known as is somebody else's under the same name; the reply is read without it.
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

/// Passes an array: what is known of its content is jumped over, `read` reads the rest.
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

/// Passes a flat array of numbers by looking for its end; anything else the slow way.
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
