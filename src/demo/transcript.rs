//! The text of a sequence as it grows, and the stop strings in it.

use super::vocabulary::Vocabulary;

/// A UTF-8 character has at most four bytes, so it is complete after four tokens.
const LONGEST_CHARACTER: usize = 4;

/// Text decoded so far. The bytes of an unfinished character are held back.
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
        if !text.ends_with(char::REPLACEMENT_CHARACTER) || self.pending.len() == LONGEST_CHARACTER {
            self.text.push_str(&text);
            self.pending.clear();
        }
    }

    /// Ends the text: the text that was held back is shown unchanged.
    pub(super) fn close(&mut self, tokenizer: &Vocabulary) {
        self.text.push_str(&tokenizer.decode(&self.pending, self.skip_special));
        self.pending.clear();
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Looks for the stop strings in their order; cuts the text before the first
    /// that is there (behind it when it is to be kept) and returns it.
    pub(super) fn cut(&mut self, stops: &[String], keep: bool) -> Option<String> {
        let found = stops.iter().filter(|stop| !stop.is_empty());
        let (at, stop) = found.filter_map(|stop| Some((self.text.find(stop)?, stop))).next()?;
        self.text.truncate(if keep { at + stop.len() } else { at });
        Some(stop.clone())
    }

    /// Whether the text ends in what may become a stop string.
    pub(super) fn may_stop(&self, stops: &[String]) -> bool {
        let begun = |stop: &String| {
            let starts = stop.char_indices().skip(1).map(|(at, _)| &stop[..at]);
            starts.into_iter().any(|start| self.text.ends_with(start))
        };
        stops.iter().any(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::*;

    #[test]
    fn a_split_character_is_held_back_until_it_is_whole() {
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
    fn an_incomplete_character_is_shown_at_the_end() {
        let tokenizer = Model::tokenizer();
        let ids = tokenizer.encode("a🙂");
        let mut transcript = Transcript::new(true);
        ids[..ids.len() - 1].iter().for_each(|id| transcript.push(&tokenizer, *id));
        assert_eq!(transcript.text(), "a");
        transcript.close(&tokenizer);
        assert!(transcript.text().starts_with("a\u{fffd}"), "{:?}", transcript.text());
    }

    #[test]
    fn stop_strings_cut_and_their_beginnings_are_noticed() {
        let mut transcript = Transcript { text: "one two".into(), ..Transcript::default() };
        let stops = ["two three".to_owned()];
        assert!(transcript.may_stop(&stops));
        assert_eq!(transcript.cut(&stops, false), None);
        transcript.text.push_str(" three four");
        assert_eq!(transcript.cut(&stops, false).as_deref(), Some("two three"));
        assert_eq!(transcript.text(), "one ");
        assert!(!transcript.may_stop(&stops));
    }
}
