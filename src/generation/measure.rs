//! From rows to the text of the members that a reply gains.

use crate::entropy::{Estimator, TokenStats};
use crate::generation::wish::Wish;

/// The lists of one sequence as JSON text without brackets, so that a cumulative stream adds to them instead of printing them anew.
#[derive(Debug, Default)]
pub struct Lists {
    /// `output_token_entropy`.
    pub entropy: Vec<u8>,
    /// `output_token_entropy_lower`, `_upper`.
    pub bounds: [Vec<u8>; 2],
    /// `output_token_stats`, in the order of [`STATS`].
    pub stats: [Vec<u8>; 6],
}

/// The members of `output_token_stats`, each a list with one entry per sampled token.
pub const STATS: [&str; 6] = ["tail_mass", "varentropy", "margin", "confidence", "surprisal", "rank"];

impl Lists {
    /// Forgets everything: the next event holds only what is new.
    pub fn clear(&mut self) {
        self.entropy.clear();
        self.bounds.iter_mut().chain(&mut self.stats).for_each(Vec::clear);
    }

    /// Adds tokens with their numbers.
    pub fn push(&mut self, tokens: &[TokenStats], wish: &Wish, estimator: Estimator) {
        self.entropy.reserve(tokens.len() * 12);
        for token in tokens {
            number(&mut self.entropy, estimator.of(token));
        }
        if wish.bounds {
            for token in tokens {
                number(&mut self.bounds[0], token.lower);
                number(&mut self.bounds[1], token.upper);
            }
        }
        if wish.stats {
            for token in tokens {
                let values = [token.tail_mass, token.varentropy, token.margin, token.confidence, token.surprisal];
                for (list, value) in self.stats.iter_mut().zip(values) {
                    number(list, value);
                }
                // outside the top-k nothing more is known of the rank than that
                let rank = if token.rank == 0 { "null".to_owned() } else { token.rank.to_string() };
                item(&mut self.stats[5], rank.as_bytes());
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
