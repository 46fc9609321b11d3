// SPDX-License-Identifier: Apache-2.0
//! Fields that hold one value for all items of a batch, or one per item.

use std::ops::Range;

use crate::json::{Cursor, Malformed};

/// A field of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum PerItem<T> {
    /// Absent or null.
    #[default]
    Absent,
    /// One value for all items.
    One(T),
    /// A list; null items are `None`.
    Many(Vec<Option<T>>),
    /// A value whose meaning depends on the engine's coercions: 0.5.6 and sglang-jax read `1` and `"true"` as true.
    Unreadable,
}

impl<T> PerItem<T> {
    /// The value for item `at`; `None` if absent, null, or beyond the list.
    pub fn get(&self, at: usize) -> Option<&T> {
        match self {
            Self::One(value) => Some(value),
            Self::Many(values) => values.get(at).and_then(Option::as_ref),
            Self::Absent | Self::Unreadable => None,
        }
    }

    /// The length of the list; `None` if it is not a list.
    pub fn list_len(&self) -> Option<usize> {
        match self {
            Self::Many(values) => Some(values.len()),
            _ => None,
        }
    }

    /// Whether the value is unambiguous.
    pub fn is_readable(&self) -> bool {
        !matches!(self, Self::Unreadable)
    }

    /// Parses the value at the cursor. `one` parses one item and returns `None` if it is ambiguous.
    pub(super) fn read<'a>(
        cursor: &mut Cursor<'a>,
        mut one: impl FnMut(&mut Cursor<'a>) -> Result<Option<T>, Malformed>,
    ) -> Result<Self, Malformed> {
        match cursor.peek() {
            Some(b'n') => {
                cursor.skip()?;
                Ok(Self::Absent)
            }
            Some(b'[') => {
                cursor.expect(b'[')?;
                let mut values = Vec::new();
                let mut readable = true;
                if !cursor.take(b']') {
                    loop {
                        if cursor.peek() == Some(b'n') {
                            cursor.skip()?;
                            values.push(None);
                        } else {
                            let value = one(cursor)?;
                            readable &= value.is_some();
                            values.push(value);
                        }
                        if cursor.take(b']') {
                            break;
                        }
                        cursor.expect(b',')?;
                    }
                }
                Ok(if readable { Self::Many(values) } else { Self::Unreadable })
            }
            _ => Ok(one(cursor)?.map_or(Self::Unreadable, Self::One)),
        }
    }
}

pub(super) fn string(cursor: &mut Cursor<'_>) -> Result<Option<String>, Malformed> {
    if cursor.peek() == Some(b'"') {
        return Ok(Some(cursor.string()?.decode().into_owned()));
    }
    cursor.skip()?;
    Ok(None)
}

/// `true` or `false`.
pub(super) fn boolean(cursor: &mut Cursor<'_>) -> Result<Option<bool>, Malformed> {
    let span = cursor.skip()?;
    Ok(match &cursor.bytes()[span] {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    })
}

/// An integer without fraction or exponent.
pub(super) fn integer(cursor: &mut Cursor<'_>) -> Result<Option<i64>, Malformed> {
    let span = cursor.skip()?;
    Ok(std::str::from_utf8(&cursor.bytes()[span]).ok().and_then(|text| text.parse().ok()))
}

/// `token_ids_logprob`: a flat list applies to all items, a list of lists has one per item. Only the ranges are kept.
pub(super) fn id_lists(cursor: &mut Cursor<'_>) -> Result<PerItem<Range<usize>>, Malformed> {
    let mut ahead = cursor.clone();
    let span = cursor.skip()?;
    if ahead.bytes()[span.clone()] == *b"null" {
        return Ok(PerItem::Absent);
    }
    if !ahead.take(b'[') {
        return Ok(PerItem::Unreadable);
    }
    if matches!(ahead.peek(), Some(b'[' | b'n')) {
        let mut list = Cursor::at(cursor.bytes(), span.start);
        return PerItem::read(&mut list, |cursor| {
            let is_list = cursor.peek() == Some(b'[');
            let span = cursor.skip()?;
            Ok(is_list.then_some(span))
        });
    }
    Ok(PerItem::One(span))
}
