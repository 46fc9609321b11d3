//! What an encoding may take.

use super::TokenizerError;
use crate::budget::Work;

/// The limits of an encoding. It is done in pieces, between which they are checked.
#[derive(Debug, Clone, Copy)]
pub struct EncodeLimits<'a> {
    /// Counts the memory of the encoding, and says whether its result is still wanted.
    pub work: &'a Work,
    /// The number of tokens above which the encoding stops; `None` without.
    pub tokens: Option<usize>,
}

impl EncodeLimits<'_> {
    /// Checks whether an encoding goes on after `tokens` tokens. The rest of the text has at least `rest` tokens.
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`], [`TokenizerError::Stopped`].
    pub(super) fn check(&self, tokens: usize, rest: usize) -> Result<(), TokenizerError> {
        self.work.check()?;
        let tokens = tokens + rest;
        match self.tokens {
            Some(most) if tokens > most => Err(TokenizerError::TooLong { tokens }),
            _ => Ok(()),
        }
    }
}
