// SPDX-License-Identifier: Apache-2.0
//! JSON values as text: in a canonical form for digests, and as Python's `json.dumps` writes them.

use crate::json::{self, DumpStyle, Value};

/// A value in canonical form: its text does not depend on the order of keys or on the notation of numbers.
#[must_use]
pub(super) fn canonical(value: &Value) -> String {
    json::dumps(value, DumpStyle::Canonical)
}

/// A value as Python's `json.dumps` writes it.
#[must_use]
pub fn dumps(value: &Value) -> String {
    json::dumps(value, DumpStyle::Ascii)
}
