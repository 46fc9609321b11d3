//! Strips white space as Python's `str.strip` does.

use crate::json::python::is_space;

/// `text` without white space at its ends.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `text` without white space at its start.
pub(super) fn strip_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// `text` without white space at its end.
pub(super) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}
