// SPDX-License-Identifier: Apache-2.0
//! A JSON tree with the semantics of Python's parser, for conversations and tools. Other JSON is read without a tree.

use std::collections::HashMap;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::{Cursor, MAX_DEPTH, Malformed, for_each_member};

/// A JSON value. Keys keep their order, the last of repeated keys counts, and numbers keep their text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Value {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// The text of a number; also `NaN`, `Infinity` and `-Infinity`.
    Number(Box<str>),
    /// A string, unescaped.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// Parses `bytes`, which must be one value.
    ///
    /// # Errors
    /// When `bytes` is not one JSON value, or nests deeper than [`MAX_DEPTH`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let value = Self::read(&mut cursor)?;
        cursor.end()?;
        Ok(value)
    }

    /// Parses the value at the cursor.
    ///
    /// # Errors
    /// Like [`Value::parse`].
    pub fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Self::at_depth(cursor, 0)
    }

    /// An object with these members, whose names differ.
    #[must_use]
    pub fn object<'n>(members: impl IntoIterator<Item = (&'n str, Self)>) -> Self {
        Self::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn at_depth(cursor: &mut Cursor<'_>, depth: usize) -> Result<Self, Malformed> {
        let first = cursor.peek();
        if depth == MAX_DEPTH && matches!(first, Some(b'{' | b'[')) {
            return Err(Malformed { at: cursor.position(), too_deep: true });
        }
        Ok(match first {
            Some(b'{') => {
                let mut members = Members::default();
                for_each_member(cursor, |key, _, cursor| {
                    members.set(key.decode().into_owned(), Self::at_depth(cursor, depth + 1)?);
                    Ok(())
                })?;
                Self::Object(members.list)
            }
            Some(b'[') => {
                let mut values = Vec::new();
                cursor.elements(|cursor| {
                    values.push(Self::at_depth(cursor, depth + 1)?);
                    Ok(())
                })?;
                Self::Array(values)
            }
            Some(b'"') => Self::String(cursor.string()?.decode().into_owned()),
            Some(b't' | b'f' | b'n') => {
                let span = cursor.skip()?;
                match &cursor.bytes()[span] {
                    b"true" => Self::Bool(true),
                    b"false" => Self::Bool(false),
                    _ => Self::Null,
                }
            }
            _ => Self::Number(cursor.number()?.into()),
        })
    }

    /// The value of the member `name`; `None` if it is missing or null, or if this value is not an object.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(key, _)| key == name).map(|(_, value)| value).filter(|value| **value != Self::Null)
    }

    /// The text of the member `name`; `None` if it is missing or not a string.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// The text; `None` if this value is not a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// The elements; `None` if this value is not an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        if let Self::Array(values) = self { Some(values) } else { None }
    }
}

/// The members of an object during parsing. A small object is searched linearly.
#[derive(Default)]
struct Members {
    list: Vec<(String, Value)>,
    /// By key: the index in `list`. Empty below [`Members::INDEX_THRESHOLD`] members.
    indices: HashMap<String, usize>,
}

impl Members {
    /// The number of members from which on keys are looked up in `indices`.
    const INDEX_THRESHOLD: usize = 16;

    fn set(&mut self, key: String, value: Value) {
        if self.list.len() == Self::INDEX_THRESHOLD {
            self.indices = self.list.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)).collect();
        }
        let index = match self.list.len() < Self::INDEX_THRESHOLD {
            true => self.list.iter().position(|(other, _)| *other == key),
            false => self.indices.get(&key).copied(),
        };
        match index {
            Some(index) => self.list[index].1 = value,
            None => {
                if self.list.len() >= Self::INDEX_THRESHOLD {
                    self.indices.insert(key.clone(), self.list.len());
                }
                self.list.push((key, value));
            }
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Vec<Value>> for Value {
    fn from(values: Vec<Value>) -> Self {
        Self::Array(values)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(text) => number(text, serializer),
            Self::String(text) => serializer.serialize_str(text),
            Self::Array(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                values.iter().try_for_each(|value| list.serialize_element(value))?;
                list.end()
            }
            Self::Object(members) => {
                let mut object = serializer.serialize_map(Some(members.len()))?;
                members.iter().try_for_each(|(key, value)| object.serialize_entry(key, value))?;
                object.end()
            }
        }
    }
}

/// Serializes a number as the narrowest type that fits. Integers beyond 128 bits become doubles.
fn number<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    if !text.contains(['.', 'e', 'E', 'N', 'I']) {
        if let Ok(value) = text.parse::<i64>() {
            return serializer.serialize_i64(value);
        }
        if let Ok(value) = text.parse::<i128>() {
            return serializer.serialize_i128(value);
        }
    }
    let value = match text {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        "-Infinity" => f64::NEG_INFINITY,
        _ => text.parse().unwrap_or(f64::NAN),
    };
    serializer.serialize_f64(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_escapes_and_nan_are_parsed_as_in_python() {
        let value = Value::parse(br#" {"b":1,"a":[true,null,"\u00e9\ud800"],"b":{"x":1e5,"y":NaN}} "#).unwrap();
        assert_eq!(value.get("a").unwrap().as_array().unwrap()[2].as_str(), Some("é\u{fffd}"));
        let Value::Object(members) = &value else { panic!("an object") };
        assert_eq!(members[0].0, "b", "a repeated key keeps its first position");
        assert_eq!(members[0].1.get("x"), Some(&Value::Number("1e5".into())));
        assert_eq!(Value::parse(b"{\"a\":null}").unwrap().get("a"), None);
        for bad in [&b"{"[..], b"[1,]", b"{\"a\"}", b"tru", b"1 2", b""] {
            assert!(Value::parse(bad).is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn nesting_deeper_than_max_depth_is_too_deep() {
        let nested = |levels: usize| [vec![b'['; levels], vec![b']'; levels]].concat();
        assert!(Value::parse(&nested(MAX_DEPTH)).is_ok());
        assert!(Value::parse(&nested(MAX_DEPTH + 1)).unwrap_err().too_deep);
    }

    #[test]
    fn serialized_numbers_keep_their_type() {
        let out = |text: &str| serde_json::to_string(&Value::parse(text.as_bytes()).unwrap()).unwrap();
        for (text, written) in [("-7", "-7"), ("18446744073709551616", "18446744073709551616"), ("1e2", "100.0")] {
            assert_eq!(out(text), written);
        }
    }
}
