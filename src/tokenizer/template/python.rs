// SPDX-License-Identifier: Apache-2.0
//! Python's `str`, `repr` and `str.splitlines`.

use std::fmt::Write;

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::json::python;

/// Python's `str(value)`.
pub(super) fn str(value: &Value) -> String {
    let mut out = String::new();
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Number => repr(&mut out, value),
        _ => out = value.to_string(),
    }
    out
}

/// Appends Python's `repr(value)`.
fn repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::String => repr_of_string(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => number(out, value, ["nan", "inf", "-inf"]),
        ValueKind::Seq | ValueKind::Iterable => push_items(out, value, ['[', ']'], |out, item| repr(out, &item)),
        ValueKind::Map => push_items(out, value, ['{', '}'], |out, key| {
            repr(out, &key);
            out.push_str(": ");
            repr(out, &value.get_item(&key).unwrap_or_default());
        }),
        _ => out.push_str(&value.to_string()),
    }
}

/// Appends the items of a value between brackets, separated by commas.
fn push_items(out: &mut String, value: &Value, [open, close]: [char; 2], mut each: impl FnMut(&mut String, Value)) {
    out.push(open);
    for (at, item) in value.try_iter().into_iter().flatten().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        each(out, item);
    }
    out.push(close);
}

/// Appends `repr` of a string. Quotes are double if the text has single quotes and no double quotes; otherwise they are single.
fn repr_of_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        let code = u32::from(c);
        // writing to a `String` never fails
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            _ if code < 0x100 => drop(write!(out, "\\x{code:02x}")),
            _ if code < 0x1_0000 => drop(write!(out, "\\u{code:04x}")),
            _ => drop(write!(out, "\\U{code:08x}")),
        }
    }
    out.push(quote);
}

/// Whether `repr` writes a character unescaped. It escapes control, format and private-use characters, and white space other than U+0020.
/// Unlike in Python, unassigned characters count as printable.
fn is_printable(c: char) -> bool {
    let format = matches!(u32::from(c),
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2 | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x2064 | 0x2066..=0x206f | 0xfeff | 0xfff9..=0xfffb | 0x1_10bd | 0x1_10cd | 0x1_3430..=0x1_343f
        | 0x1_bca0..=0x1_bca3 | 0x1_d173..=0x1_d17a | 0xe_0001 | 0xe_0020..=0xe_007f);
    let private = matches!(u32::from(c), 0xe000..=0xf8ff | 0xf_0000..=0xf_fffd | 0x10_0000..=0x10_fffd);
    c == ' ' || !(c.is_control() || c.is_whitespace() || format || private)
}

/// Appends a number. The array holds the texts of NaN, infinity and negative infinity.
pub(super) fn number(out: &mut String, value: &Value, [nan, infinite, negative]: [&str; 3]) {
    match f64::try_from(value.clone()) {
        _ if value.is_integer() => out.push_str(&value.to_string()),
        Ok(double) if double.is_nan() => out.push_str(nan),
        Ok(double) if double.is_infinite() => out.push_str(if double > 0.0 { infinite } else { negative }),
        Ok(double) => out.push_str(&python::float(double)),
        Err(_) => out.push_str(&value.to_string()),
    }
}

/// Python's `str.splitlines(keepends)`.
pub(super) fn splitlines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| is_end(*c)) {
        let next = at + if rest[at..].starts_with("\r\n") { 2 } else { end.len_utf8() };
        lines.push(&rest[..if keep_ends { next } else { at }]);
        rest = &rest[next..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repr_of_strings_matches_python() {
        let written = |text: &str| str(&Value::from(vec![text.to_owned()]));
        assert_eq!(written("é'\"\\\n\u{7f}"), "['é\\'\"\\\\\\n\\x7f']");
        assert_eq!(written("it's"), "[\"it's\"]");
        assert_eq!(written("\u{a0}\u{200b}\u{e000}\u{e0001}"), "['\\xa0\\u200b\\ue000\\U000e0001']");
    }

    #[test]
    fn repr_of_numbers_matches_python() {
        for (value, written) in [
            (Value::from(7), "7"),
            (Value::from(i128::MAX), "170141183460469231731687303715884105727"),
            (Value::from(7.0), "7.0"),
            (Value::from(1e22), "1e+22"),
            (Value::from(f64::NAN), "nan"),
            (Value::from(f64::NEG_INFINITY), "-inf"),
        ] {
            assert_eq!(str(&value), written);
        }
    }

    #[test]
    fn splitlines_matches_python() {
        assert_eq!(splitlines("a\r\nb\u{2028}c\n\n", false), ["a", "b", "c", ""]);
        assert_eq!(splitlines("a\r\nb", true), ["a\r\n", "b"]);
    }
}
