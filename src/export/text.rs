// SPDX-License-Identifier: Apache-2.0
//! A streaming JSON writer: it builds no tree and keeps only the current sample in memory.

use serde_json::Value;

use super::{ExcludedLeaf, Export, pieces};
use crate::json::write_ids;

/// Writes JSON text. The caller adds values; commas are inserted automatically.
#[derive(Debug, Default)]
pub(super) struct Text(Vec<u8>);

impl Text {
    /// A writer that continues after the text `before`.
    pub(super) fn after(before: &str) -> Self {
        Self(before.as_bytes().to_vec())
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn into_text(self) -> String {
        String::from_utf8(self.0).expect("JSON that was written from strings is text")
    }

    /// Writes the name of the member whose value is written next.
    pub(super) fn key(&mut self, name: &str) -> &mut Self {
        self.string(name);
        self.0.push(b':');
        self
    }

    pub(super) fn object(&mut self, members: impl FnOnce(&mut Self)) {
        self.separate();
        self.0.push(b'{');
        members(self);
        self.0.push(b'}');
    }

    pub(super) fn array(&mut self, items: impl FnOnce(&mut Self)) {
        self.separate();
        self.0.push(b'[');
        items(self);
        self.0.push(b']');
    }

    pub(super) fn string(&mut self, text: &str) {
        self.separate();
        serde_json::to_writer(&mut self.0, text).expect("a string can be written to memory");
    }

    /// Writes bytes as a string in base64.
    pub(super) fn base64(&mut self, bytes: &[u8]) {
        self.separate();
        self.0.push(b'"');
        base64_simd::STANDARD.encode_append(bytes, &mut self.0);
        self.0.push(b'"');
    }

    /// Writes bytes as a data URI.
    pub(super) fn data_uri(&mut self, media_type: &str, bytes: &[u8]) {
        self.separate();
        self.0.extend_from_slice(b"\"data:");
        self.0.extend_from_slice(media_type.as_bytes());
        self.0.extend_from_slice(b";base64,");
        base64_simd::STANDARD.encode_append(bytes, &mut self.0);
        self.0.push(b'"');
    }

    pub(super) fn strings(&mut self, texts: impl IntoIterator<Item = impl AsRef<str>>) {
        self.array(|list| texts.into_iter().for_each(|text| list.string(text.as_ref())));
    }

    pub(super) fn integer(&mut self, number: impl itoa::Integer) {
        self.literal(itoa::Buffer::new().format(number));
    }

    /// Writes an integer, or null for `None`.
    pub(super) fn maybe(&mut self, number: Option<impl itoa::Integer>) {
        match number {
            Some(number) => self.integer(number),
            None => self.literal("null"),
        }
    }

    /// Writes a string, or null for `None`.
    pub(super) fn maybe_string(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.string(text),
            None => self.literal("null"),
        }
    }

    /// Writes a number as the shortest text that parses to the same value. NaN and infinities become null, because JSON has none.
    pub(super) fn float(&mut self, number: f64) {
        if number.is_finite() {
            self.literal(zmij::Buffer::new().format_finite(number));
        } else {
            self.literal("null");
        }
    }

    pub(super) fn value(&mut self, value: &Value) {
        self.separate();
        serde_json::to_writer(&mut self.0, value).expect("a value can be written to memory");
    }

    /// Writes `null`, `true` or a number unchanged.
    pub(super) fn literal(&mut self, text: &str) {
        self.separate();
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Writes JSON text of another program on one line. Text that is not JSON, such as Python's NaN, becomes a string.
    pub(super) fn foreign(&mut self, text: &str) {
        if serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() {
            return self.string(text);
        }
        self.separate();
        // valid JSON has line ends only between its tokens
        self.0.extend(text.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
    }

    /// Writes the items of a list of integers.
    pub(super) fn ids(&mut self, ids: &[u32]) {
        if !ids.is_empty() {
            self.separate();
            write_ids(&mut self.0, ids);
        }
    }

    /// Writes the items of a list of float32, null for a missing one.
    pub(super) fn floats(&mut self, numbers: &[f32]) {
        let mut buffer = zmij::Buffer::new();
        self.items(numbers, |text, number| {
            let shortest = if number.is_finite() { buffer.format_finite(*number) } else { "null" };
            text.0.extend_from_slice(shortest.as_bytes());
        });
    }

    /// Writes the same item `count` times.
    pub(super) fn repeat(&mut self, item: &str, count: usize) {
        for _ in 0..count {
            self.literal(item);
        }
    }

    fn items<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        let Some((first, rest)) = items.split_first() else { return };
        self.separate();
        self.0.reserve(8 * items.len());
        write(self, first);
        for item in rest {
            self.0.push(b',');
            write(self, item);
        }
    }

    fn separate(&mut self) {
        if !matches!(self.0.last(), None | Some(b'{' | b'[' | b':' | b',')) {
            self.0.push(b',');
        }
    }
}

/// The length of a text as a JSON string, with quotes and escapes.
pub(super) fn string_len(text: &str) -> u64 {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    2 + text.bytes().map(escaped).sum::<u64>()
}

/// Returns `before` and then `count` items of a list, each as a separate text. `before` ends just before the first item.
pub(super) fn list(
    before: &'static str,
    count: usize,
    mut write: impl FnMut(usize, &mut Text) + Send + 'static,
) -> impl Iterator<Item = Vec<u8>> + Send + 'static {
    (0..count.max(1)).map(move |at| {
        let mut text = Text::after(if at == 0 { before } else { "," });
        if at < count {
            write(at, &mut text);
        }
        text.into_bytes()
    })
}

/// The text between the samples and the list of refused leaves.
pub(super) const REFUSED: &str = r#"],"refused":["#;

/// `{"samples":[…],"refused":[…]}`: `texts` is the beginning, `end` the text up to the list of refused leaves.
pub(super) fn samples(
    texts: impl Iterator<Item = Vec<u8>> + Send + 'static,
    end: &'static str,
    refused: Vec<ExcludedLeaf>,
) -> Export {
    let end = list(end, refused.len(), move |at, text| refusal(text, &refused[at]));
    let chunks = pieces(texts.chain(end).chain(std::iter::once(b"]}".to_vec())));
    Export::new("application/json", chunks)
}

/// Writes an excluded leaf.
pub(super) fn refusal(text: &mut Text, refused: &ExcludedLeaf) {
    text.object(|text| {
        text.key("session").string(&refused.session);
        text.key("leaf").integer(refused.leaf);
        text.key("reason").string(refused.reason);
    });
}

/// The list of excluded leaves as a separate text.
pub(super) fn refusals(refused: &[ExcludedLeaf]) -> String {
    let mut text = Text::default();
    text.array(|list| refused.iter().for_each(|leaf| refusal(list, leaf)));
    text.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Text)) -> String {
        let mut text = Text::default();
        write(&mut text);
        text.into_text()
    }

    #[test]
    fn commas_are_inserted_automatically() {
        let text = written(|text| {
            text.object(|text| {
                text.key("a").array(|list| {
                    list.ids(&[]);
                    list.ids(&[1, 2]);
                    list.repeat("0", 2);
                    list.ids(&[u32::MAX]);
                });
                text.key("b\"").object(|_| {});
                text.key("c").strings(["{", "x,"]);
                text.key("d").maybe(None::<u8>);
                text.key("e").maybe_string(None);
            });
        });
        assert_eq!(text, r#"{"a":[1,2,0,0,4294967295],"b\"":{},"c":["{","x,"],"d":null,"e":null}"#);
    }

    #[test]
    fn floats_are_the_shortest_and_finite() {
        let text = written(|text| text.array(|list| list.floats(&[0.1, -1.5, 0.0, f32::NAN, f32::INFINITY, 1e-10])));
        assert_eq!(text, "[0.1,-1.5,0.0,null,null,1e-10]");
        assert_eq!(written(|text| text.float(0.1)), "0.1");
        assert_eq!(written(|text| text.float(f64::NAN)), "null");
    }

    #[test]
    fn foreign_json_stays_on_one_line() {
        assert_eq!(written(|text| text.foreign("{\"a\":\n1}")), "{\"a\": 1}");
        assert_eq!(written(|text| text.foreign("NaN")), r#""NaN""#, "Python's NaN is not JSON");
        assert_eq!(written(|text| text.foreign("1] , [2")), r#""1] , [2""#);
    }
}
