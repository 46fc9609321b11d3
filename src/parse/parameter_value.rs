// SPDX-License-Identifier: Apache-2.0
//! Writes the value of a parameter while it arrives: by the type of the parameter, if the types are known. Without types, the value is the
//! JSON value of its text, or the text as a string if it is not JSON.

use super::Event;
use super::json_reader::JsonReader;
use super::loads::loads_or_text;
use super::parameter_types::ParameterType;
use super::value::escape;
use crate::json::python::{strip, strip_end, strip_start};

/// A value in a text that grows at its end. Text that is written is removed from its start. White space around a value without a type is
/// ignored.
#[derive(Debug, Clone)]
pub(super) enum ParameterValue {
    /// A value whose parameter has a type.
    Typed(TypedValue),
    /// A value without a type that has no visible character so far.
    Blank,
    /// The text so far may be JSON. It is written at its end, because more text may show that it is not JSON.
    Json {
        reader: JsonReader,
        /// The position of the reader.
        at: usize,
    },
    /// The text is not JSON. It is written as it arrives, except for this white space, which may be at the end.
    Text { white_space: String },
    /// The value belongs to no parameter.
    Ignored,
}

impl ParameterValue {
    /// The value of a parameter with this type, at its start. With `in_lines`, a line feed at each end belongs to the tags.
    pub(super) fn new(parameter: Option<ParameterType>, in_lines: bool) -> Self {
        parameter.map_or(Self::Blank, |parameter| Self::Typed(TypedValue { parameter, in_lines, in_text: false }))
    }

    /// Continues in `text`. Returns the number of bytes that are removed, and appends to `out` what is written for them.
    pub(super) fn read(&mut self, text: &str, out: &mut String) -> usize {
        match self {
            Self::Typed(value) => value.read(text, out),
            Self::Ignored => text.len(),
            Self::Blank => {
                let visible = strip_start(text);
                if visible.is_empty() {
                    return text.len();
                }
                *self = Self::Json { reader: JsonReader::new(), at: 0 };
                text.len() - visible.len() + self.read(visible, out)
            }
            Self::Json { reader, at } => {
                if may_be_json(reader, at, text) {
                    return 0;
                }
                *self = Self::Text { white_space: String::new() };
                out.push('"');
                self.read(text, out)
            }
            Self::Text { white_space } => {
                let visible = strip_end(text);
                if !visible.is_empty() {
                    out.push_str(&escape(&std::mem::take(white_space)));
                    out.push_str(&escape(visible));
                }
                white_space.push_str(&text[visible.len()..]);
                text.len()
            }
        }
    }

    /// Ends the value. `text` is the text that is not removed.
    pub(super) fn end(self, text: &str, out: &mut String) {
        match self {
            Self::Typed(value) => value.end(text, out),
            Self::Ignored => {}
            Self::Blank => out.push_str("\"\""),
            Self::Json { .. } => out.push_str(&loads_or_text(strip_end(text)).dumps()),
            Self::Text { .. } => out.push('"'),
        }
    }

    /// Ends a value that is cut off after `text`. It is written as far as it was received.
    pub(super) fn cut_off(mut self, text: &str, out: &mut String) {
        let rest = &text[self.read(text, out)..];
        match self {
            Self::Json { .. } => out.push_str(strip_end(rest)),
            Self::Typed(TypedValue { in_text: false, .. }) => out.push_str(strip(rest)),
            _ => {}
        }
    }

    /// The last events of a call whose last value is cut off after `text`.
    pub(super) fn end_call(self, text: &str) -> Vec<Event> {
        let mut written = String::new();
        self.cut_off(text, &mut written);
        Event::arguments(written).into_iter().chain([Event::CallEnd { error: true }]).collect()
    }
}

/// A value whose parameter has a type. A text is written as it arrives, other values at their end.
#[derive(Debug, Clone)]
pub(super) struct TypedValue {
    parameter: ParameterType,
    /// The first and the last line feed belong to the tags.
    in_lines: bool,
    /// The value is a text of which the opening quote is written.
    in_text: bool,
}

impl TypedValue {
    /// Like [`ParameterValue::read`].
    fn read(&mut self, text: &str, out: &mut String) -> usize {
        if self.in_text {
            let written = self.before_last_line_feed(text);
            out.push_str(&escape(written));
            return written.len();
        }
        let value = self.after_first_line_feed(text);
        if !self.parameter.is_text() || value.is_empty() || self.may_be_null(value) {
            return 0;
        }
        self.in_text = true;
        out.push('"');
        text.len() - value.len() + self.read(value, out)
    }

    /// Like [`ParameterValue::end`].
    fn end(self, text: &str, out: &mut String) {
        if self.in_text {
            out.push_str(&escape(self.before_last_line_feed(text)));
            out.push('"');
        } else {
            let value = self.before_last_line_feed(self.after_first_line_feed(text));
            out.push_str(&self.parameter.read(value).dumps());
        }
    }

    fn after_first_line_feed<'a>(&self, text: &'a str) -> &'a str {
        text.strip_prefix('\n').filter(|_| self.in_lines).unwrap_or(text)
    }

    fn before_last_line_feed<'a>(&self, text: &'a str) -> &'a str {
        text.strip_suffix('\n').filter(|_| self.in_lines).unwrap_or(text)
    }

    /// Whether `value` is the beginning of `null`.
    fn may_be_null(&self, value: &str) -> bool {
        let value = self.before_last_line_feed(value);
        let beginning = "null".get(..value.len());
        self.parameter != ParameterType::Text && beginning.is_some_and(|null| null.eq_ignore_ascii_case(value))
    }
}

/// The separator, unless the parameter is the first one, and the key. Sets `has_parameter`.
pub(super) fn write_key(key: &str, has_parameter: &mut bool) -> String {
    let separator = if std::mem::replace(has_parameter, true) { ", " } else { "" };
    format!("{separator}\"{}\": ", escape(key))
}

/// Whether `text` may be the beginning of a JSON value. `at` is the length of the text that is already read.
fn may_be_json(reader: &mut JsonReader, at: &mut usize, text: &str) -> bool {
    let mut written = String::new();
    while !reader.is_complete() {
        let Some((_, length)) = reader.next(&text[*at..], &mut written) else { return reader.error().is_none() };
        *at += length;
        written.clear();
    }
    let rest = strip_start(&text[*at..]);
    *at = text.len() - rest.len();
    rest.is_empty()
}
