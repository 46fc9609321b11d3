//! Text to token ids and back, by a Hugging Face `tokenizer.json`.

/// Why a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
#[error("not a tokenizer.json: {0}")]
pub struct TokenizerError(#[source] tokenizers::Error);

/// A loaded tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Loads the bytes of a `tokenizer.json`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(TokenizerError)?;
        Ok(Self { inner })
    }

    /// The ids of `text`; added tokens that are spelled out in it become their ids.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let encoding = self.inner.encode_fast(text, true).expect("a byte-level BPE has an id for every byte");
        encoding.get_ids().to_vec()
    }

    /// The text of `ids`. Ids outside the vocabulary are left out, bytes that
    /// are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.inner.decode(ids, skip_special).expect("a byte-level decoder takes any bytes")
    }

    /// The id of exactly this token.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Number of entries, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}
