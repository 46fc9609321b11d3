// SPDX-License-Identifier: Apache-2.0
//! Python values that are parsed from the text of a call, and written as by `json.dumps`.

use std::collections::HashMap;

use super::lookalikes::without_marks;
use crate::json::{Text, python};

/// A Python value. Numbers and strings are stored as `json.dumps` writes them.
#[derive(Debug, Clone)]
pub(super) enum PythonValue {
    Null,
    Bool(bool),
    Number(String),
    /// A string, escaped, without its quotes.
    Text(String),
    List(Vec<PythonValue>),
    Dict(Dict),
}

/// A dict in the order of insertion.
#[derive(Debug, Clone, Default)]
pub(super) struct Dict {
    members: Vec<(String, PythonValue)>,
    /// By key: the index of its last value in `members`.
    indices: HashMap<String, usize>,
}

impl Dict {
    /// Sets the value of a key, which is escaped as by `json.dumps`, without quotes. The last value counts.
    pub(super) fn set(&mut self, key: String, value: PythonValue) {
        if let Some(index) = self.indices.get(&key) {
            self.members[*index].1 = value;
        } else {
            self.indices.insert(key.clone(), self.members.len());
            self.members.push((key, value));
        }
    }

    /// Adds a member, also if the key exists. The last value counts. A JSON text is written with its repeated keys, because the first of
    /// them may have been emitted before the last one arrives. Parsers read both texts as the same dict.
    pub(super) fn push(&mut self, key: String, value: PythonValue) {
        self.indices.insert(key.clone(), self.members.len());
        self.members.push((key, value));
    }

    /// Whether a key exists. The key is escaped as for [`Dict::set`].
    pub(super) fn has(&self, key: &str) -> bool {
        self.indices.contains_key(key)
    }

    /// The value of a key. The key is escaped as for [`Dict::set`].
    pub(super) fn get(&self, key: &str) -> Option<&PythonValue> {
        self.indices.get(key).map(|index| &self.members[*index].1)
    }
}

impl PythonValue {
    /// A string.
    pub(super) fn text(text: &str) -> Self {
        Self::Text(escape(text))
    }

    /// Whether the value is a dict.
    pub(super) fn is_dict(&self) -> bool {
        matches!(self, Self::Dict(_))
    }

    /// The string, if the value is one. Lone surrogates become U+FFFD.
    pub(super) fn as_text(&self) -> Option<String> {
        let Self::Text(escaped) = self else { return None };
        let text = Text { raw: escaped.as_bytes(), escaped: escaped.contains('\\') };
        Some(text.decode().into_owned())
    }

    /// Whether Python counts the value as true: it is not empty and not zero.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Number(number) => !matches!(number.trim_start_matches('-'), "0" | "0.0"),
            Self::Text(escaped) => !escaped.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Dict(dict) => !dict.members.is_empty(),
        }
    }

    /// Whether all numbers in the value are finite.
    pub(super) fn is_finite(&self) -> bool {
        match self {
            Self::Number(number) => !number.ends_with(['N', 'y']),
            Self::List(items) => items.iter().all(Self::is_finite),
            Self::Dict(dict) => dict.members.iter().all(|(_, value)| value.is_finite()),
            Self::Null | Self::Bool(_) | Self::Text(_) => true,
        }
    }

    /// The text that `json.dumps` writes.
    pub(super) fn dumps(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(number) => out.push_str(number),
            Self::Text(escaped) => quote(escaped, out),
            Self::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { ", " });
                    item.write(out);
                }
                out.push(']');
            }
            Self::Dict(dict) => {
                out.push('{');
                for (at, (key, value)) in dict.members.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { ", " });
                    quote(key, out);
                    out.push_str(": ");
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// Appends an escaped string in quotes.
fn quote(escaped: &str, out: &mut String) {
    out.push('"');
    out.push_str(escaped);
    out.push('"');
}

/// Escapes `text` as `json.dumps` does, without quotes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_escaped(text, &mut out);
    out
}

/// Appends `text`, escaped as by `json.dumps`, without quotes.
pub(super) fn push_escaped(text: &str, out: &mut String) {
    python::push_escaped(out, &without_marks(text), true);
}

/// Appends a character, escaped as by `json.dumps`.
pub(super) fn push_escaped_char(c: char, out: &mut String) {
    push_escaped(c.encode_utf8(&mut [0; 4]), out);
}
