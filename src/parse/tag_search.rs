//! Searches an opening tag with a name, such as `<function=NAME>`.

use super::buffer::MarkerSearch;

/// A search in a text that grows at its end. A tag without a name is text.
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

#[cfg(test)]
mod tests {
    use super::*;

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
