//! Text from tokens as they come, never a torn character.

use super::{Tokenizer, TokenizerError};

/// The text of one sequence so far. What it gives out, put together, is what decoding all of it at once gives.
///
/// A byte-level vocabulary spells bytes, and a character is out once its last byte is there. Where bytes are tokens like `<0x0A>`
/// among others, a run of them is text only if all of it is: it is out once the run has ended. A token is never decoded twice, but for
/// those that make the next ones be decoded as what is not the beginning of a text.
#[derive(Debug, Default)]
pub struct Detokenizer {
    skip_special: bool,
    /// Bytes of a character that is still to come.
    torn: Vec<u8>,
    /// Tokens whose text is out, and is not nothing.
    before: Vec<u32>,
    /// A run of bytes that may go on.
    run: Vec<u32>,
}

/// More tokens than these are not needed to have some text.
const BEFORE: usize = 4;

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
        let shown = ids.iter().copied().filter(|id| !(self.skip_special && tokenizer.is_special(*id)));
        if tokenizer.spells_bytes() {
            shown.for_each(|id| self.torn.extend(tokenizer.spelled(id)));
            return Ok(self.whole());
        }
        // what is in the run already are bytes
        let mut certain = 0;
        for id in shown.filter(|id| tokenizer.knows(*id)) {
            self.run.push(id);
            if !tokenizer.is_byte(id) {
                certain = self.run.len();
            }
        }
        let certain: Vec<u32> = self.run.drain(..certain).collect();
        self.behind(tokenizer, certain)
    }

    /// What is left at the end: a character that never came whole, or bytes that no other token followed.
    ///
    /// # Errors
    /// When the tokenizer fails on it.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
        let torn = std::mem::take(&mut self.torn);
        let run = std::mem::take(&mut self.run);
        Ok(String::from_utf8_lossy(&torn).into_owned() + &self.behind(tokenizer, run)?)
    }

    /// The characters whose bytes are there. What can be no character becomes U+FFFD.
    fn whole(&mut self) -> String {
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.torn.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let is_open = std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
            if is_open && done + chunk.invalid().len() == self.torn.len() {
                break;
            }
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                done += chunk.invalid().len();
            }
        }
        self.torn.drain(..done);
        text
    }

    /// The text that these tokens add after the earlier ones.
    fn behind(&mut self, tokenizer: &Tokenizer, ids: Vec<u32>) -> Result<String, TokenizerError> {
        if ids.is_empty() {
            return Ok(String::new());
        }
        let out = tokenizer.decode(&self.before, false)?.len();
        let all = [std::mem::take(&mut self.before), ids].concat();
        let text = tokenizer.decode(&all, false)?;
        let new = text.get(out..).unwrap_or_default().to_owned();
        // as few as have some text: the beginning of a text may be written differently, what is after it is not
        for count in 1..=BEFORE.min(all.len()) {
            let last = &all[all.len() - count..];
            if !tokenizer.decode(last, false)?.is_empty() {
                self.before = last.to_vec();
                return Ok(new);
            }
        }
        self.before = all;
        Ok(new)
    }
}
