//! A Python value that is read from the text of a call and written as by `json.dumps`.

use std::collections::HashMap;

use crate::json::{Text, python};

/// A JSON value. Numbers and strings are kept as `json.dumps` writes them.
#[derive(Debug, Clone)]
pub(super) enum PythonValue {
    Null,
    Bool(bool),
    Number(String),
    /// Without its quotes.
    Text(String),
    List(Vec<PythonValue>),
    Dict(Dict),
}

/// A dict in the order of insertion.
#[derive(Debug, Clone, Default)]
pub(super) struct Dict {
    members: Vec<(String, PythonValue)>,
    places: HashMap<String, usize>,
}

impl Dict {
    /// Sets a key, written as by `json.dumps` without quotes. The last value counts.
    pub(super) fn set(&mut self, key: String, value: PythonValue) {
        if let Some(place) = self.places.get(&key) {
            self.members[*place].1 = value;
        } else {
            self.places.insert(key.clone(), self.members.len());
            self.members.push((key, value));
        }
    }

    /// Whether a key exists. The key is written as for [`Dict::set`].
    pub(super) fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// The value of a key that needs no escapes.
    pub(super) fn get(&self, key: &str) -> Option<&PythonValue> {
        self.places.get(key).map(|place| &self.members[*place].1)
    }
}

impl PythonValue {
    /// A string.
    pub(super) fn text(text: &str) -> Self {
        Self::Text(escaped(text))
    }

    /// The string, if the value is one. Lone surrogates become U+FFFD.
    pub(super) fn as_text(&self) -> Option<String> {
        let Self::Text(escaped) = self else { return None };
        let text = Text { raw: escaped.as_bytes(), escaped: escaped.contains('\\') };
        Some(text.decode().into_owned())
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

fn quote(escaped: &str, out: &mut String) {
    out.push('"');
    out.push_str(escaped);
    out.push('"');
}

/// `text` as `json.dumps` writes it between quotes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    python::escaped(&mut out, text, true);
    out
}

/// Writes a character as it is written between quotes.
pub(super) fn push_char(c: char, out: &mut String) {
    python::escaped(out, c.encode_utf8(&mut [0; 4]), true);
}
