// SPDX-License-Identifier: Apache-2.0
//! Jinja filters whose arguments or results differ in minijinja.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::data::PythonIterable;
use super::{dump, methods, python, source};

/// The name of a test, an optional argument of some filters.
type Test<'a> = Option<Cow<'a, str>>;

/// Replaces the filters of minijinja.
pub(super) fn replace(environment: &mut Environment<'_>) {
    environment.add_filter(source::ITERATED_FILTER, require_iterable);
    environment.add_filter("tojson", dump::tojson);
    environment.add_filter("string", |value: &Value| python::str(value));
    environment.add_filter("upper", |value: &Value| python::str(value).to_uppercase());
    environment.add_filter("lower", |value: &Value| python::str(value).to_lowercase());
    environment.add_filter("trim", |value: &Value, characters: Option<&str>| {
        methods::strip(&python::str(value), characters, methods::Ends::Both).to_owned()
    });
    environment.add_filter("indent", indent);
    environment.add_filter("join", join);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    for name in ["escape", "e", "forceescape"] {
        environment.add_filter(name, |value: &Value| escape(&python::str(value)));
    }
    environment
        .add_filter("list", |state: &State<'_, '_>, value: Value| filters::list(state, require_iterable(value)?));
    environment.add_filter("map", |state: &State<'_, '_>, value: Value, rest: Rest<Value>| {
        filters::map(state, value, rest).map(PythonIterable::generator)
    });
    environment.add_filter("select", |state: &State<'_, '_>, value: Value, test: Test<'_>, rest: Rest<Value>| {
        filters::select(state, value, test, rest).map(PythonIterable::generator)
    });
    environment.add_filter("reject", |state: &State<'_, '_>, value: Value, test: Test<'_>, rest: Rest<Value>| {
        filters::reject(state, value, test, rest).map(PythonIterable::generator)
    });
    environment.add_filter("selectattr", selectattr);
    environment.add_filter("rejectattr", rejectattr);
}

fn selectattr(
    state: &State<'_, '_>,
    value: Value,
    name: Cow<'_, str>,
    test: Test<'_>,
    rest: Rest<Value>,
) -> Result<Value, Error> {
    filters::selectattr(state, value, name, test, rest).map(PythonIterable::generator)
}

fn rejectattr(
    state: &State<'_, '_>,
    value: Value,
    name: Cow<'_, str>,
    test: Test<'_>,
    rest: Rest<Value>,
) -> Result<Value, Error> {
    filters::rejectattr(state, value, name, test, rest).map(PythonIterable::generator)
}

/// Returns the value, or an error for none, which Python does not iterate over. minijinja treats none as empty. Filters that return
/// generators, such as `map`, accept none in Python too.
fn require_iterable(value: Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, "none cannot be gone through"));
    }
    Ok(value)
}

/// `indent(width=4, first=False, blank=False)`: indents all lines, but the first line only with `first`, and empty lines only with `blank`.
/// The width is a number of spaces, or a string that is inserted.
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width: Option<Value> = width.or(kwargs.get("width")?);
    let (first, blank) = (first.or(kwargs.get("first")?), blank.or(kwargs.get("blank")?));
    kwargs.assert_all_used()?;
    let width = width.unwrap_or(Value::from(4));
    let indentation = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(width.as_usize().unwrap_or_default().min(MAX_INDENT_WIDTH)),
    };
    let mut out = String::new();
    if first.unwrap_or(false) {
        out.push_str(&indentation);
    }
    // with the added newline, `splitlines` does not drop a newline at the end of the text
    let text = python::str(value) + "\n";
    for (at, line) in python::splitlines(&text, false).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
            if blank.unwrap_or(false) || !line.is_empty() {
                out.push_str(&indentation);
            }
        }
        out.push_str(line);
    }
    Ok(out)
}

/// The maximum width in spaces. No template indents by more.
const MAX_INDENT_WIDTH: usize = 1000;

/// `join(d='', attribute=None)`.
fn join(value: Value, separator: Option<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let separator = separator.or(kwargs.get("d")?).map_or(String::new(), |separator| python::str(&separator));
    let attribute: Option<Value> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut out = String::new();
    for (at, item) in require_iterable(value)?.try_iter()?.enumerate() {
        if at > 0 {
            out.push_str(&separator);
        }
        let item = match &attribute {
            Some(attribute) => item.get_item(attribute)?,
            None => item,
        };
        out.push_str(&python::str(&item));
    }
    Ok(out)
}

/// `int(default=0)`. Bases other than ten are not supported.
fn int(state: &State<'_, '_>, value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0));
    kwargs.assert_all_used()?;
    let trimmed = value.as_str().map(|text| Value::from(text.trim()));
    Ok(if value.is_none() {
        default
    } else {
        filters::int(state, trimmed.as_ref().unwrap_or(value)).unwrap_or(default)
    })
}

/// `float(default=0.0)`.
fn float(state: &State<'_, '_>, value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0.0));
    kwargs.assert_all_used()?;
    let trimmed = value.as_str().map(|text| Value::from(text.trim()));
    Ok(if value.is_none() {
        default
    } else {
        filters::float(state, trimmed.as_ref().unwrap_or(value)).unwrap_or(default)
    })
}

/// Escapes HTML as markupsafe does.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
