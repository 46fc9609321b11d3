// SPDX-License-Identifier: Apache-2.0
//! Finds the end of a JSON object or array by matching its brackets.

/// Counts brackets outside strings, incrementally. Does not validate the JSON.
#[derive(Debug, Clone, Default)]
pub(super) struct BracketMatcher {
    /// The number of bytes that are already read.
    position: usize,
    /// The number of open brackets.
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl BracketMatcher {
    /// A matcher of a text that begins inside `depth` brackets, and inside a string if `in_string`.
    pub(super) fn new(depth: usize, in_string: bool) -> Self {
        Self { depth, in_string, ..Self::default() }
    }

    /// Whether the text so far ends within a string.
    pub(super) fn in_string(&self) -> bool {
        self.in_string
    }

    /// Continues in `text`, which begins where the matcher began and may have grown since the last call. Returns the length of the text up
    /// to the bracket that closes the first one, once it is found.
    pub(super) fn read(&mut self, text: &str) -> Option<usize> {
        for byte in &text.as_bytes()[self.position..] {
            self.position += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = self.in_string,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            if self.depth == 0 {
                return Some(self.position);
            }
        }
        None
    }
}
