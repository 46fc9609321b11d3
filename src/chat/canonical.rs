//! Writes JSON values as text: in a canonical form for digests, and as Python's `json.dumps` writes them.

use crate::json::{Value, python};

/// A value in canonical form: its text does not depend on the order of keys or on the notation of numbers.
#[must_use]
pub(super) fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, true);
    out
}

/// A value as Python's `json.dumps` writes it.
#[must_use]
pub fn dumps(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, false);
    out
}

fn write(out: &mut String, value: &Value, sorted: bool) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(text) => match text.parse::<f64>() {
            // JavaScript clients write 1.0 as 1
            Ok(double) if sorted && double.fract() == 0.0 && double.abs() < 9e15 => {
                out.push_str(&format!("{double:.0}"))
            }
            Ok(double) if text.contains(['.', 'e', 'E']) => out.push_str(&python::float(double)),
            _ => out.push_str(text),
        },
        Value::String(text) => write_string(out, text),
        Value::Array(values) => {
            out.push('[');
            for (at, value) in values.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write(out, value, sorted);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<&(String, Value)> = members.iter().collect();
            if sorted {
                members.sort_by(|a, b| a.0.cmp(&b.0));
            }
            out.push('{');
            for (at, (key, value)) in members.into_iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_string(out, key);
                out.push_str(": ");
                write(out, value, sorted);
            }
            out.push('}');
        }
    }
}

/// Appends a quoted string, in which characters outside ASCII are escaped.
fn write_string(out: &mut String, text: &str) {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    // most strings need no escape
    if text.bytes().all(is_plain) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        python::string(out, text, true);
    }
}
