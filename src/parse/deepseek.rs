//! `<｜tool▁calls▁begin｜>`, calls, `<｜tool▁calls▁end｜>`: V3 and R1 write the JSON of a call in a fence, V3.1 without.

use super::ToolCall;
use super::buffer::find;
use super::loads::loads;
use super::space::strip;

/// The marker at the start of a section.
pub(super) const BEGIN: &str = "<｜tool▁calls▁begin｜>";
/// The marker at its end.
pub(super) const END: &str = "<｜tool▁calls▁end｜>";

const CALL: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";

/// Reads the calls of one section and ignores text between them.
pub(super) fn read(section: &str) -> Vec<ToolCall> {
    let (mut calls, mut rest) = (Vec::new(), section);
    while let Some(at) = find(rest, CALL) {
        let Some((body, behind)) = rest[at + CALL.len()..].split_once(CALL_END) else { break };
        calls.push(call(strip(body)));
        rest = behind;
    }
    calls
}

fn call(body: &str) -> ToolCall {
    let Some((head, rest)) = body.split_once(SEPARATOR) else { return ToolCall::unread("", body) };
    let (head, rest) = (strip(head), strip(rest));
    // in V3 the type comes first, and the only type is `function`; JSON of arguments begins with a brace, a name does not
    let (name, raw) = if head == "function" && !rest.starts_with('{') { fenced(rest) } else { (head, Some(rest)) };
    let Some(raw) = raw.filter(|_| !name.is_empty()) else { return ToolCall::unread(name, body) };
    match loads(raw) {
        Ok(arguments) => ToolCall::read(name, Some(&arguments)),
        Err(_) => ToolCall::unread(name, raw),
    }
}

/// The name on the first line, and the JSON in the fence below it.
fn fenced(text: &str) -> (&str, Option<&str>) {
    let (name, block) = text.split_once('\n').unwrap_or((text, ""));
    (strip(name), strip(block).strip_prefix("```json").and_then(|block| block.strip_suffix("```")).map(strip))
}
