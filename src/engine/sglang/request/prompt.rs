//! The prompt: `text` or `input_ids`.

use std::ops::Range;
use std::sync::Arc;

use crate::json::{Cursor, Malformed};

/// `text`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Texts {
    /// Absent or null.
    #[default]
    Absent,
    /// One string.
    One {
        /// Whether it is empty.
        empty: bool,
    },
    /// A list of strings.
    Many {
        /// The number of strings.
        count: usize,
        /// The index of the first empty string.
        empty: Option<usize>,
    },
    /// Another value, which the engine refuses.
    Other,
}

impl Texts {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        match cursor.peek() {
            Some(b'n') => cursor.skip().map(|_| Self::Absent),
            Some(b'"') => Ok(Self::One { empty: cursor.string()?.raw.is_empty() }),
            Some(b'[') => {
                let (mut count, mut empty, mut strings) = (0, None, true);
                elements(cursor, |cursor| {
                    if cursor.peek() == Some(b'"') {
                        if cursor.string()?.raw.is_empty() {
                            empty.get_or_insert(count);
                        }
                    } else {
                        strings = false;
                        cursor.skip()?;
                    }
                    count += 1;
                    Ok(())
                })?;
                Ok(if strings { Self::Many { count, empty } } else { Self::Other })
            }
            _ => cursor.skip().map(|_| Self::Other),
        }
    }
}

/// `input_ids`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ids {
    /// How the ids are arranged.
    pub shape: IdShape,
    /// The smallest and the largest id of all prompts, including fractions and quoted numbers, because 0.5.6 accepts them.
    pub extremes: Option<(i64, i64)>,
    /// The index of the first prompt in a batch without any id.
    pub empty: Option<usize>,
    /// The range of each prompt's list, including brackets. Empty unless the shape is flat or nested.
    pub prompts: Vec<Range<usize>>,
    /// The ids of the only prompt, if tokentap wrote them.
    pub written: Option<Arc<[u32]>>,
}

/// How `input_ids` are arranged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IdShape {
    /// Absent or null.
    #[default]
    Absent,
    /// One prompt.
    Flat,
    /// A batch of this many prompts.
    Nested(usize),
    /// Nested deeper than a list of lists.
    TooDeep,
    /// A value whose meaning depends on the engine's coercions.
    Other,
}

impl Ids {
    /// The ids of one prompt that tokentap wrote at `span`.
    pub(super) fn written(ids: Arc<[u32]>, span: Range<usize>) -> Self {
        let extremes = ids.iter().copied().min().zip(ids.iter().copied().max());
        let extremes = extremes.map(|(low, high)| (low.into(), high.into()));
        Self { shape: IdShape::Flat, extremes, empty: None, prompts: vec![span], written: Some(ids) }
    }

    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let mut ids = Self::default();
        match cursor.peek() {
            Some(b'n') => return cursor.skip().map(|_| ids),
            Some(b'[') => {}
            _ => {
                cursor.skip()?;
                return Ok(Self { shape: IdShape::Other, ..ids });
            }
        }
        let (mut numbers, mut lists, mut deep, mut other) = (0, 0, false, false);
        let whole = cursor.position();
        elements(cursor, |cursor| {
            if cursor.peek() != Some(b'[') {
                numbers += 1;
                other |= !ids.element(cursor)?;
                return Ok(());
            }
            let mut empty = true;
            let start = cursor.position();
            elements(cursor, |cursor| {
                empty = false;
                deep |= cursor.peek() == Some(b'[');
                other |= !ids.element(cursor)?;
                Ok(())
            })?;
            if empty {
                ids.empty.get_or_insert(lists);
            }
            ids.prompts.push(start..cursor.position());
            lists += 1;
            Ok(())
        })?;
        ids.shape = match (numbers, lists) {
            _ if deep => IdShape::TooDeep,
            _ if other => IdShape::Other,
            (_, 0) => IdShape::Flat,
            (0, count) => IdShape::Nested(count),
            _ => IdShape::Other,
        };
        match ids.shape {
            IdShape::Flat => ids.prompts.push(whole..cursor.position()),
            IdShape::Nested(_) => {}
            _ => ids.prompts.clear(),
        }
        Ok(ids)
    }

    fn add(&mut self, id: i64) {
        let (low, high) = self.extremes.unwrap_or((id, id));
        self.extremes = Some((low.min(id), high.max(id)));
    }

    /// Parses one element and returns whether it is an integer. An integer beyond 64 bits counts as the largest.
    fn element(&mut self, cursor: &mut Cursor<'_>) -> Result<bool, Malformed> {
        if let Some(id) = cursor.small_integer() {
            self.add(id);
            return Ok(true);
        }
        let quoted = cursor.peek() == Some(b'"');
        let text = match cursor.peek() {
            Some(b'-' | b'0'..=b'9') => cursor.number()?,
            Some(b'"') => std::str::from_utf8(cursor.string()?.raw).unwrap_or_default(),
            _ => {
                cursor.skip()?;
                return Ok(false);
            }
        };
        if quoted && text.parse::<f64>().is_err() {
            return Ok(false);
        }
        let integer = text.parse::<i64>();
        let beyond = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        // a float saturates at the ends of i64, which are outside every vocabulary
        let id = integer.clone().unwrap_or_else(|_| text.parse::<f64>().map_or(i64::MAX, |id| id as i64));
        self.add(id);
        Ok(!quoted && (integer.is_ok() || beyond))
    }
}

/// Parses an array. `element` parses each element.
fn elements<'a>(
    cursor: &mut Cursor<'a>,
    mut element: impl FnMut(&mut Cursor<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    cursor.expect(b'[')?;
    if cursor.take(b']') {
        return Ok(());
    }
    loop {
        element(cursor)?;
        if cursor.take(b']') {
            return Ok(());
        }
        cursor.expect(b',')?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Ids {
        Ids::read(&mut Cursor::new(text.as_bytes())).unwrap()
    }

    #[test]
    fn ids_have_a_shape_and_extremes() {
        assert_eq!(ids("[3, 1,2]").extremes, Some((1, 3)));
        assert_eq!(ids("[[1],[-5,9]]").extremes, Some((-5, 9)));
        assert_eq!(ids("[[1],[]]").shape, IdShape::Nested(2));
        assert_eq!(ids("[[1],[]]").empty, Some(1));
        assert_eq!(ids("[[[1]]]").shape, IdShape::TooDeep);
        assert_eq!(ids("[1,[2]]").shape, IdShape::Other);
        assert_eq!(ids("[1.0, 7e1]").shape, IdShape::Other);
        assert_eq!(ids("[1.0, 7e1]").extremes, Some((1, 70)));
        assert_eq!(ids("[true]").shape, IdShape::Other);
        assert_eq!(ids("[99999999999999999999]").extremes, Some((i64::MAX, i64::MAX)));
        assert_eq!(ids("null"), Ids::default());
    }
}
