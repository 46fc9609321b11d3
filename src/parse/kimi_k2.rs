// SPDX-License-Identifier: Apache-2.0
//! `<|tool_calls_section_begin|>`, calls with an id such as `functions.NAME:0`, `<|tool_calls_section_end|>`.

use super::ToolCall;
use super::loads::loads;
use super::section::{CallHead, SectionFormat};
use crate::json::python::{is_space, strip, strip_start};

const CALL: &str = "<|tool_call_begin|>";
const SEPARATOR: &str = "<|tool_call_argument_begin|>";

pub(super) const SECTION: SectionFormat = SectionFormat {
    start: "<|tool_calls_section_begin|>",
    end: "<|tool_calls_section_end|>",
    call_start: CALL,
    call_end: "<|tool_call_end|>",
    separator: SEPARATOR,
    parse_head,
    parse_call,
};

/// The markers that may have tokens.
pub(super) const MARKERS: [&str; 5] = SECTION.markers();

fn parse_head(before: &str, after: &str) -> CallHead {
    let Some(id) = id(before) else { return CallHead::Text };
    let arguments = strip_start(after);
    if !arguments.starts_with('{') {
        return CallHead::Whole;
    }
    CallHead::Start {
        name: name(id).to_owned(),
        id: Some(id.to_owned()),
        arguments: after.len() - arguments.len(),
        tail: "",
    }
}

fn parse_call(body: &str) -> Option<ToolCall> {
    let (before, arguments) = body.split_once(SEPARATOR)?;
    let (id, raw) = (id(before)?, strip(arguments));
    let call = match loads(raw) {
        Ok(arguments) => ToolCall::with_arguments(name(id), Some(&arguments)),
        Err(_) => ToolCall::invalid(name(id), raw),
    };
    Some(ToolCall { id: Some(id.to_owned()), ..call })
}

/// The id in the text before the separator. `None` if the text is not only an id.
fn id(before: &str) -> Option<&str> {
    // a start marker without a separator is text
    let id = strip(before.rsplit(CALL).next()?);
    (!id.is_empty() && !id.contains(|c| c == '<' || is_space(c))).then_some(id)
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
