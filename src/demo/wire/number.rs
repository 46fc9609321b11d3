//! Encodes numbers and strings as JSON.

use super::super::options::Dialect;

/// The JSON libraries that SGLang uses. They encode strings equally and small numbers differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonLibrary {
    /// orjson: `0.00001`, `1e-6`.
    Orjson,
    /// Python's `json`: `1e-05`, `1e-06`.
    Stdlib,
}

impl JsonLibrary {
    /// The library for a reply, or for an event of a stream. SGLang 0.5.6 encodes replies with Python's `json`, and events with orjson.
    pub(super) fn of(dialect: Dialect, event: bool) -> Self {
        match dialect {
            Dialect::Sglang056 if !event => Self::Stdlib,
            _ => Self::Orjson,
        }
    }

    /// Appends the shortest text that parses to `value`; `null` if it is not finite.
    pub(super) fn float(self, out: &mut Vec<u8>, value: f64) {
        if !value.is_finite() {
            return out.extend_from_slice(b"null");
        }
        let mut buffer = zmij::Buffer::new();
        let digits = buffer.format_finite(value);
        match self {
            Self::Orjson => out.extend_from_slice(digits.as_bytes()),
            Self::Stdlib => stdlib(out, value, digits),
        }
    }
}

/// Encodes a float as Python does: with an exponent below 1e-4 (orjson: below 1e-5), which has at least two digits.
fn stdlib(out: &mut Vec<u8>, value: f64, digits: &str) {
    if let Some((mantissa, exponent)) = digits.split_once('e') {
        let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
        let exponent: i32 = exponent.parse().expect("an exponent is an integer");
        let sign = if exponent < 0 { '-' } else { '+' };
        out.extend_from_slice(format!("{mantissa}e{sign}{:02}", exponent.abs()).as_bytes());
    } else if value != 0.0 && value.abs() < 1e-4 {
        let (sign, rest) = if value < 0.0 { ("-", &digits[1..]) } else { ("", digits) };
        let significant = rest.trim_start_matches(['0', '.']);
        let exponent = rest.len() - 1 - significant.len();
        let (first, more) = significant.split_at(1);
        let point = if more.is_empty() { "" } else { "." };
        out.extend_from_slice(format!("{sign}{first}{point}{more}e-{exponent:02}").as_bytes());
    } else {
        out.extend_from_slice(digits.as_bytes());
    }
}

/// Appends a JSON string. Quotes, backslashes and control characters are escaped; other characters are UTF-8.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string is JSON and a Vec takes all of it");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(library: JsonLibrary, value: f64) -> String {
        let mut out = Vec::new();
        library.float(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn floats_have_the_same_text_as_from_orjson() {
        let orjson = [
            (f64::from(-1.848_282_5_f32), "-1.8482824563980103"),
            (f64::from(f32::MIN), "-3.4028234663852886e+38"),
            (-7.271793037944008e-6, "-7.271793037944008e-6"),
            (0.00015820324188098311, "0.00015820324188098311"),
            (1e-5, "0.00001"),
            (1.5e-10, "1.5e-10"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (f64::NAN, "null"),
            (f64::NEG_INFINITY, "null"),
        ];
        for (value, expected) in orjson {
            assert_eq!(encoded(JsonLibrary::Orjson, value), expected);
        }
    }

    #[test]
    fn floats_have_the_same_text_as_from_python() {
        let python = [
            (f64::from(f32::MIN), "-3.4028234663852886e+38"),
            (-7.271793037944008e-6, "-7.271793037944008e-06"),
            (0.00015820324188098311, "0.00015820324188098311"),
            (1e-5, "1e-05"),
            (-1.5e-5, "-1.5e-05"),
            (9.9e-5, "9.9e-05"),
            (1e-6, "1e-06"),
            (1e-4, "0.0001"),
            (1.5e-10, "1.5e-10"),
            (1e-100, "1e-100"),
            (1e16, "1e+16"),
            (0.0, "0.0"),
        ];
        for (value, expected) in python {
            assert_eq!(encoded(JsonLibrary::Stdlib, value), expected);
        }
    }
}
