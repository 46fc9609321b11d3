//! Python's JSON, made plain JSON for `serde_json` to judge.
//!
//! tokentap's cursor leaves to the engine what stands inside of strings, and knows `NaN` and the infinities. Here strings become a row
//! of `a` and those names `null`; what is left must be JSON to both or to neither.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A text without what the cursor does not look at.
pub(super) struct Plain {
    text: Vec<u8>,
    named: bool,
}

impl Plain {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let (mut text, mut named) = (Vec::with_capacity(bytes.len()), false);
        let (mut at, mut quoted) = (0, false);
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            if quoted {
                quoted = byte != b'"';
                text.push(if quoted { b'a' } else { b'"' });
                at += usize::from(byte == b'\\');
                continue;
            }
            let word =
                ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| bytes[at - 1..].starts_with(word.as_bytes()));
            if let Some(word) = word {
                named = true;
                text.extend(b"null");
                at += word.len() - 1;
            } else {
                quoted = byte == b'"';
                text.push(byte);
            }
        }
        Self { text, named }
    }

    pub(super) fn is_json(&self) -> bool {
        serde_json::from_slice::<IgnoredAny>(&self.text).is_ok()
    }

    pub(super) fn is_object(&self) -> bool {
        self.is_json() && self.text.trim_ascii_start().starts_with(b"{")
    }

    /// How deep its brackets nest, if they fit each other.
    pub(super) fn depth(&self) -> usize {
        let (mut depth, mut deepest, mut quoted) = (0_usize, 0, false);
        for byte in &self.text {
            match byte {
                b'"' => quoted = !quoted,
                b'{' | b'[' if !quoted => {
                    depth += 1;
                    deepest = deepest.max(depth);
                }
                b'}' | b']' if !quoted => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        deepest
    }

    /// Whether Python would read an infinity or a NaN somewhere.
    pub(super) fn is_non_finite(&self) -> bool {
        let numbers = self.text.split(|byte| !matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        let overflows = |text: &[u8]| std::str::from_utf8(text).unwrap().parse::<f64>().is_ok_and(f64::is_infinite);
        self.named || numbers.into_iter().any(overflows)
    }
}

/// The members of an object in the order of the text, repeated keys included, values as they are spelled.
pub(super) struct Members<'a>(pub(super) Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// A failing input, to be read in a panic.
pub(super) fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
