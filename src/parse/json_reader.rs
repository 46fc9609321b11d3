// SPDX-License-Identifier: Apache-2.0
//! Reads the text of one JSON value while it arrives, and writes it as `json.dumps` does.
//!
//! The grammar is that of [`loads`]. Repeated keys are kept.

use super::loads::{loads, reescape};
use super::value::push_escaped;
use crate::json::{Cursor, MAX_DEPTH, Text};

/// The names of values that are not numbers in JSON. The minus sign of `-Infinity` may also begin a number.
const LITERALS: [&str; 6] = ["true", "false", "null", "NaN", "Infinity", "-Infinity"];

/// Reads a value token by token. Each token is final: later text does not change what was written for it.
#[derive(Debug, Clone)]
pub(super) struct JsonReader {
    /// Bit `d` is set if the container at depth `d + 1` is an object.
    objects: u128,
    depth: usize,
    expected: Expected,
    /// The number of bytes of an incomplete number that are already read.
    scanned: usize,
    error: Option<JsonError>,
}

/// The grammar's next symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    /// More of a string, which is a key if `key`.
    Characters {
        key: bool,
    },
    /// Only white space.
    End,
}

/// Reads on in a JSON text from within a string, to find out whether a marker in the string is text of it.
#[derive(Debug, Clone)]
pub(super) struct StringLookahead {
    json: JsonReader,
    /// The position of the reader.
    at: usize,
}

/// A part of a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    /// White space. Nothing was written.
    Space,
    /// `{` or `[`.
    Open(u8),
    /// `}` or `]`.
    Close,
    /// A colon after a key.
    Colon,
    /// A comma.
    Comma,
    /// A part of a string, one of its quotes included.
    Characters,
    /// A number or a literal.
    Scalar,
}

/// Why a text is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonError {
    /// The text breaks the grammar.
    Malformed,
    /// A limit: an integer has too many digits, or the text nests too deeply. A parser with other limits accepts the text.
    Limit,
}

impl StringLookahead {
    /// A reader at byte `at` of a text, where `json` is within a string.
    pub(super) fn new(json: JsonReader, at: usize) -> Self {
        Self { json, at }
    }

    /// Continues in `text`. Returns the position up to which the text is valid JSON with the whole string and the token after it, or an
    /// error if the string or the token is invalid. Returns `None` if more text is needed.
    pub(super) fn read(&mut self, text: &str) -> Option<Result<usize, JsonError>> {
        let mut out = String::new();
        loop {
            let was_in_string = self.json.in_string();
            let Some((token, length)) = self.json.next(&text[self.at..], &mut out) else {
                return self.json.error().map(Err);
            };
            out.clear();
            self.at += length;
            if self.json.is_complete() || !was_in_string && token != Token::Space {
                return Some(Ok(self.at));
            }
        }
    }
}

impl JsonReader {
    pub(super) fn new() -> Self {
        Self { objects: 0, depth: 0, expected: Expected::Value, scanned: 0, error: None }
    }

    /// The number of containers that are open.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Whether the text so far ends within a string, or was invalid in one.
    pub(super) fn in_string(&self) -> bool {
        matches!(self.expected, Expected::Characters { .. })
    }

    /// Whether the value is valid and complete.
    pub(super) fn is_complete(&self) -> bool {
        self.expected == Expected::End && self.error.is_none()
    }

    /// The error, if the text is not JSON.
    pub(super) fn error(&self) -> Option<JsonError> {
        self.error
    }

    /// Makes the text invalid for a reason outside JSON.
    pub(super) fn fail(&mut self) {
        self.error = Some(JsonError::Malformed);
    }

    /// Reads the next token, which begins `text`. Returns the token and its length in bytes, and appends to `out` what `json.dumps` writes
    /// for it. Returns `None` if the token needs more text, which `text` must then continue with the same bytes, or after an error.
    pub(super) fn next(&mut self, text: &str, out: &mut String) -> Option<(Token, usize)> {
        if self.error.is_some() {
            return None;
        }
        self.try_next(text, out).unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })
    }

    fn try_next(&mut self, text: &str, out: &mut String) -> Result<Option<(Token, usize)>, JsonError> {
        let Some(&first) = text.as_bytes().first() else { return Ok(None) };
        if let Expected::Characters { key } = self.expected {
            return self.characters(text, key, out);
        }
        let space = text.bytes().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).count();
        if space > 0 {
            return Ok(Some((Token::Space, space)));
        }
        let is_object = self.is_object();
        let token = match (self.expected, first) {
            (Expected::Value | Expected::ValueOrEnd, b'{' | b'[') => {
                if self.depth == MAX_DEPTH {
                    return Err(JsonError::Limit);
                }
                let bit = 1 << self.depth;
                self.depth += 1;
                if first == b'{' {
                    self.objects |= bit
                } else {
                    self.objects &= !bit
                }
                self.expected = if first == b'{' { Expected::KeyOrEnd } else { Expected::ValueOrEnd };
                Token::Open(first)
            }
            (Expected::ValueOrEnd, b']') | (Expected::KeyOrEnd, b'}') => self.close(),
            (Expected::CommaOrEnd, b'}') if is_object => self.close(),
            (Expected::CommaOrEnd, b']') if !is_object => self.close(),
            (Expected::CommaOrEnd, b',') => {
                self.expected = if is_object { Expected::Key } else { Expected::Value };
                out.push_str(", ");
                return Ok(Some((Token::Comma, 1)));
            }
            (Expected::Colon, b':') => {
                self.expected = Expected::Value;
                out.push_str(": ");
                return Ok(Some((Token::Colon, 1)));
            }
            (Expected::Key | Expected::KeyOrEnd | Expected::Value | Expected::ValueOrEnd, b'"') => {
                let key = matches!(self.expected, Expected::Key | Expected::KeyOrEnd);
                self.expected = Expected::Characters { key };
                Token::Characters
            }
            (Expected::Value | Expected::ValueOrEnd, _) => return self.scalar(text, out),
            _ => return Err(JsonError::Malformed),
        };
        out.push(char::from(first));
        Ok(Some((token, 1)))
    }

    fn is_object(&self) -> bool {
        self.depth > 0 && self.objects >> (self.depth - 1) & 1 == 1
    }

    fn close(&mut self) -> Token {
        self.depth -= 1;
        self.end_value();
        Token::Close
    }

    fn end_value(&mut self) {
        self.expected = if self.depth == 0 { Expected::End } else { Expected::CommaOrEnd };
    }

    /// Reads the next characters of a string, one escape of it, or the quote at its end.
    fn characters(&mut self, text: &str, key: bool, out: &mut String) -> Result<Option<(Token, usize)>, JsonError> {
        let is_special = |byte: u8| byte == b'"' || byte == b'\\' || byte < b' ';
        let plain = text.bytes().position(is_special).unwrap_or(text.len());
        if plain > 0 {
            push_escaped(&text[..plain], out);
            return Ok(Some((Token::Characters, plain)));
        }
        let length = match text.as_bytes() {
            [b'"', ..] => {
                out.push('"');
                if key {
                    self.expected = Expected::Colon
                } else {
                    self.end_value()
                }
                return Ok(Some((Token::Characters, 1)));
            }
            [b'\\', b'u', ..] => 6,
            [b'\\', ..] => 2,
            _ => return Err(JsonError::Malformed),
        };
        if text.len() < length {
            return Ok(None);
        }
        let escape = text.get(..length).ok_or(JsonError::Malformed)?;
        if !(Text { raw: escape.as_bytes(), escaped: true }).is_well_escaped() {
            return Err(JsonError::Malformed);
        }
        reescape(escape, out);
        Ok(Some((Token::Characters, length)))
    }

    /// Reads a literal, or a number up to the byte that ends it.
    fn scalar(&mut self, text: &str, out: &mut String) -> Result<Option<(Token, usize)>, JsonError> {
        let is_number = match text.as_bytes() {
            [b'0'..=b'9', ..] => true,
            [b'-', second, ..] => *second != b'I',
            [b'-'] => return Ok(None),
            _ => false,
        };
        let length = if is_number {
            let rest = &text.as_bytes()[self.scanned..];
            let ends = |byte: &u8| !matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
            let Some(length) = rest.iter().position(ends) else {
                self.scanned = text.len();
                return Ok(None);
            };
            std::mem::take(&mut self.scanned) + length
        } else {
            let literal = LITERALS.iter().find(|literal| text.starts_with(**literal) || literal.starts_with(text));
            let literal = literal.ok_or(JsonError::Malformed)?;
            if text.len() < literal.len() {
                return Ok(None);
            }
            literal.len()
        };
        let Ok(value) = loads(&text[..length]) else {
            let number = Cursor::new(&text.as_bytes()[..length]).number();
            let is_valid = number.is_ok_and(|number| number.len() == length);
            return Err(if is_valid { JsonError::Limit } else { JsonError::Malformed });
        };
        out.push_str(&value.dumps());
        self.end_value();
        Ok(Some((Token::Scalar, length)))
    }
}
