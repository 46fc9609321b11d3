//! Filters of Jinja, where minijinja's differ in arguments or results.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::data::Iterated;
use super::{dump, methods, python, source};

/// The name of a test, where a filter was given one.
type Test<'a> = Option<Cow<'a, str>>;

/// Puts them in the place of minijinja's.
pub(super) fn replace(environment: &mut Environment<'_>) {
    environment.add_filter(source::ITERATED, iterated);
    environment.add_filter("tojson", dump::tojson);
    environment.add_filter("string", |value: &Value| python::str(value));
    environment.add_filter("upper", |value: &Value| python::str(value).to_uppercase());
    environment.add_filter("lower", |value: &Value| python::str(value).to_lowercase());
    environment.add_filter("trim", |value: &Value, characters: Option<&str>| {
        methods::strip(&python::str(value), characters, methods::BOTH).to_owned()
    });
    environment.add_filter("indent", indent);
    environment.add_filter("join", join);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    for name in ["escape", "e", "forceescape"] {
        environment.add_filter(name, |value: &Value| escape(&python::str(value)));
    }
    environment.add_filter("list", |state: &State<'_, '_>, value: Value| filters::list(state, iterated(value)?));
    environment.add_filter("map", |state: &State<'_, '_>, value: Value, rest: Rest<Value>| {
        filters::map(state, value, rest).map(Iterated::generator)
    });
    environment.add_filter("select", |state: &State<'_, '_>, value: Value, test: Test<'_>, rest: Rest<Value>| {
        filters::select(state, value, test, rest).map(Iterated::generator)
    });
    environment.add_filter("reject", |state: &State<'_, '_>, value: Value, test: Test<'_>, rest: Rest<Value>| {
        filters::reject(state, value, test, rest).map(Iterated::generator)
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
    filters::selectattr(state, value, name, test, rest).map(Iterated::generator)
}

fn rejectattr(
    state: &State<'_, '_>,
    value: Value,
    name: Cow<'_, str>,
    test: Test<'_>,
    rest: Rest<Value>,
) -> Result<Value, Error> {
    filters::rejectattr(state, value, name, test, rest).map(Iterated::generator)
}

/// What can be gone through; minijinja takes none for nothing. (So does Python, in what gives generators.)
fn iterated(value: Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, "none cannot be gone through"));
    }
    Ok(value)
}

/// `indent(width=4, first=False, blank=False)`: every line but the first, and empty ones, unless asked. The width may be a text.
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width: Option<Value> = width.or(named.get("width")?);
    let (first, blank) = (first.or(named.get("first")?), blank.or(named.get("blank")?));
    named.assert_all_used()?;
    let width = width.unwrap_or(Value::from(4));
    let indention = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(width.as_usize().unwrap_or_default().min(MAX_INDENTION)),
    };
    let mut out = String::new();
    if first.unwrap_or(false) {
        out.push_str(&indention);
    }
    // the newline lets a text that ends with one keep it
    let text = python::str(value) + "\n";
    for (at, line) in python::lines(&text, false).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
            if blank.unwrap_or(false) || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line);
    }
    Ok(out)
}

/// More spaces no template indents by.
const MAX_INDENTION: usize = 1000;

/// `join(d='', attribute=None)`.
fn join(value: Value, between: Option<Value>, named: Kwargs) -> Result<String, Error> {
    let between = between.or(named.get("d")?).map_or(String::new(), |between| python::str(&between));
    let attribute: Option<Value> = named.get("attribute")?;
    named.assert_all_used()?;
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut out = String::new();
    for (at, item) in iterated(value)?.try_iter()?.enumerate() {
        if at > 0 {
            out.push_str(&between);
        }
        let item = match &attribute {
            Some(attribute) => item.get_item(attribute)?,
            None => item,
        };
        out.push_str(&python::str(&item));
    }
    Ok(out)
}

/// `int(default=0)`; other bases than ten are not known.
fn int(state: &State<'_, '_>, value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get("default")?).unwrap_or(Value::from(0));
    named.assert_all_used()?;
    let trimmed = value.as_str().map(|text| Value::from(text.trim()));
    Ok(if value.is_none() {
        default
    } else {
        filters::int(state, trimmed.as_ref().unwrap_or(value)).unwrap_or(default)
    })
}

/// `float(default=0.0)`.
fn float(state: &State<'_, '_>, value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get("default")?).unwrap_or(Value::from(0.0));
    named.assert_all_used()?;
    let trimmed = value.as_str().map(|text| Value::from(text.trim()));
    Ok(if value.is_none() {
        default
    } else {
        filters::float(state, trimmed.as_ref().unwrap_or(value)).unwrap_or(default)
    })
}

/// HTML's escapes, as markupsafe writes them.
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
