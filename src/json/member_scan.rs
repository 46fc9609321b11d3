// SPDX-License-Identifier: Apache-2.0
//! A search for one member of a JSON object that arrives in pieces.

use memchr::memchr2;

/// The most bytes of a key or value that is read.
const LONGEST: usize = 4 << 10;

/// Finds the string that a top-level member has. Other bytes are neither kept nor validated.
#[derive(Debug)]
pub(crate) struct MemberScan {
    name: &'static str,
    depth: u32,
    /// The string that is being read, with its opening quote; `None` outside of strings that matter.
    text: Option<Vec<u8>>,
    in_string: bool,
    is_escaped: bool,
    /// The next string of the object is a value.
    is_value: bool,
    /// The value is that of the member.
    is_wanted: bool,
    found: Option<Box<str>>,
}

impl MemberScan {
    /// A search for the member `name`.
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            depth: 0,
            text: None,
            in_string: false,
            is_escaped: false,
            is_value: false,
            is_wanted: false,
            found: None,
        }
    }

    /// Reads the next bytes of the object. Returns the value of the first such member, once it is complete.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Option<&str> {
        while self.found.is_none() && !bytes.is_empty() {
            bytes = if self.in_string { self.read_string(bytes) } else { self.read_structure(bytes) };
        }
        self.found.as_deref()
    }

    /// Reads up to the end of the string. Returns the rest.
    fn read_string<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = if std::mem::take(&mut self.is_escaped) {
            1
        } else {
            match memchr2(b'"', b'\\', bytes) {
                Some(at) if bytes[at] == b'"' => {
                    self.keep(&bytes[..=at]);
                    self.end_string();
                    return &bytes[at + 1..];
                }
                Some(at) => {
                    self.is_escaped = true;
                    at + 1
                }
                None => bytes.len(),
            }
        };
        self.keep(&bytes[..end]);
        &bytes[end..]
    }

    fn keep(&mut self, bytes: &[u8]) {
        if let Some(text) = &mut self.text {
            text.extend_from_slice(bytes);
            if text.len() > LONGEST {
                self.text = None;
            }
        }
    }

    fn end_string(&mut self) {
        self.in_string = false;
        let text = self.text.take().and_then(|text| serde_json::from_slice::<Box<str>>(&text).ok());
        if self.depth != 1 {
            return;
        }
        if self.is_value {
            self.found = text.filter(|_| self.is_wanted);
        } else {
            self.is_wanted = text.is_some_and(|text| *text == *self.name);
        }
    }

    /// Reads one byte outside of strings. Returns the rest.
    fn read_structure<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match bytes[0] {
            b'"' => {
                self.in_string = true;
                let matters = self.depth == 1 && (!self.is_value || self.is_wanted);
                self.text = matters.then(|| vec![b'"']);
            }
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' if self.depth == 1 => self.is_value = true,
            b',' if self.depth == 1 => self.is_value = false,
            _ => {}
        }
        &bytes[1..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn found(pieces: &[&[u8]]) -> Option<String> {
        let mut scan = MemberScan::new("lora_name");
        pieces.iter().find_map(|piece| scan.read(piece).map(str::to_owned))
    }

    #[test]
    fn only_a_string_of_the_object_itself_is_found() {
        for (text, name) in [
            (r#"{"lora_path": "x", "lora_name": "a"}"#, Some("a")),
            (r#" { "lora_name" : "a\"\u0062\\" , "b": 1}"#, Some("a\"b\\")),
            (r#"{"x": {"lora_name": "no"}, "y": ["lora_name", ":", "no"], "lora_name": "a"}"#, Some("a")),
            (r#"{"x": "lora_name", "y": "no"}"#, None),
            (r#"{"lora\u005fname": "a"}"#, Some("a")),
            (r#"{"lora_name": null, "x": "no"}"#, None),
            (r#"["lora_name", "no"]"#, None),
            ("", None),
            (r#"{"lora_name": "cut"#, None),
        ] {
            assert_eq!(found(&[text.as_bytes()]).as_deref(), name, "{text}");
        }
        let long = "x".repeat(2 * LONGEST);
        assert_eq!(found(&[json!({"a": long, "lora_name": "a"}).to_string().as_bytes()]).as_deref(), Some("a"));
        assert_eq!(found(&[json!({"lora_name": long}).to_string().as_bytes()]), None, "its memory is bounded");
    }

    proptest! {
        #[test]
        fn name_is_found_wherever_the_object_is_cut(
            name in "\\PC{1,8}",
            other in "\\PC{0,8}",
            cuts in prop::collection::vec(0..200_usize, 0..6),
        ) {
            let text = json!({"config": {"lora_name": other}, "data": [other, "\\\""], "lora_name": name}).to_string();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([text.len()]);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            let pieces: Vec<&[u8]> = starts.zip(ends).map(|(start, end)| &text.as_bytes()[start..end]).collect();
            prop_assert_eq!(found(&pieces), Some(name));
        }
    }
}
