//! Positions in the finished paths of a source.

use std::fmt;

use crate::session::ledger::StreamId;

use serde::{Deserialize, Deserializer, Serialize};

/// The longest text of a position.
const LONGEST: usize = 64;

/// A position in the finished paths of a partition. Its text sorts as positions rise, and it is part of the names of objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position(Box<str>);

impl Position {
    /// Parses a text of at most 64 digits, lower-case letters and hyphens.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_valid = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'-');
        let fits = (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_valid);
        fits.then(|| Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number that the position was made of.
    pub(super) fn number(&self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// The id in a stream that the position was made of.
    pub(super) fn stream_id(&self) -> Option<StreamId> {
        self.0.parse().ok()
    }
}

impl From<u64> for Position {
    /// Twenty digits, so that texts sort as numbers do.
    fn from(number: u64) -> Self {
        Self(format!("{number:020}").into())
    }
}

impl From<StreamId> for Position {
    /// Twenty digits for the milliseconds and for the number within them, so that texts sort as ids do.
    fn from(id: StreamId) -> Self {
        Self(format!("{:020}-{:020}", id.ms, id.seq).into())
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a position")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sort_as_texts() {
        let positions = [0, 9, 10, u64::MAX].map(Position::from);
        assert!(positions.is_sorted_by(|a, b| a.as_str() < b.as_str()));
        assert_eq!(positions.map(|position| position.number()), [Some(0), Some(9), Some(10), Some(u64::MAX)]);
    }

    #[test]
    fn ids_of_streams_sort_as_texts() {
        let id = |ms, seq| StreamId { ms, seq };
        let ids = [id(0, 0), id(9, u64::MAX), id(10, 0), id(10, 9), id(10, 10), id(u64::MAX, u64::MAX)];
        let positions = ids.map(Position::from);
        assert!(positions.is_sorted_by(|a, b| a.as_str() < b.as_str()));
        assert_eq!(positions.map(|position| position.stream_id()), ids.map(Some));
    }

    #[test]
    fn text_that_is_unfit_for_a_name_is_refused() {
        assert!(Position::parse("0000018f-0001").is_some());
        for text in ["", "a/b", "A", "..", &"0".repeat(65)] {
            assert_eq!(Position::parse(text), None, "{text:?}");
        }
    }
}
