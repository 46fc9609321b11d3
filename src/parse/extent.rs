//! Where a JSON object or array ends, by its brackets.

/// Counts brackets outside of strings. Whether the text is JSON is for the reader of it to say.
#[derive(Debug, Clone, Default)]
pub(super) struct Extent {
    read: usize,
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Extent {
    /// Reads on in `text`, which begins with the bracket and has grown since the last time; its length in bytes once it has closed.
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
