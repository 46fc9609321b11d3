// SPDX-License-Identifier: Apache-2.0
//! Positions in the finished paths of a source.

use std::fmt;

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
}

#[cfg(test)]
impl From<u64> for Position {
    fn from(number: u64) -> Self {
        Self(format!("{number:020}").into())
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
    fn text_that_is_unfit_for_a_name_is_refused() {
        assert!(Position::parse("0000018f-0001").is_some());
        for text in ["", "a/b", "A", "..", &"0".repeat(65)] {
            assert_eq!(Position::parse(text), None, "{text:?}");
        }
    }
}
