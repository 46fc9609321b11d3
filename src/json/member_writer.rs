//! Writes the members of an object.

/// Writes members of a JSON object and the commas between them.
#[derive(Debug)]
pub struct MemberWriter<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> MemberWriter<'a> {
    /// A writer after the opening brace.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: true }
    }

    /// A writer after other members of the object.
    pub fn after_members(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: false }
    }

    /// Writes a member. `value` is JSON text.
    pub fn put(&mut self, name: &str, value: &[u8]) {
        if !std::mem::replace(&mut self.first, false) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out.extend_from_slice(value);
    }
}
