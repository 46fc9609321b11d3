//! Jinja as Hugging Face sets it up, where minijinja differs.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::RenderError;
use super::python::{self, tojson};

/// How the message of a refusal begins, by which it is told from a failure.
const REFUSAL: &str = "raise_exception: ";

/// An environment in which templates of models render as in transformers.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(format);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{message}")))
    });
    environment.add_function("strftime_now", |format: &str| strftime_now(format));
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python::str(value));
    // a string is a sequence to Python, and so is a dict; none is nothing that can be gone through
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    environment
        .add_test("iterable", |value: &Value| !matches!(value.kind(), ValueKind::None) && value.try_iter().is_ok());
    environment
}

/// Why rendering failed.
pub(super) fn told(error: &Error) -> RenderError {
    match error.detail().and_then(|detail| detail.strip_prefix(REFUSAL)) {
        Some(message) => RenderError::Refused(message.to_owned()),
        None => RenderError::Failed(error.to_string()),
    }
}

/// The template without the marks of what an assistant says, which only training needs.
pub(super) fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        let Some((inner, behind)) = tag.split_once("%}") else {
            rest = tag;
            break;
        };
        match inner.trim_matches(['-', '+']).trim() {
            word @ "generation" => out.push_str(&inner.replace(word, "if true")),
            word @ "endgeneration" => out.push_str(&inner.replace(word, "endif")),
            _ => out.push_str(inner),
        }
        out.push_str("%}");
        rest = behind;
    }
    out.push_str(rest);
    out
}

fn format(out: &mut Output<'_>, _: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&python::str(value)),
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "the text could not be written"))
}

/// The time as Python's `datetime.now().strftime` writes it, in UTC; `SOURCE_DATE_EPOCH`, seconds since 1970, stands in its place.
fn strftime_now(format: &str) -> Result<String, Error> {
    let pinned = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let now = match pinned {
        Some(seconds) => chrono::DateTime::from_timestamp(seconds, 0),
        None => Some(chrono::Utc::now()),
    };
    let mut out = String::new();
    match now.map(|now| write!(out, "{}", now.format(format))) {
        Some(Ok(())) => Ok(out),
        _ => Err(Error::new(ErrorKind::InvalidOperation, format!("strftime_now cannot write {format:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_training_are_passed_over() {
        let source = "a{%- generation -%}b{% endgeneration %}{%if x%}c{% endif %}{{ '{% generation %}' }}";
        let without = without_generation_blocks(source);
        assert!(without.starts_with("a{%- if true -%}b{% endif %}{%if x%}c{% endif %}"), "{without}");
        assert_eq!(without_generation_blocks("a {% open"), "a {% open");
    }
}
