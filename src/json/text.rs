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
            Err(_) => Cow::Owned(self.decode_loosely()),
        }
    }

    /// Whether every escape is one that JSON knows, halves of surrogate pairs included. Readers differ in what they take any other for.
    #[must_use]
    pub fn is_well_escaped(&self) -> bool {
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            rest = match &rest[at..] {
                [b'\\', b'b' | b'f' | b'n' | b'r' | b't' | b'"' | b'\\' | b'/', behind @ ..] => behind,
                escape => match escaped_unit(escape) {
                    Some((_, behind)) => behind,
                    None => return false,
                },
            };
        }
        true
    }

    /// What is no text to `serde_json`, a half of a surrogate pair or a torn sequence, costs only itself: Python reads what is around it.
    fn decode_loosely(&self) -> String {
        let (mut units, mut text, mut rest) = (Vec::new(), String::new(), self.raw);
        while !rest.is_empty() {
            if let Some((unit, behind)) = escaped_unit(rest) {
                units.push(unit);
                rest = behind;
                continue;
            }
            text.push_str(&String::from_utf16_lossy(&std::mem::take(&mut units)));
            let (plain, behind) = match rest {
                [b'\\', b'b', behind @ ..] => (&b"\x08"[..], behind),
                [b'\\', b'f', behind @ ..] => (&b"\x0c"[..], behind),
                [b'\\', b'n', behind @ ..] => (&b"\n"[..], behind),
                [b'\\', b'r', behind @ ..] => (&b"\r"[..], behind),
                [b'\\', b't', behind @ ..] => (&b"\t"[..], behind),
                [b'\\', b'"' | b'\\' | b'/', behind @ ..] => (&rest[1..2], behind),
                // no escape is known by this name: it stands for itself
                _ => rest.split_at(1 + memchr::memchr(b'\\', &rest[1..]).unwrap_or(rest.len() - 1)),
            };
            text.push_str(&String::from_utf8_lossy(plain));
            rest = behind;
        }
        text.push_str(&String::from_utf16_lossy(&units));
        text
    }
}

/// The UTF-16 unit that `bytes` begin with the escape of, and what follows it.
fn escaped_unit(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, behind) = bytes.strip_prefix(b"\\u")?.split_first_chunk::<4>()?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    Some((u16::from_str_radix(digits, 16).ok()?, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(raw: &[u8]) -> String {
        Text { raw, escaped: raw.contains(&b'\\') }.decode().into_owned()
    }

    #[test]
    fn escapes_are_those_of_json() {
        let sound = |raw: &[u8]| Text { raw, escaped: true }.is_well_escaped();
        assert!(sound(br#"a\\b\"\/\b\f\n\r\t\u00e9\ud800"#) && sound(b"") && sound(b"\xff"));
        for raw in [&br"\p"[..], br"\", br"\u12", br"\ug000", br"\ud80-0"] {
            assert!(!sound(raw), "{}", raw.escape_ascii());
        }
    }

    #[test]
    fn what_is_no_text_costs_only_itself() {
        assert_eq!(decoded(br"\u0061pi_key\ud800"), "api_key\u{fffd}");
        assert_eq!(decoded(br"\ud83d\ude00\ud83d"), "\u{1f600}\u{fffd}");
        assert_eq!(decoded(b"\xffa\\n\\\"\\u0062"), "\u{fffd}a\n\"b");
        assert_eq!(decoded(br"\q\u12\n\ud800\b\f\r\t\/\\"), "\\q\\u12\n\u{fffd}\x08\x0c\r\t/\\");
        assert_eq!(decoded(br"\udc00\"), "\u{fffd}\\");
    }
}
