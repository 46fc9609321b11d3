// SPDX-License-Identifier: Apache-2.0
//! The filter `tojson` of transformers: `json.dumps`, which does not escape HTML.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::data::PythonIterable;
use super::python;
use crate::json;
use crate::tokenizer::Content;

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, arguments: Rest<Value>) -> Result<String, Error> {
    type Positional = (Option<bool>, Option<usize>, Option<Vec<String>>, Option<bool>, Kwargs);
    let (ensure_ascii, indent, separators, sort_keys, kwargs): Positional = from_args(&arguments)?;
    let indent = indent.or(kwargs.get("indent")?);
    let separators = separators.or(kwargs.get("separators")?);
    let ensure_ascii = ensure_ascii.or(kwargs.get("ensure_ascii")?);
    let sort_keys = sort_keys.or(kwargs.get("sort_keys")?);
    kwargs.assert_all_used()?;
    let [item_separator, key_separator] = match separators.as_deref() {
        Some([item, key]) => [item.clone(), key.clone()],
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators: two strings")),
        None if indent.is_some() => [",".to_owned(), ": ".to_owned()],
        None => [", ".to_owned(), ": ".to_owned()],
    };
    let dumper = JsonDumper {
        ensure_ascii: ensure_ascii.unwrap_or(false),
        sort_keys: sort_keys.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
    };
    let mut out = String::new();
    dumper.value(&mut out, value, 0)?;
    Ok(out)
}

/// `json.dumps` with its arguments.
struct JsonDumper {
    ensure_ascii: bool,
    sort_keys: bool,
    /// The number of spaces for each level; `None` writes one line.
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
}

impl JsonDumper {
    fn value(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => python::number(out, value, ["NaN", "Infinity", "-Infinity"]),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            _ if PythonIterable::is(value) => {
                return Err(Error::new(ErrorKind::BadSerialization, "a generator is no JSON"));
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(out, ['[', ']'], &items, depth, |out, item| self.value(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.container(out, ['{', '}'], &keys, depth, |out, key| {
                    self.string(out, &key.to_string());
                    out.push_str(&self.key_separator);
                    self.value(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(Error::new(ErrorKind::BadSerialization, format!("tojson of {kind}"))),
        }
        Ok(())
    }

    /// Writes a string. Marks of the tokenizer are not escaped.
    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for (at, part) in Content::split_at_marks(text).enumerate() {
            if at > 0 {
                out.push(Content::MARK);
            }
            json::python::push_escaped(out, part, self.ensure_ascii);
        }
        out.push('"');
    }

    /// Writes the items of a list or dict between brackets.
    fn container(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        items: &[Value],
        depth: usize,
        each: impl Fn(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.item_separator);
            }
            self.newline(out, depth + 1);
            each(out, item)?;
        }
        if !items.is_empty() {
            self.newline(out, depth);
        }
        out.push(close);
        Ok(())
    }

    /// Starts a new line, unless all is written in one line.
    fn newline(&self, out: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}
