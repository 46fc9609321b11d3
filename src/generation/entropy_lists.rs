// SPDX-License-Identifier: Apache-2.0
//! Writes measured entropies as the JSON text of the members that are added to a reply.

use crate::engine::plan::EntropyRequest;
use crate::entropy::TokenStats;

/// Whether the lists of an event hold all tokens so far or only the new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListContent {
    /// All tokens so far.
    Full,
    /// Only the new tokens.
    Delta,
}

/// A list of one sequence as JSON text without brackets. It grows with the tokens, so that it is not printed again for each event.
#[derive(Debug, Default)]
pub(crate) struct JsonList {
    text: Vec<u8>,
    /// The byte offset of the current event's tokens.
    new: usize,
}

impl JsonList {
    /// The text of all tokens, or of the current event's tokens.
    #[must_use]
    pub(crate) fn text(&self, content: ListContent) -> &[u8] {
        match content {
            ListContent::Full => &self.text,
            ListContent::Delta => {
                let new = &self.text[self.new..];
                new.strip_prefix(b",").unwrap_or(new)
            }
        }
    }
}

/// The lists of one sequence.
#[derive(Debug, Default)]
pub(crate) struct EntropyLists {
    /// `output_token_entropy`.
    pub entropy: JsonList,
    /// `output_token_entropy_lower`, `_upper`.
    pub bounds: [JsonList; 2],
    /// `output_token_stats`, in the order of [`STATS`].
    pub stats: [JsonList; 6],
}

/// The members of `output_token_stats`, each a list with one entry per sampled token.
pub(crate) const STATS: [&str; 6] = ["tail_mass", "varentropy", "margin", "confidence", "surprisal", "rank"];

impl EntropyLists {
    /// Begins a new event: tokens that are added from now on belong to it.
    pub(crate) fn begin_event(&mut self) {
        for list in [&mut self.entropy].into_iter().chain(&mut self.bounds).chain(&mut self.stats) {
            list.new = list.text.len();
        }
    }

    /// Adds tokens with their statistics. `values` are their published entropies.
    pub(crate) fn push(&mut self, tokens: &[TokenStats], entropy_request: &EntropyRequest, values: &[f32]) {
        self.entropy.text.reserve(values.len() * 12);
        for value in values {
            number(&mut self.entropy.text, *value);
        }
        if entropy_request.bounds {
            for token in tokens {
                number(&mut self.bounds[0].text, token.lower);
                number(&mut self.bounds[1].text, token.upper);
            }
        }
        if entropy_request.stats {
            for token in tokens {
                let values = [token.tail_mass, token.varentropy, token.margin, token.confidence, token.surprisal];
                for (list, value) in self.stats.iter_mut().zip(values) {
                    number(&mut list.text, value);
                }
                // the rank of a token outside the top-k is unknown
                let rank = if token.rank == 0 { "null".to_owned() } else { token.rank.to_string() };
                item(&mut self.stats[5].text, rank.as_bytes());
            }
        }
    }
}

/// Adds a number to the text of a list; null for NaN, which JSON does not have. Writes the shortest text that parses to the same float32.
pub(crate) fn number(list: &mut Vec<u8>, value: f32) {
    if value.is_finite() {
        let mut buffer = zmij::Buffer::new();
        item(list, buffer.format_finite(value).as_bytes());
    } else {
        item(list, b"null");
    }
}

fn item(list: &mut Vec<u8>, text: &[u8]) {
    if !list.is_empty() {
        list.push(b',');
    }
    list.extend_from_slice(text);
}
