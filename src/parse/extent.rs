//! Finds the end of a JSON object or array by its brackets.

/// Counts brackets outside of strings. Does not validate the JSON.
#[derive(Debug, Clone, Default)]
pub(super) struct Extent {
    read: usize,
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Extent {
    /// Continues in `text`, which begins with the bracket and may have grown since the last call. Returns the length of the object or
    /// array in bytes once it is closed.
    pub(super) fn read(&mut self, text: &str) -> Option<usize> {
        for byte in &text.as_bytes()[self.read..] {
            self.read += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = self.quoted,
                b'"' => self.quoted = !self.quoted,
                _ if self.quoted => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            if self.depth == 0 {
                return Some(self.read);
            }
        }
        None
    }
}
