// SPDX-License-Identifier: Apache-2.0
//! A string in a JSON text, with its escapes.

use std::borrow::Cow;

/// The escaped bytes of a string, without the quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    /// The bytes as they are in the JSON text.
    pub raw: &'a [u8],
    /// `raw` contains a backslash.
    pub escaped: bool,
}

impl<'a> Text<'a> {
    /// Whether the unescaped string equals `name`. Python too accepts escapes in keys.
    #[inline]
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        if self.escaped { self.decode() == name } else { self.raw == name.as_bytes() }
    }

    /// Whether the unescaped string begins with `prefix`.
    #[must_use]
    pub fn starts_with(&self, prefix: &str) -> bool {
        if self.escaped { self.decode().starts_with(prefix) } else { self.raw.starts_with(prefix.as_bytes()) }
    }

    /// The unescaped string. Lone surrogates and invalid UTF-8 become U+FFFD.
    #[must_use]
    pub fn decode(&self) -> Cow<'a, str> {
        if !self.escaped {
            // `from_utf8_lossy` takes longer for text that is valid
            return std::str::from_utf8(self.raw).map_or_else(|_| String::from_utf8_lossy(self.raw), Cow::Borrowed);
        }
        Cow::Owned(self.unescaped())
    }

    /// Whether every escape is valid in JSON, including halves of surrogate pairs. Parsers disagree about other escapes.
    #[must_use]
    pub fn is_well_escaped(&self) -> bool {
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            rest = match &rest[at..] {
                [b'\\', b'b' | b'f' | b'n' | b'r' | b't' | b'"' | b'\\' | b'/', after @ ..] => after,
                escape => match utf16_escape(escape) {
                    Some((_, after)) => after,
                    None => return false,
                },
            };
        }
        true
    }

    /// Unescapes the string. A lone surrogate or an invalid sequence does not affect the text around it: Python too reads that text.
    fn unescaped(&self) -> String {
        let (mut text, mut rest) = (Vec::with_capacity(self.raw.len()), self.raw);
        while let Some(at) = find_backslash(rest) {
            let (plain, escape) = rest.split_at(at);
            text.extend_from_slice(plain);
            let (byte, after) = match escape {
                [_, b'b', after @ ..] => (b'\x08', after),
                [_, b'f', after @ ..] => (b'\x0c', after),
                [_, b'n', after @ ..] => (b'\n', after),
                [_, b'r', after @ ..] => (b'\r', after),
                [_, b't', after @ ..] => (b'\t', after),
                [_, byte @ (b'"' | b'\\' | b'/'), after @ ..] => (*byte, after),
                _ => match unicode_escape(escape) {
                    Some((character, after)) => {
                        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                        rest = after;
                        continue;
                    }
                    // not a valid escape: the backslash stays in the text
                    None => (b'\\', &escape[1..]),
                },
            };
            text.push(byte);
            rest = after;
        }
        text.extend_from_slice(rest);
        String::from_utf8(text).unwrap_or_else(|invalid| String::from_utf8_lossy(invalid.as_bytes()).into_owned())
    }
}

/// The position of the next backslash. Faster than `memchr` for text with many escapes, because `memchr` has a high cost per call.
fn find_backslash(bytes: &[u8]) -> Option<usize> {
    let mut words = bytes.chunks_exact(8);
    for (at, word) in words.by_ref().enumerate() {
        let found = first_bytes(u64::from_le_bytes(word.try_into().unwrap_or_default()), b'\\');
        if found != 0 {
            return Some(8 * at + found.trailing_zeros() as usize / 8);
        }
    }
    let rest = words.remainder();
    rest.iter().position(|byte| *byte == b'\\').map(|at| bytes.len() - rest.len() + at)
}

/// Sets the high bit of the first byte of `word` that equals `byte`, and maybe high bits of later bytes. The first byte is the lowest.
#[inline]
pub(super) fn first_bytes(word: u64, byte: u8) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let differs = word ^ (ONES * u64::from(byte));
    differs.wrapping_sub(ONES) & !differs & (ONES << 7)
}

/// The character of the `\u` escape at the start of `bytes`, and the rest. A surrogate pair is one character.
fn unicode_escape(bytes: &[u8]) -> Option<(char, &[u8])> {
    let (unit, after) = utf16_escape(bytes)?;
    if (0xd800..0xdc00).contains(&unit)
        && let Some((low @ 0xdc00..0xe000, after)) = utf16_escape(after)
    {
        let scalar = 0x1_0000 + ((u32::from(unit) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
        return Some((char::from_u32(scalar)?, after));
    }
    Some((char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER), after))
}

/// The UTF-16 unit of the `\u` escape at the start of `bytes`, and the rest.
fn utf16_escape(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, after) = bytes.strip_prefix(b"\\u")?.split_first_chunk::<4>()?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    Some((u16::from_str_radix(digits, 16).ok()?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_with_compares_the_unescaped_text() {
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
    fn is_well_escaped_accepts_only_escapes_of_json() {
        let is_valid = |raw: &[u8]| Text { raw, escaped: true }.is_well_escaped();
        assert!(is_valid(br#"a\\b\"\/\b\f\n\r\t\u00e9\ud800"#) && is_valid(b"") && is_valid(b"\xff"));
        for raw in [&br"\p"[..], br"\", br"\u12", br"\ug000", br"\ud80-0"] {
            assert!(!is_valid(raw), "{}", raw.escape_ascii());
        }
    }

    #[test]
    fn text_around_invalid_parts_is_decoded() {
        assert_eq!(decoded(br"\u0061pi_key\ud800"), "api_key\u{fffd}");
        assert_eq!(decoded(br"\ud83d\ude00\ud83d"), "\u{1f600}\u{fffd}");
        assert_eq!(decoded(b"\xffa\\n\\\"\\u0062"), "\u{fffd}a\n\"b");
        assert_eq!(decoded(br"\q\u12\n\ud800\b\f\r\t\/\\"), "\\q\\u12\n\u{fffd}\x08\x0c\r\t/\\");
        assert_eq!(decoded(br"\udc00\"), "\u{fffd}\\");
    }

    proptest::proptest! {
        #[test]
        fn all_escaped_forms_decode_to_the_same_text(text: String) {
            let plain = serde_json::to_string(&text).unwrap();
            let ascii: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            for raw in [&plain.as_bytes()[1..plain.len() - 1], ascii.as_bytes()] {
                proptest::prop_assert_eq!(&decoded(raw), &text);
            }
        }

        #[test]
        fn decoded_strings_match_serde_json(raw in "([ -~]|\\\\[bfnrt\"/\\\\]|\\\\u[d0][8-9c-f0][0-9a-f]{2}|é|😀){0,12}") {
            if let Ok(text) = serde_json::from_str::<String>(&format!("\"{raw}\"")) {
                proptest::prop_assert_eq!(decoded(raw.as_bytes()), text);
            }
        }
    }
}
