//! A string in a JSON text.

use std::borrow::Cow;

/// The escaped bytes of a string, without the quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    /// The raw bytes.
    pub raw: &'a [u8],
    /// Whether they contain a backslash.
    pub escaped: bool,
}

impl<'a> Text<'a> {
    /// Whether the unescaped string is `name`. Python accepts keys with escapes too.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        if self.escaped { self.decode() == name } else { self.raw == name.as_bytes() }
    }

    /// Whether the unescaped string begins with `prefix`.
    #[must_use]
    pub fn starts_with(&self, prefix: &str) -> bool {
        if self.escaped { self.decode().starts_with(prefix) } else { self.raw.starts_with(prefix.as_bytes()) }
    }

    /// The unescaped string. Lone surrogates and invalid UTF-8 become replacement characters.
    #[must_use]
    pub fn decode(&self) -> Cow<'a, str> {
        if !self.escaped {
            return String::from_utf8_lossy(self.raw);
        }
        Cow::Owned(self.unescaped())
    }

    /// Whether every escape is valid in JSON, including halves of surrogate pairs. Parsers disagree about other escapes.
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

    /// Unescapes the string. Half of a surrogate pair or an invalid sequence affects only itself: Python reads the text around it.
    fn unescaped(&self) -> String {
        let (mut text, mut rest) = (Vec::with_capacity(self.raw.len()), self.raw);
        while let Some(at) = backslash(rest) {
            let (plain, escape) = rest.split_at(at);
            text.extend_from_slice(plain);
            let (byte, behind) = match escape {
                [_, b'b', behind @ ..] => (b'\x08', behind),
                [_, b'f', behind @ ..] => (b'\x0c', behind),
                [_, b'n', behind @ ..] => (b'\n', behind),
                [_, b'r', behind @ ..] => (b'\r', behind),
                [_, b't', behind @ ..] => (b'\t', behind),
                [_, byte @ (b'"' | b'\\' | b'/'), behind @ ..] => (*byte, behind),
                _ => match character(escape) {
                    Some((character, behind)) => {
                        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                        rest = behind;
                        continue;
                    }
                    // not an escape: the character is taken literally
                    None => (b'\\', &escape[1..]),
                },
            };
            text.push(byte);
            rest = behind;
        }
        text.extend_from_slice(rest);
        String::from_utf8(text).unwrap_or_else(|torn| String::from_utf8_lossy(torn.as_bytes()).into_owned())
    }
}

/// The position of the next backslash. Text with lines and quotes has many, so this is faster than `memchr`, which starts slowly.
fn backslash(bytes: &[u8]) -> Option<usize> {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    const SOUGHT: u64 = EACH * b'\\' as u64;
    let mut words = bytes.chunks_exact(8);
    for (at, word) in words.by_ref().enumerate() {
        let differs = u64::from_le_bytes(word.try_into().unwrap_or_default()) ^ SOUGHT;
        // the high bit of the first byte that is zero, and perhaps of some after it
        let zero = differs.wrapping_sub(EACH) & !differs & (EACH << 7);
        if zero != 0 {
            return Some(8 * at + zero.trailing_zeros() as usize / 8);
        }
    }
    let rest = words.remainder();
    rest.iter().position(|byte| *byte == b'\\').map(|at| bytes.len() - rest.len() + at)
}

/// The character whose escapes `bytes` begin with, and the rest.
fn character(bytes: &[u8]) -> Option<(char, &[u8])> {
    let (unit, behind) = escaped_unit(bytes)?;
    if (0xd800..0xdc00).contains(&unit)
        && let Some((low @ 0xdc00..0xe000, behind)) = escaped_unit(behind)
    {
        let scalar = 0x1_0000 + ((u32::from(unit) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
        return Some((char::from_u32(scalar)?, behind));
    }
    Some((char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER), behind))
}

/// The UTF-16 unit whose escape `bytes` begin with, and the rest.
fn escaped_unit(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, behind) = bytes.strip_prefix(b"\\u")?.split_first_chunk::<4>()?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    Some((u16::from_str_radix(digits, 16).ok()?, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_compared_unescaped() {
        let key = |raw: &'static str| Text { raw: raw.as_bytes(), escaped: raw.contains('\\') };
        for raw in ["output_top", "output_", r"out\u0070ut_top", r"\u006futput_"] {
            assert!(key(raw).starts_with("output_"), "{raw}");
        }
        for raw in ["output", "input_", r"out\u0071ut_", ""] {
            assert!(!key(raw).starts_with("output_"), "{raw}");
        }
    }

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
    fn invalid_parts_leave_the_rest_decoded() {
        assert_eq!(decoded(br"\u0061pi_key\ud800"), "api_key\u{fffd}");
        assert_eq!(decoded(br"\ud83d\ude00\ud83d"), "\u{1f600}\u{fffd}");
        assert_eq!(decoded(b"\xffa\\n\\\"\\u0062"), "\u{fffd}a\n\"b");
        assert_eq!(decoded(br"\q\u12\n\ud800\b\f\r\t\/\\"), "\\q\\u12\n\u{fffd}\x08\x0c\r\t/\\");
        assert_eq!(decoded(br"\udc00\"), "\u{fffd}\\");
    }

    proptest::proptest! {
        #[test]
        fn any_escaping_decodes_to_the_same_text(text: String) {
            let plain = serde_json::to_string(&text).unwrap();
            let ascii: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            for raw in [&plain.as_bytes()[1..plain.len() - 1], ascii.as_bytes()] {
                proptest::prop_assert_eq!(&decoded(raw), &text);
            }
        }

        #[test]
        fn strings_decode_as_in_serde_json(raw in "([ -~]|\\\\[bfnrt\"/\\\\]|\\\\u[d0][8-9c-f0][0-9a-f]{2}|é|😀){0,12}") {
            if let Ok(text) = serde_json::from_str::<String>(&format!("\"{raw}\"")) {
                proptest::prop_assert_eq!(decoded(raw.as_bytes()), text);
            }
        }
    }
}
