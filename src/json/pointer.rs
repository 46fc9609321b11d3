// SPDX-License-Identifier: Apache-2.0
//! Finds the parts of a JSON schema that its references point to.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ptr;

use super::Value;

/// The JSON pointer of a reference into its own schema; `None` for the URL of another one and for an anchor.
#[must_use]
pub fn pointer(reference: &str) -> Option<Cow<'_, str>> {
    let pointer = percent_decode(reference.strip_prefix('#')?);
    (pointer.is_empty() || pointer.starts_with('/')).then_some(pointer)
}

/// Finds values by their JSON pointers.
#[derive(Debug, Default)]
pub struct Resolver<'a> {
    /// The members of each object on the way, because a schema may have many definitions.
    members: HashMap<*const Value, HashMap<&'a str, &'a Value>>,
}

impl<'a> Resolver<'a> {
    /// The value at a JSON pointer. A value has one pointer only.
    pub fn resolve(&mut self, root: &'a Value, pointer: &str) -> Option<&'a Value> {
        pointer.split('/').skip(1).try_fold(root, |value, token| match value {
            Value::Object(members) => {
                let index = || members.iter().map(|(name, value)| (name.as_str(), value)).collect();
                let members = self.members.entry(ptr::from_ref(value)).or_insert_with(index);
                members.get(&*unescape(token)?).copied()
            }
            value => {
                let index: usize = token.parse().ok()?;
                value.as_array()?.get(index).filter(|_| index.to_string() == token)
            }
        })
    }
}

/// A part of a JSON pointer, without its escapes.
fn unescape(token: &str) -> Option<String> {
    let mut parts = token.split('~');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let letter = if part.starts_with('0') { '~' } else { '/' };
        name.push(letter);
        name.push_str(part.strip_prefix(['0', '1'])?);
    }
    Some(name)
}

/// Percent-decodes a path or a part of one, or the fragment of a URL. Bytes that are not UTF-8 become U+FFFD.
#[must_use]
pub(crate) fn percent_decode(text: &str) -> Cow<'_, str> {
    match percent_decode_bytes(text) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Decodes a value of a query, in which forms and the URL APIs of languages write a space as `+`. Bytes that are not UTF-8 become U+FFFD.
#[must_use]
pub(crate) fn decode_query_value(text: &str) -> Cow<'_, str> {
    match decode_query_bytes(text) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Decodes a value of a query, which may become other bytes than UTF-8.
#[must_use]
pub(crate) fn decode_query_bytes(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('+') {
        return percent_decode_bytes(text);
    }
    Cow::Owned(percent_decode_bytes(&text.replace('+', " ")).into_owned())
}

/// Percent-decodes a text, which may become other bytes than UTF-8.
#[must_use]
pub(crate) fn percent_decode_bytes(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('%') {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).filter(|hex| byte == b'%' && hex.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = digits.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escape_has_two_hexadecimal_digits() {
        for (text, decoded) in
            [("a%2Fb%7e", "a/b~"), ("%+f%-1% 1", "%+f%-1% 1"), ("%2", "%2"), ("%%41", "%A"), ("%ff", "\u{fffd}")]
        {
            assert_eq!(percent_decode(text), decoded, "{text}");
        }
    }

    #[test]
    fn plus_is_a_space_in_a_query_only() {
        for (text, decoded) in
            [("the+sea", "the sea"), ("1%2B1+%3D", "1+1 ="), ("+", " "), ("a%20b", "a b"), ("ab", "ab")]
        {
            assert_eq!(decode_query_value(text), decoded, "{text}");
        }
        assert_eq!(percent_decode("the+sea"), "the+sea");
    }
}
