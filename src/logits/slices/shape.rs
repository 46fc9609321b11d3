// SPDX-License-Identifier: Apache-2.0
//! The shape of a slice: its rows and their columns.

use super::{MAX_VOCAB, SLOT_BYTES, SLOT_ROWS};
use crate::entropy::Dtype;

/// The type and size of the rows that will be pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceShape {
    pub(super) dtype: Dtype,
    pub(super) vocab: usize,
    rows: usize,
}

/// The valid temperatures. SGLang treats smaller ones as greedy sampling, and their inverse overflows in 32 bits. With greater ones every
/// row is uniform, and a device would count masked logits.
pub(crate) const TEMPERATURES: std::ops::RangeInclusive<f32> = 1e-6..=1e6;

/// The values that belong to each row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SliceColumns {
    /// One per row, one for all, or none, which means 1. From 1e-6 to 1e6.
    pub temperature: Vec<f32>,
    /// The sampled token of each row, negative if unknown; empty if no row has one.
    pub chosen: Vec<i64>,
}

/// Why a slice is rejected; the message is for its sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSlice {
    /// Its shape or values are invalid.
    #[error("{0}")]
    Shape(String),
    /// It needs more slots than exist.
    #[error("{0}")]
    Room(String),
}

impl SliceShape {
    /// # Errors
    /// [`InvalidSlice`] if there are more than `most` rows, or they are too wide.
    pub fn try_new(dtype: Dtype, rows: usize, vocab: usize, most: usize) -> Result<Self, InvalidSlice> {
        let wrong = |text: String| Err(InvalidSlice::Shape(text));
        if vocab == 0 || vocab > MAX_VOCAB {
            return wrong(format!("a row has 1 to {MAX_VOCAB} logits, not {vocab}"));
        }
        if rows > most {
            return wrong(format!("a slice has at most {most} rows, not {rows}"));
        }
        let rows = Self { dtype, vocab, rows };
        if rows.rows.checked_mul(rows.row_bytes()).is_none() {
            return wrong(format!("{} rows of {vocab} logits do not fit in memory", rows.rows));
        }
        Ok(rows)
    }

    /// The number of rows.
    #[must_use]
    pub fn count(self) -> usize {
        self.rows
    }

    /// Bytes of all rows.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.rows * self.row_bytes()
    }

    pub(super) fn row_bytes(self) -> usize {
        self.vocab * self.dtype.bytes()
    }

    /// Bytes of the whole rows that fit in a slot.
    pub(crate) fn slot_bytes(self) -> usize {
        (SLOT_BYTES / self.row_bytes()).min(SLOT_ROWS) * self.row_bytes()
    }

    /// The number of slots that all rows need.
    pub(crate) fn slots(self) -> usize {
        self.bytes().div_ceil(self.slot_bytes())
    }
}

impl SliceColumns {
    /// Checks that the values fit `rows`.
    ///
    /// # Errors
    /// [`InvalidSlice`] if a count or a value is wrong.
    pub fn check(&self, rows: SliceShape) -> Result<(), InvalidSlice> {
        let wrong = |text: String| Err(InvalidSlice::Shape(text));
        let count = self.temperature.len();
        if count > 1 && count != rows.rows {
            return wrong(format!("temperature has {count} values for {} rows: one a row, or one for all", rows.rows));
        }
        if let Some(at) = self.temperature.iter().position(|value| !TEMPERATURES.contains(value)) {
            return wrong(format!("temperature[{at}] is {}, not from 1e-6 to 1e6", self.temperature[at]));
        }
        if !self.chosen.is_empty() && self.chosen.len() != rows.rows {
            return wrong(format!("token_ids has {} values for {} rows: one a row", self.chosen.len(), rows.rows));
        }
        let outside = |id: &i64| *id >= 0 && usize::try_from(*id).map_or(true, |id| id >= rows.vocab);
        if let Some(at) = self.chosen.iter().position(outside) {
            return wrong(format!("token_ids[{at}] is {}: the rows have {} logits", self.chosen[at], rows.vocab));
        }
        Ok(())
    }

    /// The values of rows `from..from + count`.
    pub(super) fn part(&self, from: usize, count: usize) -> (Vec<f32>, Vec<i64>) {
        let temperature =
            if self.temperature.len() > 1 { &self.temperature[from..from + count] } else { &self.temperature };
        let chosen = if self.chosen.is_empty() { &[] } else { &self.chosen[from..from + count] };
        (temperature.to_vec(), chosen.to_vec())
    }
}
