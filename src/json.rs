//! A JSON object whose untouched members keep their exact bytes.
//!
//! Nothing but [`Value`] builds a tree. [`Cursor`] walks the text once, [`Object`] remembers where the members of one level lie, and
//! [`Splice`] cuts and inserts at those places, so that big integers, float spellings, key order and repeated keys reach the other
//! side as they were written. The grammar is that of Python's `json`, which is JSON plus `NaN`, `Infinity` and `-Infinity`.

mod cursor;
mod ids;
mod object;
pub(crate) mod python;
mod splice;
mod text;
mod value;

pub use cursor::Cursor;
pub use ids::write_ids;
pub use object::{Edit, Member, Object};
pub use splice::Splice;
pub use text::Text;
pub use value::Value;

/// Nesting beyond this many levels is refused; Python's own reader ends at about a thousand.
pub const MAX_DEPTH: usize = 128;

/// The text is not JSON at this byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not JSON at byte {at}")]
pub struct Malformed {
    /// Offset of the first invalid byte.
    pub at: usize,
    /// The text is fine so far but nests deeper than [`MAX_DEPTH`].
    pub too_deep: bool,
}

impl Malformed {
    /// Something that is not JSON at `at`.
    #[must_use]
    pub fn new(at: usize) -> Self {
        Self { at, too_deep: false }
    }
}
