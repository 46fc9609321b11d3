//! Text that was received and not passed on yet.

use memchr::memmem;

/// A queue of text: pieces enter at the back, and decided text leaves at the front.
#[derive(Debug, Clone, Default)]
pub(super) struct Buffer {
    text: String,
    at: usize,
}

impl Buffer {
    /// Adds a piece.
    pub(super) fn push(&mut self, piece: &str) {
        // once per piece and not once per step, so that many steps in a long piece do not move its rest each time
        self.text.drain(..std::mem::take(&mut self.at));
        self.text.push_str(piece);
    }

    /// The buffered text.
    pub(super) fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Removes the first `length` bytes.
    pub(super) fn skip(&mut self, length: usize) {
        self.at += length;
    }
}

/// The number of bytes of `text` before `marker`, or before what may be the beginning of it; and whether `text` contains it.
pub(super) fn until(text: &str, marker: &str) -> (usize, bool) {
    match find(text, marker) {
        Some(at) => (at, true),
        None => (text.len() - overlap(text, marker), false),
    }
}

/// The position of `marker` in `text`. An empty marker is never found.
pub(super) fn find(text: &str, marker: &str) -> Option<usize> {
    if marker.is_empty() { None } else { memmem::find(text.as_bytes(), marker.as_bytes()) }
}

/// The number of bytes at the end of `text` that may be the beginning of `marker`.
fn overlap(text: &str, marker: &str) -> usize {
    let (text, marker) = (text.as_bytes(), marker.as_bytes());
    let longest = marker.len().saturating_sub(1).min(text.len());
    // a prefix that ends within a character never matches, because the text has whole characters
    (1..=longest).rev().find(|length| text.ends_with(&marker[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_possible_marker_is_held_back() {
        assert_eq!(until("ab<think>c", "<think>"), (2, true));
        assert_eq!(until("ab<thin", "<think>"), (2, false));
        assert_eq!(until("a<<", "<think>"), (2, false));
        assert_eq!(until("abab", "ababc"), (0, false));
        assert_eq!(until("xaba", "abac"), (1, false));
        assert_eq!(until("a", ""), (1, false));
        assert_eq!(until("<｜", "<｜tool"), (0, false));
        assert_eq!(until("", "<"), (0, false));
    }
}
