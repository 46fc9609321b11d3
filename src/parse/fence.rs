//! A block between two markers.

use super::ToolCall;
use super::buffer::until;
use super::syntax::Step;

/// Finds the end of a block and reads its body.
#[derive(Debug, Clone)]
pub(super) struct Fence {
    /// The marker at the start of a block.
    pub(super) start: &'static str,
    end: &'static str,
    body: fn(&str) -> Vec<ToolCall>,
    /// No end marker begins before this byte.
    searched: usize,
}

impl Fence {
    pub(super) fn new(start: &'static str, end: &'static str, body: fn(&str) -> Vec<ToolCall>) -> Self {
        Self { start, end, body, searched: start.len() }
    }

    pub(super) fn begin(&mut self) {
        self.searched = self.start.len();
    }

    /// Reads a block. A block without a call is text.
    pub(super) fn read(&mut self, held: &str) -> Step {
        let (length, found) = until(&held[self.searched..], self.end);
        self.searched += length;
        if !found {
            return Step::More;
        }
        let calls = (self.body)(&held[self.start.len()..self.searched]);
        let length = self.searched + self.end.len();
        if calls.is_empty() { Step::Text(length) } else { Step::Calls(length, calls) }
    }
}
