//! Numbers as Python prints them.

use crate::json::python::float;

/// Python refuses to read an integer of more digits.
const MAX_DIGITS: usize = 4300;

/// What Python prints for a number of JSON, or of Python without underscores and other bases; `None` where it refuses to.
pub(super) fn printed(text: &str) -> Option<String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    match digits {
        "NaN" | "Infinity" => Some(text.to_owned()),
        _ if digits.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) => text.parse().ok().map(float),
        _ if digits.len() > MAX_DIGITS => None,
        _ if digits.bytes().all(|digit| digit == b'0') => Some("0".to_owned()),
        _ => Some(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::printed;

    #[test]
    fn numbers_are_printed_as_python_does() {
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
            assert_eq!(printed(text).as_deref(), Some(python), "{text}");
        }
        assert!(printed(&"9".repeat(4300)).is_some());
        assert_eq!(printed(&format!("-{}", "9".repeat(4301))), None);
    }
}
