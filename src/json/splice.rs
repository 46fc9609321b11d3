// SPDX-License-Identifier: Apache-2.0
//! Cuts, insertions and replacements in a byte string, applied in one pass.

use std::ops::Range;

use smallvec::SmallVec;

/// Changes to a text, in any order. They must not overlap, except for cuts inside cuts.
#[derive(Debug, Clone, Default)]
pub struct Splice {
    // most texts have one or two
    changes: SmallVec<[(Range<usize>, Vec<u8>); 2]>,
}

impl Splice {
    /// Reserves memory for `changes` more changes.
    pub fn reserve(&mut self, changes: usize) {
        self.changes.reserve(changes);
    }

    /// Removes `range`.
    pub fn cut(&mut self, range: Range<usize>) {
        self.changes.push((range, Vec::new()));
    }

    /// Inserts `bytes` before the byte at `at`.
    pub fn insert(&mut self, at: usize, bytes: Vec<u8>) {
        self.changes.push((at..at, bytes));
    }

    /// Replaces `range` with `bytes`.
    pub fn replace(&mut self, range: Range<usize>, bytes: Vec<u8>) {
        self.changes.push((range, bytes));
    }

    /// Adds the changes of another splice.
    pub fn append(&mut self, mut other: Self) {
        self.changes.append(&mut other.changes);
    }

    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changed text.
    #[must_use]
    pub fn apply(self, text: &[u8]) -> Vec<u8> {
        self.apply_range(text, 0..text.len())
    }

    /// The text of `range` with those changes applied that lie inside `range`.
    #[must_use]
    pub fn within(&self, text: &[u8], range: Range<usize>) -> Vec<u8> {
        let inside = |(change, _): &&(Range<usize>, Vec<u8>)| range.start <= change.start && change.end <= range.end;
        Self { changes: self.changes.iter().filter(inside).cloned().collect() }.apply_range(text, range)
    }

    /// The text of `range` with all changes applied. All changes must lie inside `range`.
    #[must_use]
    pub fn apply_range(mut self, text: &[u8], range: Range<usize>) -> Vec<u8> {
        self.changes.sort_by_key(|(range, _)| (range.start, range.end));
        let added: usize = self.changes.iter().map(|(_, bytes)| bytes.len()).sum();
        let removed: usize = self.changes.iter().map(|(range, _)| range.len()).sum();
        let mut out = Vec::with_capacity((range.len() + added).saturating_sub(removed));
        let mut at = range.start;
        for (range, bytes) in self.changes {
            if range.start > at {
                out.extend_from_slice(&text[at..range.start]);
            }
            out.extend_from_slice(&bytes);
            at = at.max(range.end);
        }
        out.extend_from_slice(&text[at..range.end]);
        out
    }
}
