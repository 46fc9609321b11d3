// SPDX-License-Identifier: Apache-2.0
//! Configures minijinja to render like Jinja in transformers.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::RenderError;
use super::data::PythonIterable;
use super::{filters, methods, python};

/// The prefix of the message of `raise_exception`, which distinguishes it from other errors.
const REFUSAL: &str = "raise_exception: ";

/// An environment in which chat templates render as in transformers.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(methods::call_method);
    environment.set_formatter(format);
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{}", python::str(message))))
    });
    environment.add_function("strftime_now", |format: &str| strftime_now(format));
    environment.add_function("dict", dict);
    filters::replace(&mut environment);
    // in Python, strings and dicts are iterable, and None is not
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::String | ValueKind::Map)
            && !PythonIterable::is(value)
    });
    environment
        .add_test("iterable", |value: &Value| !matches!(value.kind(), ValueKind::None) && value.try_iter().is_ok());
    environment
}

/// Python's `dict(…)`: from a mapping or pairs, and from keyword arguments.
fn dict(from: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut members: Vec<(Value, Value)> = Vec::new();
    if let Some(from) = from.filter(|from| !from.is_undefined()) {
        for item in from.try_iter()? {
            members.push(match from.kind() {
                ValueKind::Map => (item.clone(), from.get_item(&item)?),
                _ => (item.get_item_by_index(0)?, item.get_item_by_index(1)?),
            });
        }
    }
    for name in kwargs.args() {
        members.push((Value::from(name), kwargs.get(name)?));
    }
    Ok(members.into_iter().collect())
}

/// The error of a failed rendering, which had this much fuel.
pub(super) fn render_error(error: &Error, fuel: u64) -> RenderError {
    if error.kind() == ErrorKind::OutOfFuel {
        return RenderError::Endless(fuel);
    }
    match error.detail().and_then(|detail| detail.strip_prefix(REFUSAL)) {
        Some(message) => RenderError::Refused(message.to_owned()),
        None => RenderError::Failed(error.to_string()),
    }
}

/// Writes the value of an expression as Python's `str` does.
fn format(out: &mut Output<'_>, _: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&python::str(value)),
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "the text could not be written"))
}

/// The current time as Python's `datetime.now().strftime` writes it, in UTC. The environment variable `SOURCE_DATE_EPOCH`, in seconds since
/// 1970, replaces the clock.
fn strftime_now(format: &str) -> Result<String, Error> {
    let fixed = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let now = match fixed {
        Some(seconds) => chrono::DateTime::from_timestamp(seconds, 0),
        None => Some(chrono::Utc::now()),
    };
    let mut out = String::new();
    match now.map(|now| write!(out, "{}", now.format(format))) {
        Some(Ok(())) => Ok(out),
        _ => Err(Error::new(ErrorKind::InvalidOperation, format!("strftime_now cannot write {format:?}"))),
    }
}
