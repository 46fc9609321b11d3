//! `tojson` of transformers: `json.dumps`, which does not escape HTML.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::data::Iterated;
use super::python;
use crate::json;
use crate::tokenizer::Content;

/// `value | tojson(ensure_ascii, indent, separators, sort_keys)`.
pub(super) fn tojson(value: &Value, arguments: Rest<Value>) -> Result<String, Error> {
    type Positional = (Option<bool>, Option<usize>, Option<Vec<String>>, Option<bool>, Kwargs);
    let (ascii, indent, separators, sorted, named): Positional = from_args(&arguments)?;
    let indent = indent.or(named.get("indent")?);
    let separators = separators.or(named.get("separators")?);
    let (ascii, sorted) = (ascii.or(named.get("ensure_ascii")?), sorted.or(named.get("sort_keys")?));
    named.assert_all_used()?;
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
            ValueKind::Number => python::number(out, value, ["NaN", "Infinity", "-Infinity"]),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            _ if Iterated::is(value) => return Err(Error::new(ErrorKind::BadSerialization, "a generator is no JSON")),
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
                    self.string(out, &key.to_string());
                    out.push_str(&self.key);
                    self.value(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(Error::new(ErrorKind::BadSerialization, format!("tojson of {kind}"))),
        }
        Ok(())
    }

    /// A string, in which the tokenizer's marks are not escaped.
    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for (at, part) in Content::between_marks(text).enumerate() {
            if at > 0 {
                out.push(Content::MARK);
            }
            json::python::escaped(out, part, self.ascii);
        }
        out.push('"');
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
