//! The tokenizer of the demo engine, which has an id for every byte and a text for every id.

use std::ops::Deref;

use crate::tokenizer::Tokenizer;

/// A tokenizer whose encoding and decoding never fail.
#[derive(Debug, Clone)]
pub struct Vocabulary(Tokenizer);

impl Vocabulary {
    pub(super) fn load(bytes: &[u8]) -> Self {
        Self(Tokenizer::from_bytes(bytes).expect("the checked-in tokenizer loads"))
    }

    /// The ids of `text`. The text of an added token becomes its id.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.0.encode(text).expect("a byte-level BPE has an id for every byte")
    }

    /// The text of `ids`, as [`Tokenizer::decode`] returns it.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.0.decode(ids, skip_special).expect("a byte-level decoder takes any bytes")
    }
}

impl Deref for Vocabulary {
    type Target = Tokenizer;

    fn deref(&self) -> &Tokenizer {
        &self.0
    }
}
