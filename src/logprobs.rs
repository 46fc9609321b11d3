// SPDX-License-Identifier: Apache-2.0
//! Ragged rows of top-k logprobs: one row per token, one value per reported alternative.
//!
//! Values and row ends are in two flat vectors, so a batch needs two allocations, which [`Rows::clear`] keeps. A kernel can read all values
//! of a batch as one slice. The ids of the alternatives are kept only on request.

/// Rows of logprobs in nats, each as long as the engine reported. An empty row is a missing one.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Rows {
    values: Vec<f32>,
    /// The token ids of `values`; empty unless they are kept.
    ids: Vec<u32>,
    keeps_ids: bool,
    /// `ends[i]` is one past the last value of row `i`; never decreasing, at most `values.len()`.
    ends: Vec<usize>,
}

impl Rows {
    /// Creates an empty batch. Does not allocate.
    pub fn new() -> Rows {
        Rows::default()
    }

    /// The number of logprobs for which there is memory.
    pub fn capacity(&self) -> usize {
        self.values.capacity()
    }

    /// Sets whether a decoder adds the token ids of the logprobs. Only for an empty batch.
    pub fn keep_ids(&mut self, keeps_ids: bool) {
        debug_assert!(self.values.is_empty(), "earlier values would have no ids");
        self.keeps_ids = keeps_ids;
    }

    /// Whether a decoder adds the token ids of the logprobs.
    pub fn keeps_ids(&self) -> bool {
        self.keeps_ids
    }

    /// Removes all rows and keeps the memory for the next batch.
    pub fn clear(&mut self) {
        self.values.clear();
        self.ids.clear();
        self.ends.clear();
    }

    /// Reserves memory for `values` more values in `rows` more rows.
    pub fn reserve(&mut self, values: usize, rows: usize) {
        self.values.reserve(values);
        self.ends.reserve(rows);
    }

    /// Adds one logprob to the open row.
    #[inline]
    pub fn push(&mut self, logprob: f32) {
        self.values.push(logprob);
    }

    /// Adds one logprob and its token id to the open row.
    #[inline]
    pub fn push_with_id(&mut self, logprob: f32, id: u32) {
        self.values.push(logprob);
        self.ids.push(id);
    }

    /// Adds token ids, for a decoder that adds them apart from their logprobs.
    pub fn extend_ids(&mut self, ids: impl IntoIterator<Item = u32>) {
        self.ids.extend(ids);
    }

    /// Adds logprobs to the open row.
    #[inline]
    pub fn extend_open(&mut self, logprobs: &[f32]) {
        self.values.extend_from_slice(logprobs);
    }

    /// Closes the open row. If it has no values, it is a missing row.
    #[inline]
    pub fn end_row(&mut self) {
        self.ends.push(self.values.len());
    }

    /// Adds `logprobs` as one row.
    pub fn push_row(&mut self, logprobs: &[f32]) {
        self.extend_open(logprobs);
        self.end_row();
    }

    /// Adds a missing row (a `null` in the response).
    pub fn push_missing(&mut self) {
        self.end_row();
    }

    /// Adds `rows` rows of `width` zeros and returns them, for a decoder that writes in place.
    pub fn extend_zeroed(&mut self, rows: usize, width: usize) -> &mut [f32] {
        debug_assert_eq!(self.closed(), self.values.len(), "a row is still open");
        let before = self.values.len();
        self.values.resize(before + rows * width, 0.0);
        self.ends.extend((1..=rows).map(|row| before + row * width));
        &mut self.values[before..]
    }

    /// Moves the `count` rows from row `from` on to the front. Rows that do not exist become empty. All become empty if `from` is
    /// unknown. More rows may follow them.
    pub fn align(&mut self, from: Option<usize>, count: usize) {
        if from == Some(0) && self.len() >= count {
            return; // as it nearly always is
        }
        let mut aligned = Self { keeps_ids: self.keeps_ids, ..Self::new() };
        for at in 0..count {
            let row = from.map(|from| from + at).filter(|row| *row < self.len());
            aligned.extend_ids(row.map_or(&[][..], |row| self.ids(row)).iter().copied());
            aligned.push_row(row.map_or(&[], |row| self.row(row)));
        }
        *self = aligned;
    }

    /// The number of closed rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no closed row.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The values of row `index`, empty if the row is missing.
    ///
    /// # Panics
    ///
    /// If `index` is not below [`Rows::len`].
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[self.range(index)]
    }

    /// The token ids of row `index`; empty if they are not kept, or not those of its logprobs.
    ///
    /// # Panics
    ///
    /// If `index` is not below [`Rows::len`].
    pub fn ids(&self, index: usize) -> &[u32] {
        self.ids.get(self.range(index)).unwrap_or_default()
    }

    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        start..self.ends[index]
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = &[f32]> {
        (0..self.len()).map(|index| self.row(index))
    }

    /// The values of all closed rows, concatenated.
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
        rows.clear();
        assert_eq!((rows.len(), rows.values().len()), (0, 0));
    }

    #[test]
    fn ids_move_with_their_rows() {
        let mut rows = Rows::new();
        rows.keep_ids(true);
        for row in [&[7][..], &[8, 9], &[]] {
            row.iter().for_each(|id| rows.push_with_id(-(*id as f32), *id));
            rows.end_row();
        }
        rows.align(Some(1), 3);
        assert_eq!((rows.ids(0), rows.row(0)), (&[8, 9][..], &[-8.0, -9.0][..]));
        assert_eq!((rows.ids(1), rows.ids(2), rows.len()), (&[][..], &[][..], 3));
        rows.clear();
        assert!(rows.keeps_ids(), "for the next batch");
        rows.push_row(&[-1.0]);
        assert_eq!(rows.ids(0), [] as [u32; 0], "a decoder of logprobs alone");
    }

    #[test]
    fn zeroed_rows_are_written_in_place() {
        let mut rows = Rows::new();
        rows.push_row(&[-1.0]);
        rows.extend_zeroed(2, 3)[5] = -8.0;
        assert_eq!((rows.row(1), rows.row(2)), (&[0.0; 3][..], &[0.0, 0.0, -8.0][..]));
    }
}
