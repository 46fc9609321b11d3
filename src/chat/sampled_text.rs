// SPDX-License-Identifier: Apache-2.0
//! The text of sampled tokens. Distinguishes markers that were sampled as their tokens from equal text in other tokens.

use std::collections::VecDeque;
use std::ops::Range;

use crate::parse::{Event, Grammar, StreamingParser};
use crate::tokenizer::{Detokenizer, Tokenizer, TokenizerError};

/// The text of tokens that arrive in pieces, as far as it is not parsed.
#[derive(Debug)]
pub(super) struct SampledText {
    detokenizer: Detokenizer,
    /// The tokens that are markers, and their texts.
    tokens: Vec<(u32, Box<str>)>,
    text: String,
    /// The places in `text` of markers that were sampled as their tokens.
    markers: VecDeque<Range<usize>>,
}

impl SampledText {
    /// A text without tokens. Special tokens are left out of it if `skip_special`.
    pub(super) fn new(tokenizer: &Tokenizer, grammar: &Grammar, skip_special: bool) -> Self {
        let tokens = grammar.tokens.iter().filter_map(|marker| Some((tokenizer.token_to_id(marker)?, marker.clone())));
        Self {
            detokenizer: Detokenizer::new(skip_special),
            tokens: tokens.collect(),
            text: String::new(),
            markers: VecDeque::new(),
        }
    }

    /// Adds tokens.
    ///
    /// # Errors
    /// If the tokenizer cannot decode a token.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<(), TokenizerError> {
        let marker = |id: u32| self.tokens.iter().find(|(token, _)| *token == id).map(|(_, marker)| marker);
        for ids in ids.split_inclusive(|id| marker(*id).is_some()) {
            let decoded = self.detokenizer.push(tokenizer, ids)?;
            self.text.push_str(&decoded);
            if let Some(marker) = ids.last().and_then(|id| marker(*id))
                && decoded.ends_with(&**marker)
            {
                self.markers.push_back(self.text.len() - marker.len()..self.text.len());
            }
        }
        Ok(())
    }

    /// Ends the sequence.
    ///
    /// # Errors
    /// If the tokenizer cannot decode the last tokens.
    pub(super) fn finish(&mut self, tokenizer: &Tokenizer) -> Result<(), TokenizerError> {
        self.text.push_str(&self.detokenizer.finish(tokenizer)?);
        Ok(())
    }

    /// The text that is not parsed.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The position up to which the text can be parsed if it is certain up to `length`: a marker is parsed as a whole.
    pub(super) fn before_cut_marker(&self, length: usize) -> usize {
        let cut = self.markers.iter().find(|marker| marker.start < length && length < marker.end);
        cut.map_or(length, |marker| marker.start)
    }

    /// Parses the first `length` bytes of the text and removes them.
    pub(super) fn parse(&mut self, length: usize, parser: &mut StreamingParser, out: &mut Vec<Event>) {
        let mut parsed = 0;
        while let Some(marker) = self.markers.front().filter(|marker| marker.end <= length) {
            parser.push(&self.text[parsed..marker.start], out);
            parser.push_token(&self.text[marker.clone()], out);
            parsed = marker.end;
            self.markers.pop_front();
        }
        parser.push(&self.text[parsed..length], out);
        self.text.drain(..length);
        for marker in &mut self.markers {
            *marker = marker.start.saturating_sub(length)..marker.end.saturating_sub(length);
        }
    }
}
