//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>`.

use super::ToolCall;
use super::buffer::find;
use super::loads::loose;
use super::space::strip;
use super::value::{Dict, PythonValue, escaped};

/// Reads the body of one block: its first function.
pub(super) fn read(body: &str) -> Vec<ToolCall> {
    let body = strip(body);
    let Some((name, inner, _)) = element(body, "<function=", "</function>") else {
        return vec![ToolCall::unread("", body)];
    };
    if strip(name).is_empty() {
        return vec![ToolCall::unread("", body)];
    }
    let mut arguments = Dict::default();
    let mut rest = inner;
    while let Some((key, value, behind)) = element(rest, "<parameter=", "</parameter>") {
        if !strip(key).is_empty() {
            arguments.set(escaped(strip(key)), loose(strip(value)));
        }
        rest = behind;
    }
    vec![ToolCall::read(strip(name), Some(&PythonValue::Dict(arguments)))]
}

/// The first element that begins with `open`: its name up to `>`, its text up to `close`, and the text after `close`.
fn element<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let mut rest = text;
    loop {
        rest = &rest[find(rest, open)? + open.len()..];
        let (name, behind) = rest.split_once('>')?;
        // without a name it is not an element; the next one may be
        if !name.is_empty() {
            let (inner, behind) = behind.split_once(close)?;
            return Some((name, inner, behind));
        }
    }
}
