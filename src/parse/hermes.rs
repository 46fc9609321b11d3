//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::ToolCall;
use super::space::strip;

/// Parses the body of one block. Arguments that are not an object, such as JSON in a string, count as no arguments.
pub(super) fn read(body: &str) -> Vec<ToolCall> {
    vec![super::json_call::parse_call(strip(body), &["arguments"])]
}
