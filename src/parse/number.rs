//! Numbers as Python prints them.

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

/// The shortest text that reads as `value`, and of two that are as near the even one, which is what zmij finds and `{:?}` does not.
/// Only the exponents are spelled otherwise.
fn float(value: f64) -> String {
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
