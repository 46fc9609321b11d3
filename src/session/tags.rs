// SPDX-License-Identifier: Apache-2.0
//! The tags of a session: names and values by which trainers find it again, such as the step and the task.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::json::{Cursor, Malformed, for_each_member, percent_decode_bytes};

/// The most tags of a session.
pub const MOST_TAGS: usize = 32;

/// The most bytes of a name.
const LONGEST_NAME: usize = 64;

/// The most bytes of a name and its value together.
const LONGEST_TAG: usize = 256;

/// Bytes of a tag in memory besides its texts.
const TAG_OVERHEAD: usize = 48;

/// Characters of a rejected text that its error repeats.
const SHOWN: usize = 80;

/// The tags of a session, or of a call. Copies share them, and none take no memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tags(Option<Arc<BTreeMap<Box<str>, Box<str>>>>);

/// Why a text is not a list of tags. The message has the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{cause}; a session has at most 32 tags: a name is [A-Za-z0-9_.-]{{1,64}}, a value is text without control characters, and both together \
     have at most 256 bytes"
)]
pub struct InvalidTags {
    cause: String,
}

impl InvalidTags {
    fn new(cause: impl fmt::Display) -> Self {
        Self { cause: cause.to_string() }
    }

    /// The error for a text that is longer than any valid one.
    #[must_use]
    pub fn too_long() -> Self {
        Self::new("the text is too long")
    }
}

impl From<Malformed> for InvalidTags {
    fn from(error: Malformed) -> Self {
        Self::new(error)
    }
}

/// Whether a tag may have this name.
pub(super) fn is_tag_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Collects tags, and checks each.
#[derive(Default)]
struct Collector(BTreeMap<Box<str>, Box<str>>);

impl Collector {
    fn add(&mut self, name: &str, value: &str) -> Result<(), InvalidTags> {
        if !is_tag_name(name) {
            return Err(InvalidTags::new(format_args!("{:?} cannot name a tag", shortened(name))));
        }
        if name.len() + value.len() > LONGEST_TAG {
            return Err(InvalidTags::new(format_args!("the tag {name:?} has {} bytes", name.len() + value.len())));
        }
        if value.chars().any(char::is_control) {
            return Err(InvalidTags::new(format_args!("the value of the tag {name:?} has a control character")));
        }
        self.0.insert(name.into(), value.into());
        if self.0.len() > MOST_TAGS {
            return Err(InvalidTags::new(format_args!("there are more than {MOST_TAGS} tags")));
        }
        Ok(())
    }

    fn finish(self) -> Tags {
        Tags((!self.0.is_empty()).then(|| Arc::new(self.0)))
    }
}

fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

impl Tags {
    /// Parses `step=17,task=gsm8k`. Values are percent-decoded, so a comma is `%2C`. Of repeated names the last counts.
    ///
    /// # Errors
    /// [`InvalidTags`].
    pub fn parse_list(text: &[u8]) -> Result<Self, InvalidTags> {
        let text = std::str::from_utf8(text).map_err(|_| InvalidTags::new("the text is not UTF-8"))?;
        let mut tags = Collector::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(InvalidTags::new(format_args!("{:?} is not NAME=VALUE", shortened(pair))));
            };
            let name = name.trim_end();
            let value = percent_decode_bytes(value.trim_start());
            let value = std::str::from_utf8(&value)
                .map_err(|_| InvalidTags::new(format_args!("the value of {:?} is not UTF-8", shortened(name))))?;
            tags.add(name, value)?;
        }
        Ok(tags.finish())
    }

    /// Parses a JSON object whose values are strings, numbers or booleans; the text of a number is kept. Of repeated names the last counts.
    ///
    /// # Errors
    /// [`InvalidTags`].
    pub fn parse_json(text: &[u8]) -> Result<Self, InvalidTags> {
        if std::str::from_utf8(text).is_err() {
            return Err(InvalidTags::new("the text is not UTF-8"));
        }
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(InvalidTags::new("tags are a JSON object"));
        }
        let (mut tags, mut refused) = (Collector::default(), None);
        let mut cursor = Cursor::new(text);
        for_each_member(&mut cursor, |name, _, cursor| {
            let value = &text[cursor.skip()?];
            let added = Self::json_value(value).and_then(|value| tags.add(&name.decode(), &value));
            if let Err(error) = added {
                refused.get_or_insert(error);
            }
            Ok(())
        })?;
        cursor.end()?;
        refused.map_or_else(|| Ok(tags.finish()), Err)
    }

    /// The text of a value of a tag.
    fn json_value(value: &[u8]) -> Result<Cow<'_, str>, InvalidTags> {
        match value.first() {
            Some(b'"') => Ok(Cursor::new(value).string()?.decode().into_owned().into()),
            Some(b't' | b'f' | b'-' | b'0'..=b'9') if value != b"-Infinity" => Ok(String::from_utf8_lossy(value)),
            _ => {
                let value = String::from_utf8_lossy(value);
                Err(InvalidTags::new(format_args!("{} is not a string, a number or a boolean", shortened(&value))))
            }
        }
    }

    /// Whether it has no tags.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |tags| tags.len())
    }

    /// The value of the tag with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.as_ref()?.get(name).map(|value| &**value)
    }

    /// Names and values, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|tags| tags.iter()).map(|(name, value)| (&**name, &**value))
    }

    /// A JSON object of strings.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::Value::Object(self.iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
    }

    /// Whether these tags and those of `newer` are at most [`MOST_TAGS`] together.
    #[must_use]
    pub fn has_room_for(&self, newer: &Self) -> bool {
        let new = newer.iter().filter(|(name, _)| self.get(name).is_none()).count();
        self.len() + new <= MOST_TAGS
    }

    /// Whether a value of `newer` is missing here, or is another one.
    #[must_use]
    pub fn lacks(&self, newer: &Self) -> bool {
        newer.iter().any(|(name, value)| self.get(name) != Some(value))
    }

    /// These tags with the values of `newer`; `None` if `newer` changes nothing. Names for which there is no room are left out.
    pub(super) fn merged(&self, newer: &Self) -> Option<Self> {
        if !self.lacks(newer) {
            return None;
        }
        let Some(known) = &self.0 else { return Some(newer.clone()) };
        let mut tags = BTreeMap::clone(known);
        for (name, value) in newer.iter() {
            if tags.len() < MOST_TAGS || tags.contains_key(name) {
                tags.insert(name.into(), value.into());
            }
        }
        Some(Self(Some(Arc::new(tags))))
    }

    /// These tags with the values of `newer`.
    ///
    /// # Errors
    /// [`InvalidTags`] if together they are too many.
    pub fn with(self, newer: &Self) -> Result<Self, InvalidTags> {
        match self.has_room_for(newer) {
            true => Ok(self.merged(newer).unwrap_or(self)),
            false => Err(InvalidTags::new(format_args!("there are more than {MOST_TAGS} tags"))),
        }
    }

    /// Those whose names `known` lacks.
    #[must_use]
    pub(super) fn absent_from(&self, known: &Self) -> Self {
        if self.is_empty() || known.is_empty() {
            return self.clone();
        }
        let mut absent = Collector::default();
        let new = self.iter().filter(|(name, _)| known.get(name).is_none());
        absent.0.extend(new.map(|(name, value)| (name.into(), value.into())));
        absent.finish()
    }

    /// The bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len() + TAG_OVERHEAD).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(tags: &Tags) -> Vec<(&str, &str)> {
        tags.iter().collect()
    }

    fn cause(result: Result<Tags, InvalidTags>) -> String {
        let error = result.expect_err("it is invalid").to_string();
        let (cause, rule) = error.split_once("; a session has at most 32 tags: ").expect("the rule follows");
        assert!(rule.ends_with("256 bytes"), "{rule}");
        cause.to_owned()
    }

    #[test]
    fn list_is_trimmed_and_its_values_are_decoded() {
        let parsed = |text: &str| Tags::parse_list(text.as_bytes()).expect("it is valid");
        assert_eq!(pairs(&parsed("task=gsm8k, step = 17,")), [("step", "17"), ("task", "gsm8k")]);
        assert_eq!(pairs(&parsed("a=1%2C2=3%25,b=,a.B_-=\u{e4}")), [("a", "1,2=3%"), ("a.B_-", "\u{e4}"), ("b", "")]);
        assert_eq!(pairs(&parsed("a=1,a=2")), [("a", "2")], "the last counts");
        assert_eq!(parsed(" , "), Tags::default());
    }

    #[test]
    fn invalid_list_is_refused_with_the_rule() {
        let of = |text: &str| cause(Tags::parse_list(text.as_bytes()));
        assert_eq!(of("step"), r#""step" is not NAME=VALUE"#);
        assert_eq!(of("a b=1"), r#""a b" cannot name a tag"#);
        assert_eq!(of("=1"), r#""" cannot name a tag"#);
        assert_eq!(of(&format!("{}=1", "a".repeat(65))), format!("{:?} cannot name a tag", "a".repeat(65)));
        assert_eq!(of("a=%0a"), r#"the value of the tag "a" has a control character"#);
        assert_eq!(of("a=%ff"), r#"the value of "a" is not UTF-8"#);
        assert_eq!(cause(Tags::parse_list(b"a=\xff")), "the text is not UTF-8");
        assert_eq!(of(&format!("abc={}", "x".repeat(254))), r#"the tag "abc" has 257 bytes"#);
        assert!(Tags::parse_list(format!("abc={}", "x".repeat(253)).as_bytes()).is_ok());
        let many = |count: u32| (0..count).map(|at| format!("t{at}=1")).collect::<Vec<_>>().join(",");
        assert_eq!(of(&many(33)), "there are more than 32 tags");
        assert_eq!(Tags::parse_list(many(32).as_bytes()).map(|tags| tags.len()), Ok(32));
    }

    #[test]
    fn json_values_are_text_and_numbers_keep_theirs() {
        let parsed = |text: &str| Tags::parse_json(text.as_bytes()).expect("it is valid");
        let tags = parsed(r#" {"step": 17, "lr": 1.50e-6, "eval": false, "task": "a,\u00e4", "st\u0065p": 18} "#);
        assert_eq!(pairs(&tags), [("eval", "false"), ("lr", "1.50e-6"), ("step", "18"), ("task", "a,\u{e4}")]);
        assert_eq!(parsed("{}"), Tags::default());
        assert_eq!(tags.json().to_string(), r#"{"eval":"false","lr":"1.50e-6","step":"18","task":"a,ä"}"#);
    }

    #[test]
    fn invalid_json_is_refused_with_the_rule() {
        let of = |text: &str| cause(Tags::parse_json(text.as_bytes()));
        assert_eq!(of("[]"), "tags are a JSON object");
        assert_eq!(of("{\"a\":1"), "not JSON at byte 6");
        for value in ["null", "[1]", "{}", "NaN", "-Infinity"] {
            assert_eq!(
                of(&format!("{{\"a\":{value}}}")),
                format!("{value} is not a string, a number or a boolean"),
                "{value}"
            );
        }
        assert_eq!(of(r#"{"a":"\n"}"#), r#"the value of the tag "a" has a control character"#);
        assert_eq!(of(r#"{"":"x"}"#), r#""" cannot name a tag"#);
    }

    #[test]
    fn newer_values_replace_and_others_stay() {
        let tags = |text: &str| Tags::parse_list(text.as_bytes()).expect("it is valid");
        assert_eq!(tags("a=1,b=2").merged(&tags("b=3,c=4")), Some(tags("a=1,b=3,c=4")));
        assert_eq!(tags("a=1,b=2").merged(&tags("b=2")), None);
        assert_eq!(tags("a=1").merged(&Tags::default()), None);
        assert_eq!(Tags::default().merged(&Tags::default()), None);
        assert_eq!(Tags::default().merged(&tags("a=1")), Some(tags("a=1")));
        let full: Vec<String> = (0..MOST_TAGS).map(|at| format!("t{at}=1")).collect();
        let full = tags(&full.join(","));
        assert!(full.has_room_for(&tags("t0=2")) && !full.has_room_for(&tags("t0=2,u=1")));
        let merged = full.merged(&tags("t0=2,u=1")).expect("one value changes");
        assert_eq!((merged.len(), merged.get("t0"), merged.get("u")), (MOST_TAGS, Some("2"), None));
        assert_eq!(tags("a=1,b=2").absent_from(&tags("b=3")), tags("a=1"));
        assert_eq!(tags("a=1").absent_from(&tags("a=2")), Tags::default());
    }
}
