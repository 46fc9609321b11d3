//! Parses calls that are JSON objects: `{"name": …, "arguments": {…}}`.

use super::ToolCall;
use super::buffer::find;
use super::loads::loads;
use super::space::strip_start;
use super::value::PythonValue;

/// The members that may be the arguments of a call, the usual one first.
pub(super) const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];

/// Parses a call. Its arguments are the value of the first of `keys` that exists.
pub(super) fn parse_call(raw: &str, keys: &[&str]) -> ToolCall {
    let Ok(PythonValue::Dict(call)) = loads(raw) else { return ToolCall::invalid(&find_name(raw), raw) };
    match call.get("name").and_then(PythonValue::as_text) {
        Some(name) if !name.is_empty() => ToolCall::with_arguments(name, keys.iter().find_map(|key| call.get(key))),
        _ => ToolCall::invalid(&find_name(raw), raw),
    }
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
