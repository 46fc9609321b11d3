//! From rows to the text of the members that a reply gains.

use crate::entropy::TokenStats;
use crate::generation::entropy_request::EntropyRequest;
use crate::generation::sequence::Content;

/// A list of one sequence as JSON text without brackets: it grows with the tokens instead of being printed anew for each event.
#[derive(Debug, Default)]
pub struct List {
    text: Vec<u8>,
    /// Where the tokens of the event at hand begin.
    new: usize,
}

impl List {
    /// The text of everything, or of what the event at hand has added.
    #[must_use]
    pub fn text(&self, content: Content) -> &[u8] {
        match content {
            Content::Full => &self.text,
            Content::Delta => {
                let new = &self.text[self.new..];
                new.strip_prefix(b",").unwrap_or(new)
            }
        }
    }
}

/// The lists of one sequence.
#[derive(Debug, Default)]
pub struct Lists {
    /// `output_token_entropy`.
    pub entropy: List,
    /// `output_token_entropy_lower`, `_upper`.
    pub bounds: [List; 2],
    /// `output_token_stats`, in the order of [`STATS`].
    pub stats: [List; 6],
}

/// The members of `output_token_stats`, each a list with one entry per sampled token.
pub const STATS: [&str; 6] = ["tail_mass", "varentropy", "margin", "confidence", "surprisal", "rank"];

impl Lists {
    /// What is added from here on belongs to a new event.
    pub fn begin_event(&mut self) {
        for list in [&mut self.entropy].into_iter().chain(&mut self.bounds).chain(&mut self.stats) {
            list.new = list.text.len();
        }
    }

    /// Adds tokens with their numbers; `values` are those that are published as their entropies.
    pub fn push(&mut self, tokens: &[TokenStats], entropy_request: &EntropyRequest, values: &[f32]) {
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
                // outside the top-k nothing more is known of the rank than that
                let rank = if token.rank == 0 { "null".to_owned() } else { token.rank.to_string() };
                item(&mut self.stats[5].text, rank.as_bytes());
            }
        }
    }
}

/// Adds a number to the text of a list, or null where there is none: JSON has no NaN. The shortest text that reads back as the same
/// float32 is written.
pub fn number(list: &mut Vec<u8>, value: f32) {
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
