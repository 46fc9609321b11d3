// SPDX-License-Identifier: Apache-2.0
//! Converts Python's JSON to strict JSON, so that `serde_json` can be the reference.
//!
//! tokentap's cursor does not check the contents of strings, which it leaves to the engine, and accepts `NaN` and the infinities. Here each
//! string becomes as many `a`, and each of those names becomes `null`. Both parsers must accept or reject the result alike.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A text without the parts that the cursor does not check.
pub(super) struct Plain {
    text: Vec<u8>,
    has_names: bool,
}

impl Plain {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let (mut text, mut has_names) = (Vec::with_capacity(bytes.len()), false);
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
                has_names = true;
                text.extend(b"null");
                at += word.len() - 1;
            } else {
                quoted = byte == b'"';
                text.push(byte);
            }
        }
        Self { text, has_names }
    }

    pub(super) fn is_json(&self) -> bool {
        serde_json::from_slice::<IgnoredAny>(&self.text).is_ok()
    }

    pub(super) fn is_object(&self) -> bool {
        self.is_json() && self.text.trim_ascii_start().starts_with(b"{")
    }

    /// The nesting depth of its brackets, if they are balanced.
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

    /// Whether Python would parse any number as an infinity or NaN.
    pub(super) fn is_non_finite(&self) -> bool {
        let numbers = self.text.split(|byte| !matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        let overflows = |text: &[u8]| std::str::from_utf8(text).unwrap().parse::<f64>().is_ok_and(f64::is_infinite);
        self.has_names || numbers.into_iter().any(overflows)
    }
}

/// The members of an object in order, including repeated keys, with their values unparsed.
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

/// The input as escaped text, for panic messages.
pub(super) fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
