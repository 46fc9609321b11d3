// SPDX-License-Identifier: Apache-2.0
//! `<｜tool▁calls▁begin｜>`, calls, `<｜tool▁calls▁end｜>`. V3 and R1 write the JSON of a call in a code fence, V3.1 without one.

use super::ToolCall;
use super::loads::loads;
use super::section::{CallHead, SectionFormat};
use crate::json::python::{strip, strip_start};

const SEPARATOR: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```json";
const FENCE_END: &str = "```";

pub(super) const SECTION: SectionFormat = SectionFormat {
    start: "<｜tool▁calls▁begin｜>",
    end: "<｜tool▁calls▁end｜>",
    call_start: "<｜tool▁call▁begin｜>",
    call_end: "<｜tool▁call▁end｜>",
    separator: SEPARATOR,
    parse_head,
    parse_call,
};

/// Whether a call is in a code fence. Before the separator, V3 writes the type, always `function`, and V3.1 the name; after it, V3 writes
/// the name, and V3.1 the arguments, which begin with a brace.
fn is_fenced(before: &str, after: &str) -> bool {
    strip(before) == "function" && !strip_start(after).starts_with('{')
}

/// The markers that may have tokens.
pub(super) const MARKERS: [&str; 5] = SECTION.markers();

fn parse_head(before: &str, after: &str) -> CallHead {
    let mut rest = after;
    let (mut name, mut tail) = (strip(before), "");
    if is_fenced(before, after) {
        let Some((line, block)) = strip_start(after).split_once('\n') else { return CallHead::Incomplete };
        let block = strip_start(block);
        let Some(json) = block.strip_prefix(FENCE) else {
            return if FENCE.starts_with(block) { CallHead::Incomplete } else { CallHead::Whole };
        };
        (rest, name, tail) = (json, strip(line), FENCE_END);
    }
    let arguments = strip_start(rest);
    if arguments.is_empty() {
        return CallHead::Incomplete;
    }
    if name.is_empty() || !arguments.starts_with('{') {
        return CallHead::Whole;
    }
    CallHead::Start { name: name.to_owned(), id: None, arguments: after.len() - arguments.len(), tail }
}

fn parse_call(body: &str) -> Option<ToolCall> {
    let body = strip(body);
    let Some((before, after)) = body.split_once(SEPARATOR) else { return Some(ToolCall::invalid("", body)) };
    let (name, raw) =
        if is_fenced(before, after) { name_and_code_fence(strip(after)) } else { (strip(before), Some(strip(after))) };
    let Some(raw) = raw.filter(|_| !name.is_empty()) else { return Some(ToolCall::invalid(name, body)) };
    Some(match loads(raw) {
        Ok(arguments) => ToolCall::with_arguments(name, Some(&arguments)),
        Err(_) => ToolCall::invalid(name, raw),
    })
}

/// The name on the first line, and the JSON in the code fence after it.
fn name_and_code_fence(text: &str) -> (&str, Option<&str>) {
    let (name, block) = text.split_once('\n').unwrap_or((text, ""));
    let json = strip(block).strip_prefix(FENCE).and_then(|block| block.strip_suffix(FENCE_END)).map(strip);
    (strip(name), json)
}
