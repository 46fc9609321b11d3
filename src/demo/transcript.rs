// SPDX-License-Identifier: Apache-2.0
//! The text of a sequence that is being generated, and the search for stop strings.

use super::model::Vocabulary;

/// The maximum number of tokens of a character: it has at most four bytes, and each token has at least one.
const MAX_CHARACTER_TOKENS: usize = 4;

/// The decoded text. Tokens of an incomplete character are pending.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    text: String,
    pending: Vec<u32>,
    skip_special: bool,
}

impl Transcript {
    pub(super) fn new(skip_special: bool) -> Self {
        Self { skip_special, ..Self::default() }
    }

    pub(super) fn push(&mut self, tokenizer: &Vocabulary, id: u32) {
        self.pending.push(id);
        let text = tokenizer.decode(&self.pending, self.skip_special);
        if !text.ends_with(char::REPLACEMENT_CHARACTER) || self.pending.len() == MAX_CHARACTER_TOKENS {
            self.text.push_str(&text);
            self.pending.clear();
        }
    }

    /// Ends the text: decodes the pending tokens, although their last character may be incomplete.
    pub(super) fn finish(&mut self, tokenizer: &Vocabulary) {
        self.text.push_str(&tokenizer.decode(&self.pending, self.skip_special));
        self.pending.clear();
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Finds the first of `stops` that occurs in the text, truncates the text before it, or after it with `keep`, and returns it.
    pub(super) fn truncate_at_stop(&mut self, stops: &[String], keep: bool) -> Option<String> {
        let found = stops.iter().filter(|stop| !stop.is_empty());
        let (at, stop) = found.filter_map(|stop| Some((self.text.find(stop)?, stop))).next()?;
        self.text.truncate(if keep { at + stop.len() } else { at });
        Some(stop.clone())
    }

    /// Whether the text ends with a proper prefix of a stop string.
    pub(super) fn ends_in_stop_prefix(&self, stops: &[String]) -> bool {
        let has_begun = |stop: &String| {
            let prefixes = stop.char_indices().skip(1).map(|(at, _)| &stop[..at]);
            prefixes.into_iter().any(|prefix| self.text.ends_with(prefix))
        };
        stops.iter().any(has_begun)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::*;

    #[test]
    fn incomplete_character_is_pending_until_it_is_complete() {
        let tokenizer = Model::tokenizer();
        let ids = tokenizer.encode("a🙂b");
        assert!(ids.len() > 4, "the emoji is several tokens in a small vocabulary: {ids:?}");
        let mut transcript = Transcript::new(true);
        for id in ids {
            transcript.push(&tokenizer, id);
            let text = transcript.text();
            assert!("a🙂b".starts_with(text), "never a half character: {text:?}");
        }
        assert_eq!(transcript.text(), "a🙂b");
    }

    #[test]
    fn finish_decodes_an_incomplete_character() {
        let tokenizer = Model::tokenizer();
        let ids = tokenizer.encode("a🙂");
        let mut transcript = Transcript::new(true);
        ids[..ids.len() - 1].iter().for_each(|id| transcript.push(&tokenizer, *id));
        assert_eq!(transcript.text(), "a");
        transcript.finish(&tokenizer);
        assert!(transcript.text().starts_with("a\u{fffd}"), "{:?}", transcript.text());
    }

    #[test]
    fn stop_string_truncates_the_text_and_its_prefix_is_detected() {
        let mut transcript = Transcript { text: "one two".into(), ..Transcript::default() };
        let stops = ["two three".to_owned()];
        assert!(transcript.ends_in_stop_prefix(&stops));
        assert_eq!(transcript.truncate_at_stop(&stops, false), None);
        transcript.text.push_str(" three four");
        assert_eq!(transcript.truncate_at_stop(&stops, false).as_deref(), Some("two three"));
        assert_eq!(transcript.text(), "one ");
        assert!(!transcript.ends_in_stop_prefix(&stops));
    }
}
