// SPDX-License-Identifier: Apache-2.0
//! Writes JSON values as text: as Python's `json.dumps` writes them, and in a canonical form.

use super::{Value, python};

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpStyle {
    /// As `json.dumps` writes it, with characters outside ASCII escaped.
    Ascii,
    /// As `json.dumps` writes it with `ensure_ascii=False`.
    Unicode,
    /// The same with numbers as serde_json writes them.
    Serde,
    /// The text does not depend on the order of keys or on the notation of numbers. Characters outside ASCII are escaped.
    Canonical,
}

/// A value as JSON text.
#[must_use]
pub(crate) fn dumps(value: &Value, style: DumpStyle) -> String {
    let mut out = String::new();
    write(&mut out, value, style);
    out
}

fn write(out: &mut String, value: &Value, style: DumpStyle) {
    let is_canonical = style == DumpStyle::Canonical;
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(text) => match text.parse::<f64>() {
            // JavaScript clients write 1.0 as 1
            Ok(double) if is_canonical && double.fract() == 0.0 && double.abs() < 9e15 => {
                out.push_str(&format!("{double:.0}"))
            }
            // integers beyond 64 bits become doubles
            Ok(_) if style == DumpStyle::Serde => {
                let number = serde_json::from_str::<serde_json::Number>(text);
                out.push_str(&number.map_or_else(|_| text.to_string(), |number| number.to_string()));
            }
            Ok(double) if text.contains(['.', 'e', 'E']) => out.push_str(&python::float(double)),
            _ => out.push_str(text),
        },
        Value::String(text) => write_string(out, text, style),
        Value::Array(values) => {
            out.push('[');
            for (at, value) in values.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write(out, value, style);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<&(String, Value)> = members.iter().collect();
            if is_canonical {
                members.sort_by(|a, b| a.0.cmp(&b.0));
            }
            out.push('{');
            for (at, (key, value)) in members.into_iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_string(out, key, style);
                out.push_str(": ");
                write(out, value, style);
            }
            out.push('}');
        }
    }
}

/// Appends a quoted string.
fn write_string(out: &mut String, text: &str, style: DumpStyle) {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    // most strings need no escape
    if text.bytes().all(is_plain) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        python::string(out, text, !matches!(style, DumpStyle::Unicode | DumpStyle::Serde));
    }
}
