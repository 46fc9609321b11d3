//! A string as it stands in a JSON text.

use std::borrow::Cow;

/// A string's bytes between its quotes, still escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    /// The raw bytes.
    pub raw: &'a [u8],
    /// Whether a backslash is among them.
    pub escaped: bool,
}

impl<'a> Text<'a> {
    /// Whether the string, unescaped, is `name`. Keys may be spelled with escapes; Python reads them all the same.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        if self.escaped { self.decode() == name } else { self.raw == name.as_bytes() }
    }

    /// The string as it reads, escapes resolved. Lone surrogates and invalid UTF-8 become replacement characters.
    #[must_use]
    pub fn decode(&self) -> Cow<'a, str> {
        if !self.escaped {
            return String::from_utf8_lossy(self.raw);
        }
        let mut quoted = Vec::with_capacity(self.raw.len() + 2);
        quoted.push(b'"');
        quoted.extend_from_slice(self.raw);
        quoted.push(b'"');
        match serde_json::from_slice::<String>(&quoted) {
            Ok(text) => Cow::Owned(text),
            Err(_) => Cow::Owned(String::from_utf8_lossy(self.raw).into_owned()),
        }
    }
}
