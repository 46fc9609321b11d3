//! `<|tool_calls_section_begin|>`, calls with an id such as `functions.NAME:0`, `<|tool_calls_section_end|>`.

use super::ToolCall;
use super::buffer::find;
use super::loads::loads;
use super::space::{strip, strip_start};
use crate::json::python::is_space;

/// The marker at the start of a section.
pub(super) const BEGIN: &str = "<|tool_calls_section_begin|>";
/// The marker at the end of a section.
pub(super) const END: &str = "<|tool_calls_section_end|>";

/// Parses the calls of one section. Ignores text between them.
pub(super) fn read(section: &str) -> Vec<ToolCall> {
    let (mut calls, mut rest) = (Vec::new(), section);
    while let Some(at) = find(rest, "<|tool_call_begin|>") {
        rest = &rest[at + "<|tool_call_begin|>".len()..];
        if let Some((id, arguments)) = id_and_rest(rest) {
            let Some((raw, after)) = arguments.split_once("<|tool_call_end|>") else { break };
            calls.push(call(id, strip(raw)));
            rest = after;
        }
    }
    calls
}

/// The id at the beginning of a call, and the text after the marker that follows the id.
fn id_and_rest(text: &str) -> Option<(&str, &str)> {
    let text = strip_start(text);
    let length = text.find(|c| c == '<' || is_space(c))?;
    let (id, rest) = text.split_at(length);
    let arguments = strip_start(rest).strip_prefix("<|tool_call_argument_begin|>")?;
    (length > 0).then_some((id, arguments))
}

fn call(id: &str, raw: &str) -> ToolCall {
    let call = match loads(raw) {
        Ok(arguments) => ToolCall::valid(name(id), Some(&arguments)),
        Err(_) => ToolCall::invalid(name(id), raw),
    };
    ToolCall { id: Some(id.to_owned()), ..call }
}

/// The name in an id such as `functions.NAME:0`, or the whole id if it has another form.
fn name(id: &str) -> &str {
    let with_index = id
        .rsplit_once(':')
        .filter(|(_, digits)| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()));
    let without_index = with_index.map_or(id, |(name, _)| name);
    let is_valid =
        |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'));
    without_index.strip_prefix("functions.").filter(is_valid).or(Some(without_index).filter(is_valid)).unwrap_or(id)
}
