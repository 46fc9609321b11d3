// SPDX-License-Identifier: Apache-2.0
//! A cursor that reads and validates a JSON text.

use std::ops::Range;

use super::digits::{other_than_digits, short_integer};
use super::text::first_bytes;
use super::{MAX_DEPTH, Malformed, Text};

/// A position in a JSON text. Every method validates the bytes that it consumes. No method allocates.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    non_finite: Option<usize>,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::at(bytes, 0)
    }

    /// A cursor at byte `at` of `bytes`.
    #[must_use]
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at, non_finite: None }
    }

    /// The whole text.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The offset of the next byte.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Moves to byte `at`. The caller has validated the text up to there.
    pub fn seek(&mut self, at: usize) {
        self.at = at;
    }

    /// The offset of the first consumed number that is not finite in Python: `NaN`, `Infinity`, or a number outside the range of a double.
    #[must_use]
    pub fn non_finite(&self) -> Option<usize> {
        self.non_finite
    }

    /// Skips white space and returns the next byte without consuming it.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte > b' ' => Some(byte),
            _ => self.peek_after_space(),
        }
    }

    fn peek_after_space(&mut self) -> Option<u8> {
        while let Some(&byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    /// Consumes `byte` if it is next after white space.
    #[inline]
    pub fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Consumes `byte`. Fails if another byte is next.
    #[inline]
    pub fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.take(byte) { Ok(()) } else { Err(self.malformed()) }
    }

    /// An error at the next byte.
    #[must_use]
    pub fn malformed(&self) -> Malformed {
        Malformed::new(self.at)
    }

    /// Consumes white space up to the end of the text. Fails if other bytes follow.
    pub fn end(&mut self) -> Result<(), Malformed> {
        if self.peek().is_none() { Ok(()) } else { Err(self.malformed()) }
    }

    /// Reads a string. Does not validate its escapes, control characters or UTF-8.
    #[inline]
    pub fn string(&mut self) -> Result<Text<'a>, Malformed> {
        self.expect(b'"')?;
        let start = self.at;
        let rest = self.bytes.get(start..).unwrap_or_default();
        if let Some(found) = find_quote_or_backslash(rest)
            && rest[found] == b'"'
        {
            self.at += found + 1;
            return Ok(Text { raw: &rest[..found], escaped: false });
        }
        self.escaped_string(start)
    }

    /// Reads the string that begins at byte `start`, after its quote.
    #[cold]
    fn escaped_string(&mut self, start: usize) -> Result<Text<'a>, Malformed> {
        let mut escaped = false;
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let Some(found) = find_quote_or_backslash(rest) else {
                return Err(Malformed::new(self.bytes.len()));
            };
            self.at += found;
            if self.bytes[self.at] == b'"' {
                let raw = &self.bytes[start..self.at];
                self.at += 1;
                return Ok(Text { raw, escaped });
            }
            escaped = true;
            // the byte after a backslash never ends the string; `Text::is_well_escaped` validates escapes
            self.at += 2;
        }
    }

    /// Consumes a value of any kind and returns its range.
    pub fn skip(&mut self) -> Result<Range<usize>, Malformed> {
        let first = self.peek();
        let start = self.at;
        match first {
            Some(b'{' | b'[') => self.skip_nested()?,
            first => self.skip_scalar(first)?,
        }
        Ok(start..self.at)
    }

    /// Consumes a value that is neither an object nor an array. `first` is the next byte.
    fn skip_scalar(&mut self, first: Option<u8>) -> Result<(), Malformed> {
        match first {
            Some(b'"') => self.string().map(drop),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            Some(b'0'..=b'9') if self.skip_short_integer() => Ok(()),
            Some(_) => self.skip_number().map(drop),
            None => Err(self.malformed()),
        }
    }

    /// Consumes an integer of up to seven digits, the usual number. `false` if the number has another format, or fewer than eight bytes are left.
    fn skip_short_integer(&mut self) -> bool {
        let Some((_, length)) = short_integer(self.bytes, self.at) else { return false };
        self.at += length;
        true
    }

    fn literal(&mut self, literal: &[u8]) -> Result<(), Malformed> {
        if self.bytes[self.at..].starts_with(literal) {
            self.at += literal.len();
            Ok(())
        } else {
            Err(self.malformed())
        }
    }

    /// Consumes an object or array. Iterative, because recursion could exhaust the stack.
    fn skip_nested(&mut self) -> Result<(), Malformed> {
        let mut open = [0_u8; MAX_DEPTH];
        let mut depth = 0;
        loop {
            // at the start of a value
            match self.peek() {
                Some(byte @ (b'{' | b'[')) => {
                    if depth == MAX_DEPTH {
                        return Err(Malformed { at: self.at, too_deep: true });
                    }
                    open[depth] = byte;
                    depth += 1;
                    self.at += 1;
                    let close = if byte == b'{' { b'}' } else { b']' };
                    if !self.take(close) {
                        if byte == b'{' {
                            self.key()?;
                        }
                        continue;
                    }
                    depth -= 1;
                }
                first => self.skip_scalar(first)?,
            }
            // at the end of a value
            loop {
                if depth == 0 {
                    return Ok(());
                }
                let object = open[depth - 1] == b'{';
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        if object {
                            self.key()?;
                        }
                        break;
                    }
                    Some(b'}') if object => {}
                    Some(b']') if !object => {}
                    _ => return Err(self.malformed()),
                }
                self.at += 1;
                depth -= 1;
            }
        }
    }

    /// Consumes the array at the cursor. Calls `each` with the cursor at each element; `each` must consume the element.
    ///
    /// # Errors
    /// When the text at the cursor is not an array, or `each` fails.
    pub fn elements(&mut self, mut each: impl FnMut(&mut Self) -> Result<(), Malformed>) -> Result<(), Malformed> {
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if self.take(b']') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Reads a key and consumes its colon.
    pub fn key(&mut self) -> Result<Text<'a>, Malformed> {
        let key = self.string()?;
        self.expect(b':')?;
        Ok(key)
    }

    /// Reads a number, or Python's `NaN`, `Infinity` or `-Infinity`, and returns its text.
    pub fn number(&mut self) -> Result<&'a str, Malformed> {
        let start = self.skip_number()?;
        self.text_since(start)
    }

    /// Consumes a number and returns the index of its first byte.
    fn skip_number(&mut self) -> Result<usize, Malformed> {
        self.peek();
        let start = self.at;
        let negative = self.bytes.get(self.at) == Some(&b'-');
        self.at += usize::from(negative);
        match self.bytes.get(self.at) {
            Some(b'N') if !negative => return self.non_finite_literal(start, b"NaN"),
            Some(b'I') => return self.non_finite_literal(start, b"Infinity"),
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.skip_digits(),
            _ => return Err(self.malformed()),
        }
        let mut exponent = false;
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.require_digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            exponent = true;
            self.at += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            self.require_digits()?;
        }
        // only a number with an exponent or with hundreds of digits can be outside the range of a double
        if (exponent || self.at - start > 300) && self.text_since(start)?.parse::<f64>().is_ok_and(f64::is_infinite) {
            self.non_finite.get_or_insert(start);
        }
        Ok(start)
    }

    /// Reads an integer of at most 15 digits, the common case. Otherwise returns `None` and consumes only white space.
    pub fn small_integer(&mut self) -> Option<i64> {
        self.peek();
        let negative = self.bytes.get(self.at) == Some(&b'-');
        let digits = &self.bytes[self.at + usize::from(negative)..];
        let mut value = 0;
        let mut length = 0;
        while let Some(digit) = digits.get(length).filter(|byte| byte.is_ascii_digit()) {
            value = value * 10 + i64::from(digit - b'0');
            length += 1;
            if length > 15 {
                return None;
            }
        }
        let plain = length > 0 && !(length > 1 && digits[0] == b'0');
        if !plain || matches!(digits.get(length), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        self.at += usize::from(negative) + length;
        Some(if negative { -value } else { value })
    }

    /// Consumes a literal such as `NaN`, which has no fraction and no exponent.
    fn non_finite_literal(&mut self, start: usize, literal: &[u8]) -> Result<usize, Malformed> {
        self.literal(literal)?;
        self.non_finite.get_or_insert(start);
        Ok(start)
    }

    /// The consumed text from byte `start` on.
    fn text_since(&self, start: usize) -> Result<&'a str, Malformed> {
        std::str::from_utf8(&self.bytes[start..self.at]).map_err(|_| Malformed::new(start))
    }

    fn skip_digits(&mut self) {
        while let Some(word) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            let others = other_than_digits(u64::from_le_bytes(*word));
            self.at += others.trailing_zeros() as usize / 8;
            if others != 0 {
                return;
            }
        }
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        self.at += rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    }

    fn require_digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        self.skip_digits();
        if self.at == start { Err(self.malformed()) } else { Ok(()) }
    }
}

/// The texts of the elements of the JSON array `text`. Does not validate the strings in the elements.
///
/// # Errors
/// When `text` is not one JSON array.
pub fn elements(text: &str) -> Result<Vec<&str>, Malformed> {
    let mut cursor = Cursor::new(text.as_bytes());
    let mut found = Vec::new();
    cursor.elements(|cursor| {
        found.push(&text[cursor.skip()?]);
        Ok(())
    })?;
    cursor.end()?;
    Ok(found)
}

/// The position of the first quote or backslash. Keys and short strings are searched eight bytes at a time, because `memchr` has a high
/// cost per call.
#[inline]
fn find_quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    const SHORT: usize = 64;
    let mut at = 0;
    while at < SHORT
        && let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>())
    {
        let word = u64::from_le_bytes(*word);
        let found = first_bytes(word, b'"') | first_bytes(word, b'\\');
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    memchr::memchr2(b'"', b'\\', &bytes[at..]).map(|found| at + found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn first_quote_or_backslash_is_found(bytes in prop::collection::vec(prop_oneof![8 => any::<u8>(), 1 => Just(b'"'), 1 => Just(b'\\')], 0..80)) {
            let expected = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'));
            prop_assert_eq!(find_quote_or_backslash(&bytes), expected);
        }
    }

    fn skip_all(text: &str) -> Result<Range<usize>, Malformed> {
        let mut cursor = Cursor::new(text.as_bytes());
        let range = cursor.skip()?;
        cursor.end()?;
        Ok(range)
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::vec((".*", inner), 0..6)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn skip_consumes_any_valid_json(value in value(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            prop_assert_eq!(skip_all(&text), Ok(0..text.len()));
        }

        #[test]
        fn mutated_json_that_serde_json_accepts_is_accepted(value in value(), at in any::<prop::sample::Index>(), byte in prop_oneof![Just(b'"'), Just(b','), Just(b']'), Just(b'{'), Just(b'0'), Just(b'.'), Just(b'-'), Just(b'x')]) {
            let mut text = serde_json::to_vec(&value).unwrap();
            let at = at.index(text.len());
            text[at] = byte;
            let mut cursor = Cursor::new(&text);
            let ours = cursor.skip().and_then(|_| cursor.end()).is_ok();
            // `skip` accepts bad escapes, control characters and invalid UTF-8 inside strings; serde_json rejects them
            let theirs = serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert!(ours || !theirs, "valid JSON was rejected: {}", String::from_utf8_lossy(&text));
        }

        #[test]
        fn skip_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut cursor = Cursor::new(&bytes);
            let _ = cursor.skip();
        }
    }

    #[test]
    fn invalid_json_is_rejected() {
        for text in [
            "",
            "[",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{,}",
            "01",
            "1.",
            "-",
            "tru",
            "\"a",
            "[1}",
            "{]",
            "1 2",
            "+1",
            ".5",
            "1e",
            "NaN.5",
            "-Infinitye9",
        ] {
            assert!(skip_all(text).is_err(), "{text:?} should have been rejected");
        }
    }

    #[test]
    fn numbers_not_finite_in_python_are_detected() {
        for text in ["NaN", "Infinity", "-Infinity", "1e999", "-1E+400", "[0,{\"a\":1e309}]"] {
            let mut cursor = Cursor::new(text.as_bytes());
            cursor.skip().unwrap();
            assert!(cursor.non_finite().is_some(), "{text} is not finite in Python");
        }
        let mut cursor = Cursor::new(b"[1e308,1e-999,0.1]");
        cursor.skip().unwrap();
        assert_eq!(cursor.non_finite(), None);
    }

    #[test]
    fn nesting_deeper_than_max_depth_is_too_deep() {
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(skip_all(&deep(MAX_DEPTH)).is_ok());
        assert!(skip_all(&deep(MAX_DEPTH + 1)).is_err_and(|error| error.too_deep));
    }
}
