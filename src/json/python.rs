//! Numbers and strings as Python's `json.dumps` writes them: models read what their templates were trained with.

use std::fmt::Write;

/// The shortest text that reads as `value`, and of two that are as near the even one, which is what zmij finds and `{:?}` does not.
/// Only the exponents are spelled otherwise.
#[must_use]
pub fn float(value: f64) -> String {
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
        // Python counts the exponent from here on, zmij one place further
        Some((sign, rest)) if matches!(sign, "" | "-") && value != 0.0 => {
            let digits = rest.trim_start_matches('0');
            let (first, others) = digits.split_at(1);
            let point = if others.is_empty() { "" } else { "." };
            format!("{sign}{first}{point}{others}e-{:02}", rest.len() - digits.len() + 5)
        }
        _ => text.to_owned(),
    }
}

/// Appends a quoted string; with `ascii` everything beyond it is escaped.
pub fn string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    escaped(out, text, ascii);
    out.push('"');
}

/// Appends what stands between the quotes.
pub fn escaped(out: &mut String, text: &str, ascii: bool) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => escape(out, u16::try_from(u32::from(c)).expect("control characters are small")),
            c if ascii && c > '~' => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escape(out, *unit)),
            c => out.push(c),
        }
    }
}

fn escape(out: &mut String, unit: u16) {
    // a string takes everything
    let _ = write!(out, "\\u{unit:04x}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_written_as_python_writes_them() {
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
    fn strings_are_escaped_as_python_escapes_them() {
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
}
