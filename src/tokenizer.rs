// SPDX-License-Identifier: Apache-2.0
//! Encodes text to token ids and decodes ids to text, with the files of a Hugging Face tokenizer.

mod content;
mod detokenizer;
mod family;
mod folder;
mod longest;
mod render;
pub mod template;
mod word_encoder;
mod word_pattern;

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use tokenizers::{AddedToken, DecoderWrapper, Model, OffsetType, PreTokenizer, SplitDelimiterBehavior};

pub use content::{Content, TextOrigin};
pub use detokenizer::Detokenizer;
pub use family::Family;
use folder::AddedTokenConfig;
pub use folder::{Folder, FolderError, ImageSettings, SamplingDefaults};
use longest::LongestToken;
pub use render::{
    ContinuationCheck, FinalAssistantMessage, Fit, NoPlaceholder, Prompt, PromptError, Renderer, TemplateFeatures,
    ToolDisplay,
};
pub use template::Setting;
use word_encoder::{Marks, WordEncoder};

use crate::budget::{Stopped, Work};

/// Error: a tokenizer failed to load, to encode or to decode.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The bytes are not a `tokenizer.json`.
    #[error("not a tokenizer.json: {0}")]
    Load(#[source] tokenizers::Error),
    /// The text has parts without an id.
    #[error("the tokenizer cannot encode the text: {0}")]
    Encode(#[source] tokenizers::Error),
    /// The ids have no text.
    #[error("the tokenizer cannot decode the ids: {0}")]
    Decode(#[source] tokenizers::Error),
    /// The text has more tokens than allowed.
    #[error("the text has at least {tokens} tokens")]
    TooLong {
        /// A number of tokens that it has at least.
        tokens: usize,
    },
    /// The encoding was stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The limits of an encoding. It is done in pieces, between which they are checked.
#[derive(Debug, Clone, Copy)]
pub struct EncodeLimits<'a> {
    /// Counts the memory of the encoding, and says whether its result is still wanted.
    pub work: &'a Work,
    /// The number of tokens above which the encoding stops; `None` without.
    pub tokens: Option<usize>,
}

impl EncodeLimits<'_> {
    /// Checks that an encoding may continue after `tokens` tokens. The rest of the text has at least `rest` tokens.
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`], [`TokenizerError::Stopped`].
    fn check(&self, tokens: usize, rest: usize) -> Result<(), TokenizerError> {
        self.work.check()?;
        let tokens = tokens + rest;
        match self.tokens {
            Some(most) if tokens > most => Err(TokenizerError::TooLong { tokens }),
            _ => Ok(()),
        }
    }
}

/// A loaded tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    content: Content,
    /// Ids of all added tokens. Text is split at added tokens, and the parts are encoded separately.
    added: HashSet<u32>,
    /// Ids of the special tokens, which decoding can leave out.
    special: HashSet<u32>,
    /// The faster encoder; `None` if the tokenizer has steps that it lacks.
    words: Option<Arc<WordEncoder>>,
    /// The longest token, if the length of a token is bounded.
    longest: Option<LongestToken>,
}

/// The memory that the `tokenizers` crate takes to encode a text, as a multiple of its length.
const CRATE_FACTOR: usize = 160;

/// A text with many kinds of words, with which the faster encoder is checked.
const SAMPLE: &str =
    "It's 1234.5 — naïve façade, 日本語\n\n    fn main() { println!(\"{:?}\", a[0]); }\r\n\tover  three   spaces ";

impl Tokenizer {
    /// Loads the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// When they are not a tokenizer that the `tokenizers` crate reads.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(TokenizerError::Load)?;
        // transformers truncates and pads only on request
        inner.with_truncation(None).map_err(TokenizerError::Load)?.with_padding(None);
        Ok(Self::new(inner))
    }

    fn new(inner: tokenizers::Tokenizer) -> Self {
        let added = inner.get_added_tokens_decoder();
        let content = Content::new(added.values().map(|token| (token.content.as_str(), token.special)));
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let longest = LongestToken::find(&inner);
        let words = WordEncoder::new(&inner, longest.map(|longest| longest.bytes)).map(Arc::new);
        let mut tokenizer = Self { added: added.keys().copied().collect(), special, content, words, longest, inner };
        let limits = EncodeLimits { work: &Work::unlimited(), tokens: None };
        if tokenizer.encode_words(SAMPLE, &limits).ok().flatten() != tokenizer.encode_whole(SAMPLE).ok() {
            tokenizer.words = None;
        }
        tokenizer
    }

    /// Adds tokens. A token replaces an added token of the same text.
    fn with_added_tokens(mut self, tokens: &[AddedTokenConfig]) -> Result<Self, TokenizerError> {
        let token = |added: &AddedTokenConfig| {
            AddedToken::from(added.content.as_str(), added.special)
                .single_word(added.single_word)
                .lstrip(added.lstrip)
                .rstrip(added.rstrip)
                .normalized(added.normalized)
        };
        self.inner.add_tokens(tokens.iter().map(token)).map_err(TokenizerError::Load)?;
        Ok(Self::new(self.inner))
    }

    /// The ids of `text`, with the special tokens that the tokenizer adds at its ends. Added tokens in the text become their ids.
    ///
    /// # Errors
    /// When the text has parts without an id.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, true).map_err(TokenizerError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a rendered text, without special tokens at its ends. Control tokens that [`Content`] marked are encoded as text.
    ///
    /// # Errors
    /// When the text has parts without an id.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_within(text, &EncodeLimits { work: &Work::unlimited(), tokens: None })
    }

    /// The same within limits.
    ///
    /// # Errors
    /// When the text has parts without an id, or a limit is reached.
    pub fn encode_within(&self, text: &str, limits: &EncodeLimits<'_>) -> Result<Vec<u32>, TokenizerError> {
        if let Some(ids) = self.encode_words(text, limits)? {
            return Ok(ids);
        }
        limits.check(0, self.least_tokens(text.len() - Content::mark_bytes(text)))?;
        let _memory = limits.work.take(CRATE_FACTOR * text.len())?;
        if !Content::is_marked(text) {
            return self.encode_whole(text).map_err(TokenizerError::Encode);
        }
        let ids = self.encode_marked(text, false).map_err(TokenizerError::Encode)?;
        match ids {
            Some(ids) => Ok(ids),
            None => Ok(self.encode_marked(text, true).map_err(TokenizerError::Encode)?.unwrap_or_default()),
        }
    }

    /// The ids of a text with or without marks, by the faster encoder; `None` if it cannot encode the text.
    fn encode_words(&self, text: &str, limits: &EncodeLimits<'_>) -> Result<Option<Vec<u32>>, TokenizerError> {
        let Some(words) = &self.words else { return Ok(None) };
        let marks = Content::is_marked(text).then_some(Marks { mark: Content::MARK, special: &self.special });
        words.encode(self.inner.get_model(), text, marks, limits)
    }

    /// A number of tokens that a text of this many bytes has at least. 0 if it is not known.
    #[must_use]
    pub fn least_tokens(&self, bytes: usize) -> usize {
        self.longest.map_or(0, |longest| longest.least_tokens(bytes))
    }

    /// The ids of a text without marks.
    fn encode_whole(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        Ok(self.inner.encode_fast(text, false)?.get_ids().to_vec())
    }

    /// The ids of a text with marks: finds added tokens, removes the marks, and encodes the rest as plain text. Returns `None` if the model
    /// then merges the pieces of a marked name into a special token. With `split`, the text is split at the marks, so this cannot happen.
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
        let merged = Cell::new(false);
        words.tokenize(|word| {
            let tokens = self.inner.get_model().tokenize(word.get())?;
            merged.set(merged.get() || tokens.iter().any(|token| self.special.contains(&token.id)));
            Ok(tokens)
        })?;
        let ids = words.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec();
        Ok((split || !merged.get()).then_some(ids))
    }

    /// The text of `ids`. Ids outside the vocabulary are left out. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// When the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        self.inner.decode(ids, skip_special).map_err(TokenizerError::Decode)
    }

    /// The bytes of one token of a byte-level vocabulary, which may be part of a character. `None` for added tokens and other vocabularies.
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        if self.added.contains(&id) || !self.is_byte_level() {
            return None;
        }
        self.inner.id_to_token(id)?.chars().map(byte_of_char).collect()
    }

    /// Whether the vocabulary is byte-level: the bytes of a text are the concatenated bytes of its tokens.
    fn is_byte_level(&self) -> bool {
        matches!(self.inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)))
    }

    /// The bytes of a token of a byte-level vocabulary, added tokens included; empty for an unknown id.
    fn byte_level_bytes(&self, id: u32) -> Vec<u8> {
        let token = self.inner.id_to_token(id).unwrap_or_default();
        // the text of an added token need not be in the byte-level alphabet
        token.chars().map(byte_of_char).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.into_bytes())
    }

    /// Whether the vocabulary contains this id.
    fn contains_id(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    /// Whether the token is a byte-fallback token such as `<0x0A>`.
    fn is_byte_fallback(&self, id: u32) -> bool {
        let token = self.inner.id_to_token(id).unwrap_or_default();
        let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
    }

    /// Marks control tokens in the texts of messages before they are rendered.
    #[must_use]
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// The id of the token with exactly this text.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether an added token has exactly this text.
    #[must_use]
    pub fn is_added(&self, token: &str) -> bool {
        self.token_to_id(token).is_some_and(|id| self.added.contains(&id))
    }

    /// The ids of the special tokens.
    #[must_use]
    pub fn special(&self) -> &HashSet<u32> {
        &self.special
    }

    /// Whether this id is that of a special token.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// The text and the id of the longest added token that the text begins with.
    #[must_use]
    pub fn added_at_start(&self, text: &str) -> Option<(String, u32)> {
        let added = self.inner.get_added_tokens_decoder();
        let matching =
            added.into_iter().filter(|(_, token)| !token.content.is_empty() && text.starts_with(&token.content));
        matching.map(|(id, token)| (token.content, id)).max_by_key(|(text, _)| text.len())
    }

    /// The number of tokens, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

/// The byte of a character in byte-level vocabularies, the inverse of GPT-2's `bytes_to_unicode`: printable Latin-1 characters are their
/// own bytes, and the other bytes, in their order, are the characters from U+0100 on.
fn byte_of_char(c: char) -> Option<u8> {
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

/// The character of a byte in byte-level vocabularies, the inverse of [`byte_of_char`].
fn char_of_byte(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match code {
        0..=0x20 => code + 0x100,
        0x7f..=0xa0 => code - 0x7f + 0x121,
        0xad => 0x143,
        _ => code,
    };
    char::from_u32(code).expect("the codes are below the surrogates")
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_byte_has_one_character_in_byte_level_vocabularies() {
        let mut bytes: Vec<u8> = ('\0'..='\u{200}').filter_map(super::byte_of_char).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert!(bytes.iter().all(|byte| super::byte_of_char(super::char_of_byte(*byte)) == Some(*byte)));
        assert_eq!(super::byte_of_char('Ġ'), Some(b' '));
        assert_eq!(super::byte_of_char('Ċ'), Some(b'\n'));
    }
}
