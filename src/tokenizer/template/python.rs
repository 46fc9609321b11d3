//! What Python makes of a value: `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use crate::json::python;

/// `str(value)`.
pub(super) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Number => {
            let mut out = String::new();
            repr(&mut out, value);
            out
        }
        _ => value.to_string(),
    }
}

/// `repr(value)`.
fn repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::String => quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => number(out, value),
        ValueKind::Seq => listed(out, value, ('[', ']'), |out, item| repr(out, &item)),
        ValueKind::Map => listed(out, value, ('{', '}'), |out, key| {
            repr(out, &key);
            out.push_str(": ");
            repr(out, &value.get_item(&key).unwrap_or_default());
        }),
        _ => out.push_str(&value.to_string()),
    }
}

fn listed(out: &mut String, value: &Value, (open, close): (char, char), mut each: impl FnMut(&mut String, Value)) {
    out.push(open);
    for (at, item) in value.try_iter().into_iter().flatten().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        each(out, item);
    }
    out.push(close);
}

/// A string in quotes; Python prefers single ones.
fn quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        let code = u32::from(c);
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            // a string takes everything
            c if c.is_control() => drop(write!(out, "\\x{code:02x}")),
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn number(out: &mut String, value: &Value) {
    match f64::try_from(value.clone()) {
        Ok(double) if !value.is_integer() => out.push_str(&python::float(double)),
        _ => out.push_str(&value.to_string()),
    }
}

/// `tojson` of transformers: `json.dumps`, which escapes no HTML.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let [item, key] = match separators.as_deref() {
        Some([item, key]) => [item.clone(), key.clone()],
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators: two strings")),
        None if indent.is_some() => [",".to_owned(), ": ".to_owned()],
        None => [", ".to_owned(), ": ".to_owned()],
    };
    let dump = Dump { ascii: ascii.unwrap_or(false), sorted: sorted.unwrap_or(false), indent, item, key };
    let mut out = String::new();
    dump.value(&mut out, value, 0)?;
    Ok(out)
}

/// `json.dumps` with its settings.
struct Dump {
    ascii: bool,
    sorted: bool,
    indent: Option<usize>,
    item: String,
    key: String,
}

impl Dump {
    fn value(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => number(out, value),
            ValueKind::String => python::string(out, value.as_str().unwrap_or_default(), self.ascii),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.nested(out, ('[', ']'), &items, depth, |out, item| self.value(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.nested(out, ('{', '}'), &keys, depth, |out, key| {
                    python::string(out, &key.to_string(), self.ascii);
                    out.push_str(&self.key);
                    self.value(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(Error::new(ErrorKind::BadSerialization, format!("tojson of {kind}"))),
        }
        Ok(())
    }

    fn nested(
        &self,
        out: &mut String,
        (open, close): (char, char),
        items: &[Value],
        depth: usize,
        each: impl Fn(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.item);
            }
            self.line(out, depth + 1);
            each(out, item)?;
        }
        if !items.is_empty() {
            self.line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}
