//! JSON as Python's `json.loads` reads it.
//!
//! It accepts `NaN`, `Infinity`, integers of any size, lone surrogates and repeated keys, whose last value counts. Unlike Python it accepts
//! neither text that nests deeper than [`MAX_DEPTH`] (Python's limit is about a thousand) nor integers of more than 4300 digits.

use super::value::{Dict, PythonValue, push_char};
use crate::json::{Cursor, MAX_DEPTH, Malformed, Text, python};

/// Reads `text` as one value.
pub(super) fn loads(text: &str) -> Result<PythonValue, Malformed> {
    let mut cursor = Cursor::new(text.as_bytes());
    let value = value(&mut cursor, 0)?;
    cursor.end()?;
    Ok(value)
}

/// The JSON value of the text, or the text itself if it is not JSON.
pub(super) fn loose(text: &str) -> PythonValue {
    loads(text).unwrap_or_else(|_| PythonValue::text(text))
}

/// The texts of the elements of `text`, which is a JSON array. The elements are not validated.
pub(super) fn elements(text: &str) -> Result<Vec<&str>, Malformed> {
    let mut cursor = Cursor::new(text.as_bytes());
    let mut found = Vec::new();
    cursor.expect(b'[')?;
    if !cursor.take(b']') {
        loop {
            found.push(&text[cursor.skip()?]);
            if !cursor.take(b',') {
                break;
            }
        }
        cursor.expect(b']')?;
    }
    cursor.end()?;
    Ok(found)
}

fn value(cursor: &mut Cursor<'_>, depth: usize) -> Result<PythonValue, Malformed> {
    match cursor.peek() {
        Some(b'{' | b'[') if depth == MAX_DEPTH => Err(Malformed { at: cursor.position(), too_deep: true }),
        Some(b'{') => dict(cursor, depth + 1),
        Some(b'[') => list(cursor, depth + 1),
        Some(b'"') => text(cursor).map(PythonValue::Text),
        Some(word @ (b't' | b'f' | b'n')) => {
            cursor.skip()?;
            Ok(if word == b'n' { PythonValue::Null } else { PythonValue::Bool(word == b't') })
        }
        _ => {
            let number = cursor.number()?;
            python::number(number).map(PythonValue::Number).ok_or_else(|| cursor.malformed())
        }
    }
}

fn dict(cursor: &mut Cursor<'_>, depth: usize) -> Result<PythonValue, Malformed> {
    cursor.expect(b'{')?;
    let mut dict = Dict::default();
    if !cursor.take(b'}') {
        loop {
            let key = text(cursor)?;
            cursor.expect(b':')?;
            dict.set(key, value(cursor, depth)?);
            if !cursor.take(b',') {
                break;
            }
        }
        cursor.expect(b'}')?;
    }
    Ok(PythonValue::Dict(dict))
}

fn list(cursor: &mut Cursor<'_>, depth: usize) -> Result<PythonValue, Malformed> {
    cursor.expect(b'[')?;
    let mut items = Vec::new();
    if !cursor.take(b']') {
        loop {
            items.push(value(cursor, depth)?);
            if !cursor.take(b',') {
                break;
            }
        }
        cursor.expect(b']')?;
    }
    Ok(PythonValue::List(items))
}

/// A string, as `json.dumps` would write it without its quotes.
fn text(cursor: &mut Cursor<'_>) -> Result<String, Malformed> {
    let text = cursor.string()?;
    let Ok(raw) = std::str::from_utf8(text.raw) else { return Err(cursor.malformed()) };
    if !text.is_well_escaped() || raw.bytes().any(|byte| byte < b' ') {
        return Err(cursor.malformed());
    }
    Ok(rewritten(raw))
}

fn rewritten(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        rest[..at].chars().for_each(|c| push_char(c, &mut out));
        let unicode = rest[at..].strip_prefix("\\u").and_then(|behind| behind.get(..4));
        let length = match unicode.and_then(|digits| u16::from_str_radix(digits, 16).ok()) {
            Some(unit) => {
                python::escaped_unit(&mut out, unit);
                6
            }
            None => {
                let short = Text { raw: &rest.as_bytes()[at..at + 2], escaped: true };
                short.decode().chars().for_each(|c| push_char(c, &mut out));
                2
            }
        };
        rest = &rest[at + length..];
    }
    rest.chars().for_each(|c| push_char(c, &mut out));
    out
}
