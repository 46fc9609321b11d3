//! Blocks of calls between a start marker and an end marker.

use super::ToolCall;
use super::buffer::length_before;
use super::syntax::Step;

/// Finds the end marker of a block and parses the text before it.
#[derive(Debug, Clone)]
pub(super) struct FencedBlock {
    /// The marker at the start of a block.
    pub(super) start: &'static str,
    end: &'static str,
    /// Parses the text between the markers.
    parse_body: fn(&str) -> Vec<ToolCall>,
    /// The block has no end marker before this byte.
    searched: usize,
}

impl FencedBlock {
    pub(super) fn new(start: &'static str, end: &'static str, parse_body: fn(&str) -> Vec<ToolCall>) -> Self {
        Self { start, end, parse_body, searched: start.len() }
    }

    pub(super) fn begin(&mut self) {
        self.searched = self.start.len();
    }

    /// Continues in `buffered`, which begins with the start marker. A block without a call is text.
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        let (length, found) = length_before(&buffered[self.searched..], self.end);
        self.searched += length;
        if !found {
            return Step::More;
        }
        let calls = (self.parse_body)(&buffered[self.start.len()..self.searched]);
        let length = self.searched + self.end.len();
        if calls.is_empty() { Step::Text(length) } else { Step::Calls(length, calls) }
    }
}
