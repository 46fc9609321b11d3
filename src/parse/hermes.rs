//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::ToolCall;
use super::space::strip;

/// Reads the body of one block. Arguments that are not an object, as JSON within a string, count as none.
pub(super) fn read(body: &str) -> Vec<ToolCall> {
    vec![super::named::read(strip(body), &["arguments"])]
}
