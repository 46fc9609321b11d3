// SPDX-License-Identifier: Apache-2.0
//! Incremental detokenization: decodes tokens as they arrive, and returns only whole characters.

use super::{Tokenizer, TokenizerError};

/// Decodes one sequence incrementally. The concatenated results equal the text that decoding all tokens at once returns.
///
/// With a byte-level vocabulary, a character is returned once its last byte has arrived. With byte-fallback tokens such as `<0x0A>`, a run
/// of them is valid text only as a whole, so the run is returned once another token has ended it. Each token is decoded once, except for
/// the few context tokens before the new ones: without context, the decoder would treat the new tokens as the beginning of a text.
#[derive(Debug, Default)]
pub struct Detokenizer {
    skip_special: bool,
    /// The first bytes of a character whose last byte has not arrived.
    incomplete: Vec<u8>,
    /// The last returned tokens, as few as have text. They are decoded again with the next tokens.
    context: Vec<u32>,
    /// A run of byte-fallback tokens that may continue.
    byte_run: Vec<u32>,
}

/// The number of last tokens among which the context is searched. If none of them has text, all tokens become the context.
const MAX_CONTEXT: usize = 4;

impl Detokenizer {
    /// A detokenizer that leaves out special tokens if `skip_special`.
    #[must_use]
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, ..Self::default() }
    }

    /// Adds tokens and returns the new text that later tokens cannot change.
    ///
    /// # Errors
    /// When the tokenizer fails to decode the tokens.
    pub fn push(&mut self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, TokenizerError> {
        let visible = ids.iter().copied().filter(|id| !(self.skip_special && tokenizer.is_special(*id)));
        if tokenizer.is_byte_level() {
            visible.for_each(|id| self.incomplete.extend(tokenizer.byte_level_bytes(id)));
            return Ok(self.take_characters());
        }
        // the run holds only byte-fallback tokens here
        let mut certain = 0;
        for id in visible.filter(|id| tokenizer.contains_id(*id)) {
            self.byte_run.push(id);
            if !tokenizer.is_byte_fallback(id) {
                certain = self.byte_run.len();
            }
        }
        let certain: Vec<u32> = self.byte_run.drain(..certain).collect();
        self.decode_after_context(tokenizer, certain)
    }

    /// Ends the sequence and returns the rest of the text: an incomplete character, or a run of byte-fallback tokens.
    ///
    /// # Errors
    /// When the tokenizer fails to decode the run.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
        let incomplete = std::mem::take(&mut self.incomplete);
        let run = std::mem::take(&mut self.byte_run);
        Ok(String::from_utf8_lossy(&incomplete).into_owned() + &self.decode_after_context(tokenizer, run)?)
    }

    /// Removes and returns the complete characters of `incomplete`. Invalid bytes become U+FFFD.
    fn take_characters(&mut self) -> String {
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.incomplete.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let is_cut = std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
            if is_cut && done + chunk.invalid().len() == self.incomplete.len() {
                break;
            }
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                done += chunk.invalid().len();
            }
        }
        self.incomplete.drain(..done);
        text
    }

    /// Decodes tokens after the context, returns their text, and makes the last of them the next context.
    fn decode_after_context(&mut self, tokenizer: &Tokenizer, ids: Vec<u32>) -> Result<String, TokenizerError> {
        if ids.is_empty() {
            return Ok(String::new());
        }
        let returned = tokenizer.decode(&self.context, false)?.len();
        let all = [std::mem::take(&mut self.context), ids].concat();
        let text = tokenizer.decode(&all, false)?;
        let new = text.get(returned..).unwrap_or_default().to_owned();
        // the shortest context with text is enough: decoders treat only the beginning of a text differently
        for count in 1..=MAX_CONTEXT.min(all.len()) {
            let last = &all[all.len() - count..];
            if !tokenizer.decode(last, false)?.is_empty() {
                self.context = last.to_vec();
                return Ok(new);
            }
        }
        self.context = all;
        Ok(new)
    }
}
