// SPDX-License-Identifier: Apache-2.0
//! Buffers text that is not parsed yet, and searches markers and tags in it.

use memchr::memmem;

/// A queue of text: pieces are added at the end, and parsed text is removed from the start.
#[derive(Debug, Clone, Default)]
pub(super) struct Buffer {
    text: String,
    /// The number of bytes of `text` that are removed.
    skipped: usize,
}

impl Buffer {
    /// Adds a piece at the end.
    pub(super) fn push(&mut self, piece: &str) {
        // removed once per piece and not in `skip`, because many steps in a long piece would each move the rest of the piece
        self.text.drain(..std::mem::take(&mut self.skipped));
        self.text.push_str(piece);
    }

    /// The buffered text.
    pub(super) fn rest(&self) -> &str {
        &self.text[self.skipped..]
    }

    /// Removes the first `length` bytes.
    pub(super) fn skip(&mut self, length: usize) {
        self.skipped += length;
    }
}

/// Searches a marker in a text that grows at its end and shrinks at its start. No byte is searched twice.
#[derive(Debug, Clone)]
pub(super) struct MarkerSearch {
    pub(super) marker: &'static str,
    /// The marker does not begin before this byte.
    searched: usize,
    found: bool,
}

impl MarkerSearch {
    /// A search that begins at byte `from` of the text.
    pub(super) fn new(marker: &'static str, from: usize) -> Self {
        Self { marker, searched: from, found: false }
    }

    /// Continues the search. Returns the number of bytes before the marker, or before a possible beginning of it at the end of `text`.
    pub(super) fn read(&mut self, text: &str) -> usize {
        if !self.found {
            let (length, found) = length_before(&text[self.searched..], self.marker);
            self.searched += length;
            self.found = found;
        }
        self.searched
    }

    /// The position of the marker, if the text that was read contains it.
    pub(super) fn found(&self) -> Option<usize> {
        self.found.then_some(self.searched)
    }

    /// Ignores markers before byte `from` of the text.
    pub(super) fn skip_to(&mut self, from: usize) {
        if self.searched < from {
            *self = Self::new(self.marker, from);
        }
    }

    /// Records that the first `length` bytes, which are before the marker, are removed from the text.
    pub(super) fn skip(&mut self, length: usize) {
        self.searched -= length;
    }
}

/// Searches an opening tag with a name, such as `<function=NAME>`, in a text that grows at its end. A tag without a name is text.
#[derive(Debug, Clone)]
pub(super) struct TagSearch {
    marker: MarkerSearch,
    /// The name has no end before this byte.
    searched: usize,
}

impl TagSearch {
    /// A search for the first tag that begins with `marker`, from byte `from` of the text on.
    pub(super) fn new(marker: &'static str, from: usize) -> Self {
        Self { marker: MarkerSearch::new(marker, from), searched: 0 }
    }

    /// Continues in `text`. Returns the name and the length of the text up to the end of the tag, once the tag is complete.
    pub(super) fn read<'a>(&mut self, text: &'a str) -> Option<(&'a str, usize)> {
        loop {
            self.marker.read(text);
            let name = self.marker.found()? + self.marker.marker.len();
            let from = self.searched.max(name);
            let Some(length) = memchr::memchr(b'>', &text.as_bytes()[from..]) else {
                self.searched = text.len();
                return None;
            };
            let end = from + length;
            if end > name {
                return Some((&text[name..end], end + 1));
            }
            *self = Self::new(self.marker.marker, end + 1);
        }
    }
}

/// The number of bytes of `text` before `marker`, or before a possible beginning of `marker` at the end of `text`; and whether `text`
/// contains `marker`.
pub(super) fn length_before(text: &str, marker: &str) -> (usize, bool) {
    match find(text, marker) {
        Some(at) => (at, true),
        None => (text.len() - overlap(text, marker), false),
    }
}

/// The position of `marker` in `text`. An empty marker is never found.
pub(super) fn find(text: &str, marker: &str) -> Option<usize> {
    if marker.is_empty() { None } else { memmem::find(text.as_bytes(), marker.as_bytes()) }
}

/// The length of the longest beginning of `marker` at the end of `text`, in bytes.
pub(super) fn overlap(text: &str, marker: &str) -> usize {
    let (text, marker) = (text.as_bytes(), marker.as_bytes());
    let longest = marker.len().saturating_sub(1).min(text.len());
    // a prefix that ends within a character never matches, because the text has whole characters
    (1..=longest).rev().find(|length| text.ends_with(&marker[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_search_continues_after_text_was_added_and_removed() {
        let mut search = MarkerSearch::new("</a>", 2);
        assert_eq!(search.read("</a>b</"), 5);
        search.skip(4);
        assert_eq!((search.read("b</x</a"), search.found()), (4, None));
        assert_eq!((search.read("b</x</a></a>"), search.found()), (4, Some(4)));
        search.skip(1);
        assert_eq!((search.read("</x</a></a>"), search.found()), (3, Some(3)));
    }

    #[test]
    fn length_before_stops_at_a_possible_marker() {
        assert_eq!(length_before("ab<think>c", "<think>"), (2, true));
        assert_eq!(length_before("ab<thin", "<think>"), (2, false));
        assert_eq!(length_before("a<<", "<think>"), (2, false));
        assert_eq!(length_before("abab", "ababc"), (0, false));
        assert_eq!(length_before("xaba", "abac"), (1, false));
        assert_eq!(length_before("a", ""), (1, false));
        assert_eq!(length_before("<｜", "<｜tool"), (0, false));
        assert_eq!(length_before("", "<"), (0, false));
    }

    #[test]
    fn first_tag_with_a_name_is_found_in_a_growing_text() {
        let text = "<a=><a=\n<a=b>c>";
        let mut search = TagSearch::new("<a=", 0);
        for length in 0..13 {
            assert_eq!(search.read(&text[..length]), None, "{length}");
        }
        assert_eq!(search.read(text), Some(("\n<a=b", 13)));
    }
}
