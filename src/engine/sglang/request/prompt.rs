// SPDX-License-Identifier: Apache-2.0
//! The prompt: `text` or `input_ids`.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::sglang::scan;
use crate::json::{Cursor, Malformed};

/// The bytes of an id in a list for which memory is reserved: those of a short one and its comma.
const BYTES_PER_ID: usize = 4;

/// The longest body whose ids are read ahead, in bytes: they take a millisecond.
const MOST_AHEAD: usize = 4 << 20;

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
    /// The range of the list, including brackets, if it was read before the body, or if tokentap wrote it.
    pub(super) span: Option<Range<usize>>,
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
        ids.chunks(8).for_each(|ids| extremes.add(ids));
        let extremes = extremes.ends();
        Self { shape: IdShape::Flat, extremes, empty: None, prompts: vec![Some(ids)], span: Some(span) }
    }

    /// Reads the ids of a single prompt before the rest of the body is parsed, which takes a millisecond at most. `None` for another prompt, and
    /// if an element is not a plain integer.
    #[must_use]
    pub fn read_ahead(bytes: &[u8], keeps_ids: bool) -> Option<Self> {
        const KEY: &[u8] = b"\"input_ids\"";
        if bytes.len() > MOST_AHEAD {
            return None;
        }
        let mut cursor = Cursor::at(bytes, memchr::memmem::find(bytes, KEY)? + KEY.len());
        cursor.expect(b':').ok()?;
        cursor.peek();
        let start = cursor.position();
        let mut reader = IdReader { list: keeps_ids.then(Vec::new), ..IdReader::default() };
        reader.reserve(&cursor);
        cursor.expect(b'[').ok()?;
        if !cursor.take(b']') {
            reader.run(&mut cursor);
            cursor.peek().filter(u8::is_ascii_digit)?;
            reader.add(u32::try_from(cursor.small_integer()?).ok()?);
            cursor.expect(b']').ok()?;
        }
        Some(Self {
            shape: IdShape::Flat,
            extremes: reader.extremes.ends(),
            empty: None,
            prompts: if keeps_ids { vec![reader.take_list()] } else { Vec::new() },
            span: Some(start..cursor.position()),
        })
    }

    /// The length of the list in bytes if it was read before the body, or if tokentap wrote it; 0 otherwise.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.span.as_ref().map_or(0, Range::len)
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
            reader.run(cursor);
            if cursor.peek() != Some(b'[') {
                return reader.element(cursor);
            }
            let numbers = std::mem::take(&mut reader.count);
            cursor.elements(|cursor| {
                reader.run(cursor);
                deep |= cursor.peek() == Some(b'[');
                reader.element(cursor)
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

    /// Parses the elements from the cursor on while they are ids in the usual format and a comma follows.
    fn run(&mut self, cursor: &mut Cursor<'_>) {
        if !cursor.peek().is_some_and(|first| first.is_ascii_digit()) {
            return;
        }
        let Self { count, list, extremes, .. } = self;
        let end = scan::id_run(cursor.bytes(), cursor.position(), |ids| {
            *count += ids.len();
            extremes.add(ids);
            if let Some(list) = list {
                list.extend_from_slice(ids);
            }
        });
        cursor.seek(end);
    }

    /// Parses one element. An integer beyond 64 bits counts as the largest.
    fn element(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let first = cursor.peek();
        self.count += 1;
        if let Some(id) = cursor.small_integer() {
            match u32::try_from(id) {
                Ok(id) if first != Some(b'-') => self.add(id),
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

    /// Adds a plain integer.
    fn add(&mut self, id: u32) {
        self.extremes.add(&[id]);
        self.list.iter_mut().for_each(|list| list.push(id));
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
    /// Adds up to eight ids.
    #[inline(always)]
    fn add(&mut self, ids: &[u32]) {
        for (id, (low, high)) in ids.iter().zip(self.low.iter_mut().zip(&mut self.high)) {
            *low = (*low).min(*id);
            *high = (*high).max(*id);
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
    use proptest::prelude::*;

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

    /// The oracle of [`Ids::read`]: takes every element by itself, and reads the ids of a prompt afterwards from its text.
    fn read_each(cursor: &mut Cursor<'_>) -> Result<Ids, Malformed> {
        let mut ids = Ids::default();
        match cursor.peek() {
            Some(b'n') => return cursor.skip().map(|_| ids),
            Some(b'[') => {}
            _ => {
                cursor.skip()?;
                return Ok(Ids { shape: IdShape::Other, ..ids });
            }
        }
        let (mut numbers, mut lists, mut deep, mut other) = (0, 0, false, false);
        let mut spans = Vec::new();
        let whole = cursor.position();
        cursor.elements(|cursor| {
            if cursor.peek() != Some(b'[') {
                numbers += 1;
                other |= !element(&mut ids, cursor)?;
                return Ok(());
            }
            let mut empty = true;
            let start = cursor.position();
            cursor.elements(|cursor| {
                empty = false;
                deep |= cursor.peek() == Some(b'[');
                other |= !element(&mut ids, cursor)?;
                Ok(())
            })?;
            if empty {
                ids.empty.get_or_insert(lists);
            }
            spans.push(start..cursor.position());
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
            IdShape::Flat => spans.push(whole..cursor.position()),
            IdShape::Nested(_) => {}
            _ => spans.clear(),
        }
        let plain = |span: Range<usize>| {
            let mut ids = Vec::new();
            let end = scan::ids_portable(cursor.bytes(), span.start + 1, &mut ids).ok()?;
            (end == span.end).then(|| ids.into())
        };
        ids.prompts = spans.into_iter().map(plain).collect();
        Ok(ids)
    }

    /// Parses one element and returns whether it is an integer.
    fn element(ids: &mut Ids, cursor: &mut Cursor<'_>) -> Result<bool, Malformed> {
        let first = cursor.peek();
        let text = match first {
            Some(b'-' | b'0'..=b'9') => cursor.number()?,
            Some(b'"') => std::str::from_utf8(cursor.string()?.raw).unwrap_or_default(),
            _ => {
                cursor.skip()?;
                return Ok(false);
            }
        };
        let is_quoted = first == Some(b'"');
        if is_quoted && text.parse::<f64>().is_err() {
            return Ok(false);
        }
        let integer = text.parse::<i64>();
        let is_integer = integer.is_ok() || text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        let id = integer.unwrap_or_else(|_| text.parse::<f64>().map_or(i64::MAX, |id| id as i64));
        let (low, high) = ids.extremes.unwrap_or((id, id));
        ids.extremes = Some((low.min(id), high.max(id)));
        Ok(!is_quoted && is_integer)
    }

    /// Both readers return the same ids, or the same error, and stop at the same byte.
    fn agree(text: &str) {
        let bytes = &*Box::<[u8]>::from(text.as_bytes());
        let [mut each, mut kept, mut checked] = [(); 3].map(|()| Cursor::new(bytes));
        let wanted = read_each(&mut each);
        assert_eq!(Ids::read(&mut kept, true), wanted, "{text}");
        assert_eq!((kept.position(), kept.non_finite()), (each.position(), each.non_finite()), "{text}");
        let wanted = wanted.map(|ids| Ids { prompts: Vec::new(), ..ids });
        assert_eq!(Ids::read(&mut checked, false), wanted, "{text}");
        assert_eq!(checked.position(), each.position(), "{text}");
    }

    fn unusual() -> impl Strategy<Value = String> {
        let texts = "0 007 00 -0 -5 1.0 7e1 1e999 NaN -Infinity 12345678 123456789 4294967295 4294967296 999999999999999 \
            1000000000000000 9223372036854775808 99999999999999999999 \"7\" \"x\" \"\\u0031\" null true [] [1] [[1]] {} {\"a\":1} é + 1- ,";
        let texts: Vec<String> = texts.split(' ').map(str::to_owned).chain([String::new()]).collect();
        prop::sample::select(texts)
    }

    fn list(most_unusual: u32) -> impl Strategy<Value = String> {
        let id = prop_oneof![
            60 => (1..8u32).prop_flat_map(|digits| 0..10_u32.pow(digits)).prop_map(|id| id.to_string()),
            most_unusual => unusual(),
        ];
        let separators = prop::sample::select(vec![",", ",", ", ", ", ", ",  ", " ,", ",\n\t"]);
        let ends = (prop::sample::select(vec!["[", "[ "]), prop::sample::select(vec!["]", "]", " ]", ",]", ""]));
        (prop::collection::vec(id, 0..80), separators, ends)
            .prop_map(|(ids, separator, (first, last))| format!("{first}{}{last}", ids.join(separator)))
    }

    proptest! {
        #[test]
        fn ids_are_read_as_one_by_one(list in prop_oneof![list(0), list(1), list(20)], before in 0..12_usize, after in 0..90_usize) {
            agree(&format!("{:before$}{list}{:after$}", "", ""));
            agree(&format!("{list},\"sampling_params\":{{\"max_new_tokens\":16,\"temperature\":1.0,\"sampling_seed\":1}},\"rid\":\"x\"}}"));
        }

        #[test]
        fn batches_are_read_as_one_by_one(lists in prop::collection::vec(list(1), 0..5), separator in prop::sample::select(vec![",", ", ", ",7,"])) {
            agree(&format!("[{}]", lists.join(separator)));
        }
    }
}
