// SPDX-License-Identifier: Apache-2.0
//! Parses JSON as Python's `json.loads` does.
//!
//! Accepts `NaN`, `Infinity`, big integers, lone surrogates and repeated keys, of which the last one counts. Rejects integers of more than 4300
//! digits, as Python does, and text that nests deeper than [`MAX_DEPTH`] (Python's limit is about a thousand).

use super::value::{Dict, PythonValue, push_escaped};
use crate::json::{Cursor, MAX_DEPTH, Malformed, Text, for_each_member, python};

/// Parses `text`, which must be one value.
pub(super) fn loads(text: &str) -> Result<PythonValue, Malformed> {
    let mut cursor = Cursor::new(text.as_bytes());
    let value = value(&mut cursor, 0)?;
    cursor.end()?;
    Ok(value)
}

/// The JSON value of the text, or the text as a string if it is not JSON.
pub(super) fn loads_or_text(text: &str) -> PythonValue {
    loads(text).unwrap_or_else(|_| PythonValue::text(text))
}

fn value(cursor: &mut Cursor<'_>, depth: usize) -> Result<PythonValue, Malformed> {
    match cursor.peek() {
        Some(b'{' | b'[') if depth == MAX_DEPTH => Err(Malformed { at: cursor.position(), too_deep: true }),
        Some(b'{') => dict(cursor, depth + 1),
        Some(b'[') => list(cursor, depth + 1),
        Some(b'"') => {
            let text = cursor.string()?;
            dumped(text).map(PythonValue::Text).ok_or_else(|| cursor.malformed())
        }
        Some(first @ (b't' | b'f' | b'n')) => {
            cursor.skip()?;
            Ok(if first == b'n' { PythonValue::Null } else { PythonValue::Bool(first == b't') })
        }
        _ => {
            let number = cursor.number()?;
            python::number(number).map(PythonValue::Number).ok_or_else(|| cursor.malformed())
        }
    }
}

fn dict(cursor: &mut Cursor<'_>, depth: usize) -> Result<PythonValue, Malformed> {
    let mut dict = Dict::default();
    for_each_member(cursor, |key, _, cursor| {
        let key = dumped(key).ok_or_else(|| cursor.malformed())?;
        dict.push(key, value(cursor, depth)?);
        Ok(())
    })?;
    Ok(PythonValue::Dict(dict))
}

fn list(cursor: &mut Cursor<'_>, depth: usize) -> Result<PythonValue, Malformed> {
    let mut items = Vec::new();
    cursor.elements(|cursor| {
        items.push(value(cursor, depth)?);
        Ok(())
    })?;
    Ok(PythonValue::List(items))
}

/// A string as `json.dumps` writes it, without its quotes. `None` if it is not valid.
fn dumped(text: Text<'_>) -> Option<String> {
    let raw = std::str::from_utf8(text.raw).ok()?;
    if !text.is_well_escaped() || raw.bytes().any(|byte| byte < b' ') {
        return None;
    }
    let mut out = String::with_capacity(raw.len());
    reescape(raw, &mut out);
    Some(out)
}

/// Appends the text of a valid string with the escapes of `json.dumps`.
pub(super) fn reescape(raw: &str, out: &mut String) {
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        push_escaped(&rest[..at], out);
        let unicode = rest[at..].strip_prefix("\\u").and_then(|rest| rest.get(..4));
        let length = match unicode.and_then(|digits| u16::from_str_radix(digits, 16).ok()) {
            Some(unit) => {
                python::push_escaped_unit(out, unit);
                6
            }
            None => {
                let short = Text { raw: &rest.as_bytes()[at..at + 2], escaped: true };
                push_escaped(&short.decode(), out);
                2
            }
        };
        rest = &rest[at + length..];
    }
    push_escaped(rest, out);
}
