// SPDX-License-Identifier: Apache-2.0
//! Pages of rows in the order of a value.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;

use super::Uid;

/// A value by which rows are sorted. Numbers come before texts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SortValue {
    Number(f64),
    Text(Box<str>),
    /// After all others, also in a descending order.
    Absent,
}

/// The place of a row: its value, then the birth of its session, then a turn of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SortPlace {
    pub(super) value: SortValue,
    pub(super) birth: Uid,
    pub(super) turn: u32,
}

/// The place after which a page with this order begins. A row whose value changes between two pages may be on both or on none, any other one
/// is on exactly one.
#[derive(Debug, Clone, PartialEq)]
pub struct PageCursor<O> {
    pub(super) order: O,
    pub(super) place: SortPlace,
}

/// A text that is not the cursor of a page with this order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("after: must be the next of a page with the same sort, not {0:?}")]
pub struct ForeignCursor(pub(super) String);

/// The best rows of those that are pushed.
pub(super) struct PageCollector<'a, T> {
    is_descending: bool,
    after: Option<&'a SortPlace>,
    limit: usize,
    rows: BinaryHeap<Candidate<T>>,
    matched: usize,
}

/// The rows of a page.
pub(super) struct CollectedPage<T> {
    pub(super) rows: Vec<T>,
    /// The place of the last row; `None` on the last page.
    pub(super) next: Option<SortPlace>,
    /// The rows of all pages.
    pub(super) matched: usize,
}

/// A row of a page that is being collected. The greatest one is the last.
struct Candidate<T> {
    is_descending: bool,
    place: SortPlace,
    row: T,
}

impl SortValue {
    /// A text, as a number if it is one.
    pub(super) fn of_text(text: &str) -> Self {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.map_or_else(|| Self::Text(text.into()), Self::Number)
    }

    pub(super) fn compare(&self, other: &Self, is_descending: bool) -> Ordering {
        let order = match (self, other) {
            (Self::Absent, Self::Absent) => return Ordering::Equal,
            (Self::Absent, _) => return Ordering::Greater,
            (_, Self::Absent) => return Ordering::Less,
            (Self::Number(one), Self::Number(other)) => one.total_cmp(other),
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        };
        if is_descending { order.reverse() } else { order }
    }
}

impl From<Option<f64>> for SortValue {
    fn from(number: Option<f64>) -> Self {
        number.map_or(Self::Absent, Self::Number)
    }
}

/// The text of a value is in hexadecimal digits.
impl fmt::Display for SortValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "n{:016x}", number.to_bits()),
            Self::Text(text) => {
                f.write_str("t")?;
                text.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Absent => f.write_str("a"),
        }
    }
}

impl SortValue {
    fn parse(text: &str) -> Option<Self> {
        Some(match text.split_at_checked(1)? {
            ("n", bits) => Self::Number(f64::from_bits(u64::from_str_radix(bits, 16).ok()?)),
            ("t", digits) => {
                let pairs = digits.as_bytes().chunks(2);
                let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
                Self::Text(String::from_utf8(pairs.map(byte).collect::<Option<_>>()?).ok()?.into())
            }
            ("a", "") => Self::Absent,
            _ => return None,
        })
    }
}

impl SortPlace {
    fn compare(&self, other: &Self, is_descending: bool) -> Ordering {
        let order = self.value.compare(&other.value, is_descending);
        order.then_with(|| (self.birth, self.turn).cmp(&(other.birth, other.turn)))
    }
}

/// A text separates the parts with a character that names of tags do not have.
impl<O: fmt::Display> fmt::Display for PageCursor<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { order, place } = self;
        write!(f, "{order}!{}!{}!{}", place.birth, place.turn, place.value)
    }
}

impl<O: FromStr + PartialEq + Clone> PageCursor<O> {
    /// Parses the cursor of a page with this order.
    ///
    /// # Errors
    /// [`ForeignCursor`].
    pub fn parse(text: &str, order: &O) -> Result<Self, ForeignCursor> {
        let parsed = || {
            let mut parts = text.split('!');
            let (of, birth, turn, value) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let is_whole = parts.next().is_none() && of.parse().is_ok_and(|of: O| of == *order);
            let (value, birth) = (SortValue::parse(value)?, birth.parse().ok()?);
            let place = SortPlace { value, birth, turn: turn.parse().ok()? };
            is_whole.then_some(Self { order: order.clone(), place })
        };
        parsed().ok_or_else(|| ForeignCursor(text.to_owned()))
    }
}

impl<'a, T> PageCollector<'a, T> {
    /// A page of at most `limit` rows after a place.
    pub(super) fn new(is_descending: bool, after: Option<&'a SortPlace>, limit: usize) -> Self {
        Self { is_descending, after, limit, rows: BinaryHeap::new(), matched: 0 }
    }

    pub(super) fn push(&mut self, place: SortPlace, row: T) {
        self.matched += 1;
        if self.after.is_some_and(|after| place.compare(after, self.is_descending).is_le()) {
            return;
        }
        self.rows.push(Candidate { is_descending: self.is_descending, place, row });
        // one more tells whether there is another page
        if self.rows.len() > self.limit + 1 {
            self.rows.pop();
        }
    }

    pub(super) fn finish(self) -> CollectedPage<T> {
        let is_last = self.rows.len() <= self.limit;
        let mut rows = self.rows.into_sorted_vec();
        rows.truncate(self.limit);
        let next = rows.last().filter(|_| !is_last).map(|last| last.place.clone());
        let rows = rows.into_iter().map(|candidate| candidate.row).collect();
        CollectedPage { rows, next, matched: self.matched }
    }
}

impl<T> Ord for Candidate<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place.compare(&other.place, self.is_descending)
    }
}

impl<T> PartialOrd for Candidate<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Candidate<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Candidate<T> {}
