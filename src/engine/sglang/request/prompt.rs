//! The prompt: `text` or `input_ids`.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::sglang::scan;
use crate::json::{Cursor, Malformed};

/// The bytes of an id in a list for which memory is reserved: those of a short one and its comma.
const BYTES_PER_ID: usize = 4;

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
                cursor.elements(|cursor| {
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
    /// The ids of each prompt; `None` for a prompt with other values than plain integers. Empty unless the shape is flat or nested and the ids
    /// are kept.
    pub prompts: Vec<Option<Arc<[u32]>>>,
    /// The range of the list if tokentap wrote it, including brackets.
    pub(super) written: Option<Range<usize>>,
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
        let mut extremes = Extremes::default();
        extremes.add(&ids);
        let extremes = extremes.ends();
        Self { shape: IdShape::Flat, extremes, empty: None, prompts: vec![Some(ids)], written: Some(span) }
    }

    /// Parses the value at the cursor. Without `keeps_ids` the prompts are only checked.
    pub(super) fn read(cursor: &mut Cursor<'_>, keeps_ids: bool) -> Result<Self, Malformed> {
        match cursor.peek() {
            Some(b'n') => return cursor.skip().map(|_| Self::default()),
            Some(b'[') => {}
            _ => {
                cursor.skip()?;
                return Ok(Self { shape: IdShape::Other, ..Self::default() });
            }
        }
        let mut reader = IdReader { list: keeps_ids.then(Vec::new), ..IdReader::default() };
        let mut ids = Self::default();
        let (mut lists, mut deep) = (0, false);
        reader.reserve(cursor);
        cursor.elements(|cursor| {
            if cursor.peek() != Some(b'[') {
                return reader.elements(cursor);
            }
            let numbers = std::mem::take(&mut reader.count);
            cursor.elements(|cursor| {
                deep |= cursor.peek() == Some(b'[');
                reader.elements(cursor)
            })?;
            if reader.count == 0 {
                ids.empty.get_or_insert(lists);
            }
            if keeps_ids {
                ids.prompts.push(reader.take_list());
            }
            reader.count = numbers;
            lists += 1;
            Ok(())
        })?;
        ids.shape = match (reader.count, lists) {
            _ if deep => IdShape::TooDeep,
            _ if reader.has_other => IdShape::Other,
            (_, 0) => IdShape::Flat,
            (0, count) => IdShape::Nested(count),
            _ => IdShape::Other,
        };
        match ids.shape {
            IdShape::Flat if keeps_ids => ids.prompts.push(reader.take_list()),
            IdShape::Flat | IdShape::Nested(_) => {}
            _ => ids.prompts.clear(),
        }
        ids.extremes = reader.extremes.ends();
        Ok(ids)
    }
}

/// Reads the elements of lists of ids.
#[derive(Debug, Default)]
struct IdReader {
    /// The number of elements of the current list.
    count: usize,
    /// The ids of the current list; `None` after an element that is no plain integer of 32 bits, or if ids are not kept.
    list: Option<Vec<u32>>,
    extremes: Extremes,
    /// An element is not an integer.
    has_other: bool,
}

impl IdReader {
    /// Reserves memory for the ids of the list at the cursor.
    fn reserve(&mut self, cursor: &Cursor<'_>) {
        let Some(list) = &mut self.list else { return };
        let rest = &cursor.bytes()[cursor.position()..];
        let length = memchr::memchr(b']', rest).unwrap_or(rest.len());
        list.reserve(length / BYTES_PER_ID);
    }

    /// Returns the ids of the current list, and begins the next one.
    fn take_list(&mut self) -> Option<Arc<[u32]>> {
        self.list.replace(Vec::new()).map(Arc::from)
    }

    /// Parses the element at the cursor, and those before it that are ids in the usual format.
    fn elements(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let Self { count, list, extremes, .. } = self;
        let end = scan::id_run(cursor.bytes(), cursor.position(), |ids| {
            *count += ids.len();
            extremes.add(ids);
            if let Some(list) = list {
                list.extend_from_slice(ids);
            }
        });
        cursor.seek(end);
        self.count += 1;
        self.element(cursor)
    }

    /// Parses one element. An integer beyond 64 bits counts as the largest.
    fn element(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let first = cursor.peek();
        if let Some(id) = cursor.small_integer() {
            match u32::try_from(id) {
                Ok(id) if first != Some(b'-') => {
                    self.extremes.add(&[id]);
                    self.list.iter_mut().for_each(|list| list.push(id));
                }
                _ => self.add_unusual(id),
            }
            return Ok(());
        }
        let text = match first {
            Some(b'-' | b'0'..=b'9') => cursor.number()?,
            Some(b'"') => std::str::from_utf8(cursor.string()?.raw).unwrap_or_default(),
            _ => {
                cursor.skip()?;
                self.list = None;
                self.has_other = true;
                return Ok(());
            }
        };
        let is_quoted = first == Some(b'"');
        let integer = text.parse::<i64>();
        let is_integer = integer.is_ok() || text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        self.has_other |= is_quoted || !is_integer;
        if is_quoted && text.parse::<f64>().is_err() {
            self.list = None;
            return Ok(());
        }
        // a float saturates at the ends of i64, which are outside every vocabulary
        self.add_unusual(integer.unwrap_or_else(|_| text.parse::<f64>().map_or(i64::MAX, |id| id as i64)));
        Ok(())
    }

    /// Adds an element that is no plain integer of 32 bits.
    fn add_unusual(&mut self, id: i64) {
        self.list = None;
        self.extremes.add_unusual(id);
    }
}

/// The smallest and the largest id so far.
#[derive(Debug)]
struct Extremes {
    /// By the index modulo 8: those of plain ids, so that eight are compared at a time.
    low: [u32; 8],
    high: [u32; 8],
    /// Those of other numbers.
    unusual: Option<(i64, i64)>,
}

impl Default for Extremes {
    fn default() -> Self {
        Self { low: [u32::MAX; 8], high: [0; 8], unusual: None }
    }
}

impl Extremes {
    #[inline(always)]
    fn add(&mut self, ids: &[u32]) {
        for ids in ids.chunks(8) {
            for (id, (low, high)) in ids.iter().zip(self.low.iter_mut().zip(&mut self.high)) {
                *low = (*low).min(*id);
                *high = (*high).max(*id);
            }
        }
    }

    fn add_unusual(&mut self, id: i64) {
        let (low, high) = self.unusual.unwrap_or((id, id));
        self.unusual = Some((low.min(id), high.max(id)));
    }

    /// Both; `None` without ids.
    fn ends(&self) -> Option<(i64, i64)> {
        let low = self.low.iter().copied().min().unwrap_or(u32::MAX);
        let high = self.high.iter().copied().max().unwrap_or(0);
        let usual = (low <= high).then_some((i64::from(low), i64::from(high)));
        match (usual, self.unusual) {
            (Some((low, high)), Some((least, most))) => Some((low.min(least), high.max(most))),
            (usual, unusual) => usual.or(unusual),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Ids {
        Ids::read(&mut Cursor::new(text.as_bytes()), true).unwrap()
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
