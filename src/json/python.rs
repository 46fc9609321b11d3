// SPDX-License-Identifier: Apache-2.0
//! Python's text rules: numbers and strings as `json.dumps` writes them, and white space as `str.isspace` defines it. Chat templates and
//! tool-call parsers follow these rules, because models were trained on text that Python wrote.

use std::fmt::Write;

/// A double as `json.dumps` writes it: the shortest decimal that parses to `value`; of two equally near ones, the one with the even last
/// digit. The crate zmij finds this decimal, and `{:?}` does not. zmij writes exponents in another form, which is converted.
#[must_use]
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let mut buffer = zmij::Buffer::new();
    let text = buffer.format_finite(value);
    if let Some((mantissa, exponent)) = text.split_once('e') {
        let (sign, digits) = exponent.split_at(usize::from(exponent.starts_with(['+', '-'])));
        return format!("{mantissa}e{}{digits:0>2}", if sign.is_empty() { "+" } else { sign });
    }
    match text.split_once("0.0000") {
        // Python writes numbers below 1e-4 with an exponent, zmij only those below 1e-5
        Some((sign, rest)) if matches!(sign, "" | "-") && value != 0.0 => {
            let digits = rest.trim_start_matches('0');
            let (first, others) = digits.split_at(1);
            let point = if others.is_empty() { "" } else { "." };
            format!("{sign}{first}{point}{others}e-{:02}", rest.len() - digits.len() + 5)
        }
        _ => text.to_owned(),
    }
}

/// The maximum number of digits of an integer that Python parses.
const MAX_DIGITS: usize = 4300;

/// The text that Python prints for a JSON number or a decimal literal; `None` for an integer with too many digits for Python's parser.
#[must_use]
pub(crate) fn number(text: &str) -> Option<String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    match digits {
        "NaN" | "Infinity" => Some(text.to_owned()),
        _ if digits.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) => text.parse().ok().map(float),
        _ if digits.len() > MAX_DIGITS => None,
        _ if digits.bytes().all(|digit| digit == b'0') => Some("0".to_owned()),
        _ => Some(text.to_owned()),
    }
}

/// Appends a quoted string. With `ascii`, characters outside ASCII are escaped.
pub(crate) fn string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    push_escaped(out, text, ascii);
    out.push('"');
}

/// Appends the escaped text of a string, without quotes. With `ascii`, characters outside ASCII are escaped.
pub(crate) fn push_escaped(out: &mut String, text: &str, ascii: bool) {
    for c in text.chars() {
        if !ascii && c > '~' {
            out.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| push_escaped_unit(out, *unit));
        }
    }
}

/// Appends one UTF-16 unit as ASCII, escaped if necessary. The unit may be a surrogate: the units of a pair, one after the other, give the
/// escape of the pair.
pub(crate) fn push_escaped_unit(out: &mut String, unit: u16) {
    match u8::try_from(unit) {
        Ok(b'"') => out.push_str("\\\""),
        Ok(b'\\') => out.push_str("\\\\"),
        Ok(b'\n') => out.push_str("\\n"),
        Ok(b'\r') => out.push_str("\\r"),
        Ok(b'\t') => out.push_str("\\t"),
        Ok(0x08) => out.push_str("\\b"),
        Ok(0x0c) => out.push_str("\\f"),
        Ok(byte @ b' '..=b'~') => out.push(char::from(byte)),
        // writing to a `String` never fails
        _ => drop(write!(out, "\\u{unit:04x}")),
    }
}

/// Whether `str.isspace` of Python is true for a character: Unicode's white space, and the four separators of ASCII.
#[must_use]
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `text` without white space at its ends, as `str.strip` of Python.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `text` without white space at its start, as `str.lstrip` of Python.
pub(crate) fn strip_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// `text` without white space at its end, as `str.rstrip` of Python.
pub(crate) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_match_json_dumps() {
        for (value, written) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (1e5, "100000.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (0.1, "0.1"),
            (123_456.789, "123456.789"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(float(value), written);
        }
    }

    #[test]
    fn escaped_strings_match_json_dumps() {
        let written = |text: &str, ascii: bool| {
            let mut out = String::new();
            string(&mut out, text, ascii);
            out
        };
        assert_eq!(
            written("a\"\\/\n\r\t\u{8}\u{c}\u{1}\u{7f}é😀", true),
            "\"a\\\"\\\\/\\n\\r\\t\\b\\f\\u0001\\u007f\\u00e9\\ud83d\\ude00\""
        );
        assert_eq!(written("<é>😀\u{1f}", false), "\"<é>😀\\u001f\"");
    }

    #[test]
    fn number_texts_match_python() {
        let table = [
            ("1e5", "100000.0"),
            ("1.0", "1.0"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("0.1", "0.1"),
            ("1E-5", "1e-05"),
            ("0.0001", "0.0001"),
            ("123456789012345680.0", "1.2345678901234568e+17"),
            ("9999999999999998.0", "9999999999999998.0"),
            ("1e16", "1e+16"),
            ("1.50e+300", "1.5e+300"),
            ("-0.00001234", "-1.234e-05"),
            ("0.000012e-4", "1.2e-09"),
            ("2017752099569302.25", "2017752099569302.2"),
            ("5e-324", "5e-324"),
            ("1e-400", "0.0"),
            ("1e999", "Infinity"),
            ("-1e999", "-Infinity"),
            ("NaN", "NaN"),
            ("-Infinity", "-Infinity"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ];
        for (text, python) in table {
            assert_eq!(number(text).as_deref(), Some(python), "{text}");
        }
        assert!(number(&"9".repeat(4300)).is_some());
        assert_eq!(number(&format!("-{}", "9".repeat(4301))), None);
    }
}
