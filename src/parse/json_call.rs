// SPDX-License-Identifier: Apache-2.0
//! Parses calls that are JSON objects: `{"name": …, "arguments": {…}}`.

use super::ToolCall;
use super::buffer::find;
use super::loads::loads;
use super::value::{Dict, PythonValue};
use crate::json::python::strip_start;

/// The members that may be the arguments of a call. SGLang takes the first one whose value Python counts as true.
pub(super) const ARGUMENTS: [&str; 2] = ["parameters", "arguments"];

/// Parses a call.
pub(super) fn parse_call(raw: &str) -> ToolCall {
    let Ok(PythonValue::Dict(call)) = loads(raw) else { return ToolCall::invalid(&find_name(raw), raw) };
    match call.get("name").and_then(PythonValue::as_text) {
        Some(name) if !name.is_empty() => ToolCall::with_arguments(name, arguments(&call)),
        _ => ToolCall::invalid(&find_name(raw), raw),
    }
}

/// The value of the first of [`ARGUMENTS`] that is true in Python, or else of the first that exists.
pub(super) fn arguments(call: &Dict) -> Option<&PythonValue> {
    let mut values = ARGUMENTS.iter().filter_map(|key| call.get(key));
    let first = values.next()?;
    Some([first].into_iter().chain(values).find(|value| value.is_true()).unwrap_or(first))
}

/// Parses a JSON list of calls, or one call. Returns `None` for other text, and for a list in which a value is not a call.
#[must_use]
pub fn parse_calls(text: &str) -> Option<Vec<ToolCall>> {
    let calls = match loads(text) {
        Ok(PythonValue::List(calls)) => calls,
        Ok(call) => vec![call],
        Err(_) => return None,
    };
    let call = |value: &PythonValue| {
        let PythonValue::Dict(call) = value else { return None };
        let name = call.get("name").and_then(PythonValue::as_text).filter(|name| !name.is_empty())?;
        Some(ToolCall::with_arguments(name, arguments(call)))
    };
    calls.iter().map(call).collect::<Option<Vec<ToolCall>>>().filter(|calls| !calls.is_empty())
}

/// The first non-empty name in the text of an invalid call; empty without a name.
fn find_name(raw: &str) -> String {
    let mut rest = raw;
    while let Some(at) = find(rest, "\"name\"") {
        rest = &rest[at + "\"name\"".len()..];
        let value = strip_start(rest).strip_prefix(':').map(strip_start);
        let quoted = value.and_then(|value| value.strip_prefix('"')?.split_once('"'));
        if let Some((name, _)) = quoted.filter(|(name, _)| !name.is_empty()) {
            return name.to_owned();
        }
    }
    String::new()
}
