//! `<｜tool▁calls▁begin｜>`, calls, `<｜tool▁calls▁end｜>`. V3 and R1 write the JSON of a call in a code fence, V3.1 without one.

use super::ToolCall;
use super::buffer::find;
use super::loads::loads;
use super::space::strip;

/// The marker at the start of a section.
pub(super) const BEGIN: &str = "<｜tool▁calls▁begin｜>";
/// The marker at the end of a section.
pub(super) const END: &str = "<｜tool▁calls▁end｜>";

const CALL: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";

/// Parses the calls of one section. Ignores text between them.
pub(super) fn read(section: &str) -> Vec<ToolCall> {
    let (mut calls, mut rest) = (Vec::new(), section);
    while let Some(at) = find(rest, CALL) {
        let Some((body, after)) = rest[at + CALL.len()..].split_once(CALL_END) else { break };
        calls.push(call(strip(body)));
        rest = after;
    }
    calls
}

fn call(body: &str) -> ToolCall {
    let Some((head, rest)) = body.split_once(SEPARATOR) else { return ToolCall::invalid("", body) };
    let (head, rest) = (strip(head), strip(rest));
    // before the separator, V3 writes the type, always `function`, and V3.1 the name; after it, V3 writes the name, and V3.1 the
    // arguments, which begin with a brace
    let (name, raw) =
        if head == "function" && !rest.starts_with('{') { name_and_code_fence(rest) } else { (head, Some(rest)) };
    let Some(raw) = raw.filter(|_| !name.is_empty()) else { return ToolCall::invalid(name, body) };
    match loads(raw) {
        Ok(arguments) => ToolCall::valid(name, Some(&arguments)),
        Err(_) => ToolCall::invalid(name, raw),
    }
}

/// The name on the first line, and the JSON in the code fence after it.
fn name_and_code_fence(text: &str) -> (&str, Option<&str>) {
    let (name, block) = text.split_once('\n').unwrap_or((text, ""));
    (strip(name), strip(block).strip_prefix("```json").and_then(|block| block.strip_suffix("```")).map(strip))
}
