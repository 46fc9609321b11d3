// SPDX-License-Identifier: Apache-2.0
//! JSON parsing and editing that keeps the exact bytes of unchanged members.
//!
//! Only [`Value`] builds a tree. [`Cursor`] reads the text once, [`Object`] stores the positions of the members of one level, and
//! [`Splice`] cuts and inserts at these positions, so that big integers, the spelling of floats, the order of keys and repeated keys are
//! forwarded unchanged. The grammar is that of Python's `json`, which is JSON plus `NaN`, `Infinity` and `-Infinity`.

mod cursor;
mod decode;
pub(crate) mod digits;
mod dumps;
mod ids;
mod member_scan;
mod names;
mod object;
mod pointer;
pub(crate) mod python;
mod splice;
mod text;
mod value;

pub use cursor::{Cursor, elements};
pub use decode::{DecodeError, decode};
pub(crate) use dumps::{DumpStyle, dumps};
pub use ids::write_ids;
pub(crate) use member_scan::MemberScan;
pub(crate) use names::Names;
pub use object::{Edit, Member, MemberWriter, Object, for_each_member};
pub use pointer::{Resolver, pointer};
pub(crate) use pointer::{decode_query_bytes, decode_query_value, percent_decode, percent_decode_bytes};
pub use splice::Splice;
pub use text::Text;
pub use value::Value;

/// The maximum nesting depth in levels; deeper text is rejected. Python's own parser fails at about 1,000 levels.
pub const MAX_DEPTH: usize = 128;

/// Error: the text is not valid JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not JSON at byte {at}")]
pub struct Malformed {
    /// The offset of the first invalid byte.
    pub at: usize,
    /// The text is valid up to `at`, but nests deeper than [`MAX_DEPTH`] there.
    pub too_deep: bool,
}

impl Malformed {
    /// An error at the byte `at`.
    #[must_use]
    pub fn new(at: usize) -> Self {
        Self { at, too_deep: false }
    }
}
