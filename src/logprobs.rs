//! Ragged rows of top-k logprobs: one row a token, one value a reported alternative.
//!
//! Values and row ends live in two flat vectors, so a batch of any shape is two allocations that
//! survive [`Rows::clear`], and a kernel may walk all values of a batch as one slice.

use std::fmt;

/// Rows of logprobs (nats), each as long as the server reported; an empty row is a missing one.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Rows {
    values: Vec<f32>,
    /// `ends[i]` is one past the last value of row `i`; never decreasing, never above `values.len()`.
    ends: Vec<usize>,
}

/// Values that do not split into whole rows of `width`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotWholeRows {
    /// How many values were offered.
    pub values: usize,
    /// The row width asked for.
    pub width: usize,
}

impl Rows {
    /// No rows; allocates nothing.
    pub fn new() -> Rows {
        Rows::default()
    }

    /// Forgets all rows and keeps the memory for the next batch.
    pub fn clear(&mut self) {
        self.values.clear();
        self.ends.clear();
    }

    /// Makes room for `values` more values in `rows` more rows.
    pub fn reserve(&mut self, values: usize, rows: usize) {
        self.values.reserve(values);
        self.ends.reserve(rows);
    }

    /// Adds one logprob to the row that is still open.
    #[inline]
    pub fn push(&mut self, logprob: f32) {
        self.values.push(logprob);
    }

    /// Adds many logprobs to the row that is still open.
    #[inline]
    pub fn extend_open(&mut self, logprobs: &[f32]) {
        self.values.extend_from_slice(logprobs);
    }

    /// Closes the open row; with nothing pushed since the last close, that is a missing row.
    #[inline]
    pub fn end_row(&mut self) {
        self.ends.push(self.values.len());
    }

    /// Drops what was pushed since the last close, for a reader that met an error inside a row.
    pub fn discard_open(&mut self) {
        self.values.truncate(self.closed());
    }

    /// Adds `logprobs` as one whole row.
    pub fn push_row(&mut self, logprobs: &[f32]) {
        self.extend_open(logprobs);
        self.end_row();
    }

    /// Adds a missing row (a `null` in the response).
    pub fn push_missing(&mut self) {
        self.end_row();
    }

    /// Adds whole rows of `width` values each; the row before them must be closed.
    ///
    /// # Errors
    ///
    /// [`NotWholeRows`], and nothing is added, when the values do not divide into such rows.
    pub fn extend_uniform(
        &mut self,
        logprobs: impl IntoIterator<Item = f32>,
        width: usize,
    ) -> Result<(), NotWholeRows> {
        debug_assert_eq!(self.closed(), self.values.len(), "a row is still open");
        let before = self.values.len();
        self.values.extend(logprobs);
        let added = self.values.len() - before;
        if added == 0 {
            return Ok(());
        }
        if width == 0 || !added.is_multiple_of(width) {
            self.values.truncate(before);
            return Err(NotWholeRows { values: added, width });
        }
        self.ends.extend((1..=added / width).map(|row| before + row * width));
        Ok(())
    }

    /// Adds `rows` rows of `width` zeros and hands them out, for a decoder that writes in place.
    pub fn extend_zeroed(&mut self, rows: usize, width: usize) -> &mut [f32] {
        debug_assert_eq!(self.closed(), self.values.len(), "a row is still open");
        let before = self.values.len();
        self.values.resize(before + rows * width, 0.0);
        self.ends.extend((1..=rows).map(|row| before + row * width));
        &mut self.values[before..]
    }

    /// Makes the rows `count` ones from row `from` on; empty ones where there is no such row, or where `from` is not known.
    /// Surplus rows behind them may stay.
    pub fn align(&mut self, from: Option<usize>, count: usize) {
        if from == Some(0) && self.len() >= count {
            return; // as it nearly always is
        }
        let mut aligned = Self::new();
        for at in 0..count {
            let row = from.map(|from| from + at).filter(|row| *row < self.len());
            aligned.push_row(row.map_or(&[], |row| self.row(row)));
        }
        *self = aligned;
    }

    /// The number of closed rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether no row was closed.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The values of row `index`; empty when the row is missing.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`Rows::len`].
    pub fn row(&self, index: usize) -> &[f32] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.values[start..self.ends[index]]
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = &[f32]> {
        (0..self.len()).map(|index| self.row(index))
    }

    /// The values of all closed rows, end to end.
    pub fn values(&self) -> &[f32] {
        &self.values[..self.closed()]
    }

    /// One past the last value of each row, as an index into [`Rows::values`].
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    fn closed(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }
}

impl fmt::Display for NotWholeRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values do not make whole rows of {}", self.values, self.width)
    }
}

impl std::error::Error for NotWholeRows {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_edges() {
        let mut rows = Rows::new();
        assert!(rows.is_empty() && rows.values().is_empty(), "new rows hold nothing");
        rows.push_missing();
        rows.push_row(&[-0.1, -2.5]);
        rows.push(-1.0);
        rows.extend_open(&[-2.0, -3.0]);
        rows.end_row();
        rows.push_missing();
        let seen: Vec<&[f32]> = rows.iter().collect();
        assert_eq!(seen, [&[][..], &[-0.1, -2.5], &[-1.0, -2.0, -3.0], &[]]);
        rows.push(-9.0);
        assert_eq!(rows.values().len(), 5, "an open row is not part of the batch yet");
        rows.discard_open();
        rows.push_row(&[-7.0]);
        assert_eq!(rows.row(4), [-7.0], "a discarded value must not leak into the next row");
        rows.clear();
        assert_eq!((rows.len(), rows.values().len()), (0, 0));
    }

    #[test]
    fn uniform_rows_are_whole_or_refused() {
        let mut rows = Rows::new();
        rows.push_row(&[-1.0]);
        rows.extend_uniform([-1.0, -2.0, -3.0, -4.0], 2).unwrap();
        assert_eq!(rows.row(2), [-3.0, -4.0]);
        let refused = rows.extend_uniform([-1.0; 5], 2).unwrap_err();
        assert_eq!(refused.to_string(), "5 values do not make whole rows of 2");
        assert!(rows.extend_uniform([-1.0], 0).is_err(), "no row is 0 wide");
        assert!(rows.extend_uniform([], 0).is_ok(), "nothing is whole at any width");
        assert_eq!(rows.values().len(), 5, "a refused batch must leave no trace");
        rows.extend_zeroed(2, 3)[5] = -8.0;
        assert_eq!(rows.row(4), [0.0, 0.0, -8.0]);
    }
}
