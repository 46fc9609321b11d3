//! White space, as Python's `str.strip` and `\s` have it.

/// Whether Python counts `c` as white space: Unicode's, and the four separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `text` without white space at its ends.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `text` without white space in front.
pub(super) fn strip_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// `text` without white space at its back.
pub(super) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}
