//! Calls as JSON objects: `{"name": …, "arguments": {…}}`.

use super::ToolCall;
use super::buffer::find;
use super::loads::loads;
use super::space::strip_start;
use super::value::PythonValue;

/// Reads a call. Its arguments are the value of the first of `keys` that exists; if none exists or the value is not an object, it has none.
pub(super) fn read(raw: &str, keys: &[&str]) -> ToolCall {
    let Ok(PythonValue::Dict(call)) = loads(raw) else { return ToolCall::unread(&spelled(raw), raw) };
    match call.get("name").and_then(PythonValue::as_text) {
        Some(name) if !name.is_empty() => ToolCall::read(name, keys.iter().find_map(|key| call.get(key))),
        _ => ToolCall::unread(&spelled(raw), raw),
    }
}

/// The first name in the text of an invalid call; empty without a name.
fn spelled(raw: &str) -> String {
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
