//! Text to token ids and back, by the files of a Hugging Face tokenizer.

mod added;
mod content;
mod detokenizer;
mod family;
mod folder;
mod render;
pub mod template;

use std::cell::Cell;
use std::collections::HashSet;

use tokenizers::{AddedToken, DecoderWrapper, Model, OffsetType, PreTokenizer, SplitDelimiterBehavior};

pub use content::{Content, TextOrigin};
pub use detokenizer::Detokenizer;
pub use family::Family;
pub use folder::{Folder, FolderError, SamplingDefaults};
pub use render::{Fit, Prompt, PromptError, Renderer, Setting, Trial};

/// Why a tokenizer could not be loaded, or could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is none.
    #[error("not a tokenizer.json: {0}")]
    Load(#[source] tokenizers::Error),
    /// A text has parts that it has no ids for.
    #[error("the tokenizer cannot encode the text: {0}")]
    Encode(#[source] tokenizers::Error),
    /// Ids that it has no text for.
    #[error("the tokenizer cannot decode the ids: {0}")]
    Decode(#[source] tokenizers::Error),
}

/// A loaded tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    content: Content,
    /// Ids of all added tokens, at which the text falls into parts that are encoded each for itself.
    added: HashSet<u32>,
    /// Ids of those that are left out of texts.
    special: HashSet<u32>,
}

impl Tokenizer {
    /// Loads the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// When they are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(TokenizerError::Load)?;
        // transformers does neither unless it is asked to
        inner.with_truncation(None).map_err(TokenizerError::Load)?.with_padding(None);
        Ok(Self::new(inner))
    }

    fn new(inner: tokenizers::Tokenizer) -> Self {
        let added = inner.get_added_tokens_decoder();
        let content = Content::new(added.values().map(|token| (token.content.as_str(), token.special)));
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        Self { added: added.keys().copied().collect(), special, content, inner }
    }

    /// With these added tokens as well, or instead of those of the same text.
    fn with_added(mut self, tokens: &[added::Added]) -> Result<Self, TokenizerError> {
        let token = |added: &added::Added| {
            AddedToken::from(added.content.as_str(), added.special)
                .single_word(added.single_word)
                .lstrip(added.lstrip)
                .rstrip(added.rstrip)
                .normalized(added.normalized)
        };
        self.inner.add_tokens(tokens.iter().map(token)).map_err(TokenizerError::Load)?;
        Ok(Self::new(self.inner))
    }

    /// The ids of `text` with what the tokenizer puts around it; added tokens that are spelled out in it become their ids.
    ///
    /// # Errors
    /// When the text has parts without an id.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, true).map_err(TokenizerError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a rendered conversation: nothing is put around it, and what [`Content`] marked in it stays text.
    ///
    /// # Errors
    /// When the text has parts without an id.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if !Content::is_marked(text) {
            let encoding = self.inner.encode_fast(text, false).map_err(TokenizerError::Encode)?;
            return Ok(encoding.get_ids().to_vec());
        }
        let ids = self.encode_marked(text, false).map_err(TokenizerError::Encode)?;
        match ids {
            Some(ids) => Ok(ids),
            None => Ok(self.encode_marked(text, true).map_err(TokenizerError::Encode)?.unwrap_or_default()),
        }
    }

    /// The ids of a text that holds marks: added tokens are found, the marks are removed, and the rest is encoded as usual.
    /// Where the vocabulary itself joins what a mark has broken, there is nothing, unless the text is `split` at the marks.
    fn encode_marked(&self, text: &str, split: bool) -> tokenizers::Result<Option<Vec<u32>>> {
        let mut words = self.inner.get_added_vocabulary().extract_and_normalize(self.inner.get_normalizer(), text);
        if split {
            words.split(|_, part| part.split(Content::MARK, SplitDelimiterBehavior::Removed))?;
        } else {
            words.normalize(|part| {
                part.filter(|c| c != Content::MARK);
                Ok(())
            })?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words)?;
        }
        let joined = Cell::new(false);
        words.tokenize(|word| {
            let tokens = self.inner.get_model().tokenize(word.get())?;
            joined.set(joined.get() || tokens.iter().any(|token| self.special.contains(&token.id)));
            Ok(tokens)
        })?;
        let ids = words.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec();
        Ok((split || !joined.get()).then_some(ids))
    }

    /// The text of `ids`. Ids outside the vocabulary are left out, bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// When the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        self.inner.decode(ids, skip_special).map_err(TokenizerError::Decode)
    }

    /// The bytes of one token, which need not be whole characters; `None` where only its text is known.
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        if self.added.contains(&id) || !self.spells_bytes() {
            return None;
        }
        self.inner.id_to_token(id)?.chars().map(byte_level).collect()
    }

    /// Whether every token spells bytes, and a text is nothing but those of its tokens.
    fn spells_bytes(&self) -> bool {
        matches!(self.inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)))
    }

    /// The bytes that any token of a byte-level vocabulary adds to a text; nothing for what is no token.
    fn spelled(&self, id: u32) -> Vec<u8> {
        let token = self.inner.id_to_token(id).unwrap_or_default();
        // added tokens may be written plainly
        token.chars().map(byte_level).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.into_bytes())
    }

    /// Whether there is such a token.
    fn knows(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    /// Whether a token is one byte of a vocabulary that has others as well, like `<0x0A>`.
    fn is_byte(&self, id: u32) -> bool {
        let token = self.inner.id_to_token(id).unwrap_or_default();
        let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
    }

    /// What marks the texts of messages before they are rendered.
    #[must_use]
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// The id of exactly this token.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether this is an added token.
    #[must_use]
    pub fn is_added(&self, token: &str) -> bool {
        self.token_to_id(token).is_some_and(|id| self.added.contains(&id))
    }

    /// Ids of special tokens.
    #[must_use]
    pub fn special(&self) -> &HashSet<u32> {
        &self.special
    }

    /// Whether this id is of a special token, which is no text.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// The added token that a text begins with, the longest of several.
    #[must_use]
    pub fn added_at_start(&self, text: &str) -> Option<(String, u32)> {
        let spelled = self.inner.get_added_tokens_decoder();
        let begins =
            spelled.into_iter().filter(|(_, token)| !token.content.is_empty() && text.starts_with(&token.content));
        begins.map(|(id, token)| (token.content, id)).max_by_key(|(text, _)| text.len())
    }

    /// Number of entries, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

/// The byte that a character stands for in byte-level vocabularies: bytes that are visible as Latin-1 stand for themselves, the others
/// are moved behind it in their order (GPT-2's table).
fn byte_level(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_has_a_distinct_character() {
        let mut bytes: Vec<u8> = ('\0'..='\u{200}').filter_map(super::byte_level).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(super::byte_level('Ġ'), Some(b' '));
        assert_eq!(super::byte_level('Ċ'), Some(b'\n'));
    }
}
