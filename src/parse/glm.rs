//! `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>`.

use super::ToolCall;
use super::loads::loads_or_text;
use super::space::{strip, strip_start};
use super::value::{Dict, PythonValue, escape};

/// Parses the body of one block.
pub(super) fn read(body: &str) -> Vec<ToolCall> {
    let body = strip(body);
    let name = strip(body.split("<arg_key>").next().unwrap_or_default());
    if name.is_empty() {
        return vec![ToolCall::invalid("", body)];
    }
    let mut arguments = Dict::default();
    let mut rest = body;
    while let Some((key, value, after)) = pair(rest) {
        arguments.set(escape(strip(key)), loads_or_text(strip(value)));
        rest = after;
    }
    vec![ToolCall::valid(name, Some(&PythonValue::Dict(arguments)))]
}

/// The first key with a value, its value, and the text after both. A key ends at the end tag that a value follows; an end tag without a
/// value is part of the key.
fn pair(text: &str) -> Option<(&str, &str, &str)> {
    let (_, text) = text.split_once("<arg_key>")?;
    for (at, end) in text.match_indices("</arg_key>") {
        if let Some(value) = strip_start(&text[at + end.len()..]).strip_prefix("<arg_value>") {
            let (value, after) = value.split_once("</arg_value>")?;
            return Some((&text[..at], value, after));
        }
    }
    None
}
