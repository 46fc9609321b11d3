//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>`.

use super::ToolCall;
use super::buffer::find;
use super::loads::loads_or_text;
use super::space::strip;
use super::value::{Dict, PythonValue, escape};

/// Parses the first function in the body of one block.
pub(super) fn read(body: &str) -> Vec<ToolCall> {
    let body = strip(body);
    let Some((name, inner, _)) = element(body, "<function=", "</function>") else {
        return vec![ToolCall::invalid("", body)];
    };
    if strip(name).is_empty() {
        return vec![ToolCall::invalid("", body)];
    }
    let mut arguments = Dict::default();
    let mut rest = inner;
    while let Some((key, value, after)) = element(rest, "<parameter=", "</parameter>") {
        if !strip(key).is_empty() {
            arguments.set(escape(strip(key)), loads_or_text(strip(value)));
        }
        rest = after;
    }
    vec![ToolCall::valid(strip(name), Some(&PythonValue::Dict(arguments)))]
}

/// The first element that begins with `open`: its name up to `>`, its text up to `close`, and the text after `close`.
fn element<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let mut rest = text;
    loop {
        rest = &rest[find(rest, open)? + open.len()..];
        let (name, after) = rest.split_once('>')?;
        // an opening tag without a name is text; a later one may have a name
        if !name.is_empty() {
            let (inner, after) = after.split_once(close)?;
            return Some((name, inner, after));
        }
    }
}
