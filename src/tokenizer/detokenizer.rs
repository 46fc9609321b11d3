//! Text from tokens as they come, never a torn character.

use super::{Tokenizer, TokenizerError};

/// What bytes become that are not UTF-8, or not yet.
const TORN: char = '\u{fffd}';

/// So many of them in a row are no character that is still to come.
const HOPELESS: usize = 64;

/// The text of one sequence so far. What it gives out, put together, is what decoding all of it at once gives.
#[derive(Debug, Default)]
pub struct Detokenizer {
    /// Tokens whose text may change the text of those to come, or is not out yet.
    window: Vec<u32>,
    /// Bytes of the window's text that are out.
    out: usize,
    skip_special: bool,
}

impl Detokenizer {
    /// One that leaves out special tokens, or names them.
    #[must_use]
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, ..Self::default() }
    }

    /// The text that these tokens add, as far as it is certain.
    ///
    /// # Errors
    /// When the tokenizer fails on them.
    pub fn push(&mut self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, TokenizerError> {
        if ids.is_empty() {
            return Ok(String::new());
        }
        self.window.extend_from_slice(ids);
        let text = tokenizer.decode(&self.window, self.skip_special)?;
        let certain = text.trim_end_matches(TORN).len();
        let torn = (text.len() - certain) / TORN.len_utf8();
        let certain = if torn > HOPELESS { text.len() - 4 * TORN.len_utf8() } else { certain };
        let new = text.get(self.out..certain).unwrap_or_default().to_owned();
        self.out = self.out.max(certain);
        // the last tokens stay: some decoders write a token differently at the beginning of a text
        let kept = if torn == 0 { ids.len() } else { HOPELESS };
        if torn == 0 || torn > HOPELESS {
            self.window.drain(..self.window.len().saturating_sub(kept));
            let held = text.len() - certain;
            self.out = tokenizer.decode(&self.window, self.skip_special)?.len().saturating_sub(held);
        }
        Ok(new)
    }

    /// What is left at the end: a character that never came whole.
    ///
    /// # Errors
    /// When the tokenizer fails on it.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
        let text = tokenizer.decode(&self.window, self.skip_special)?;
        let rest = text.get(self.out..).unwrap_or_default().to_owned();
        self.out = text.len();
        Ok(rest)
    }
}
