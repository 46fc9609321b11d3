// SPDX-License-Identifier: Apache-2.0
//! Statistics of the thinking: the entropy of the tokens that a policy sampled between the think tokens.

use serde::Serialize;

use crate::export::Thinking;
use crate::session::{Path, ThinkSpans, ThinkToken, ThinkTokens, Turn};

pub use crate::entropy::HIGH_ENTROPY;

/// Statistics of the thinking in a trajectory, over the [spans](ThinkSpans) of all its responses.
///
/// The loss mask has no effect: it depends on the other rows of an export, and the thinking of a trajectory does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ThinkStats {
    /// The mean entropy of the span tokens with a known entropy, in nats; `None` without such a token.
    pub mean: Option<f64>,
    /// The number of tokens in spans, including those with an unknown entropy and excluding the think tokens.
    pub tokens: usize,
    /// The trajectory has a span, which may have no tokens.
    pub present: bool,
    /// The trajectory has a span, and all spans are closed.
    pub closed: bool,
    /// A span began in a prompt, in which the chat template wrote the start token.
    pub in_prompt: bool,
    /// The entropy of a span token is unknown, so `mean` is over the other tokens.
    pub incomplete: bool,
    /// The share of tokens above the threshold, among all sampled tokens with a known entropy, in spans or not; 0 to 1. `None` without such
    /// tokens.
    pub high_share: Option<f64>,
}

impl ThinkStats {
    /// Computes the statistics of a path. `threshold` is that of a token with high entropy, in nats. Without think
    /// tokens the path has no spans.
    #[must_use]
    pub fn new(path: &Path, tokens: Option<ThinkTokens>, threshold: f64) -> Self {
        let mut counter = ThinkCounter::new(tokens, threshold);
        for step in &path.steps {
            counter.turn(&step.turn);
        }
        counter.finish()
    }

    /// Computes the statistics of one turn, as if it were a path.
    #[must_use]
    pub fn of_turn(turn: &Turn, tokens: Option<ThinkTokens>, threshold: f64) -> Self {
        let mut counter = ThinkCounter::new(tokens, threshold);
        counter.turn(turn);
        counter.finish()
    }
}

/// Computes the columns of an exported row about thinking. `threshold` is that of a token with high entropy, in nats. If the think tokens are unknown, all
/// statistics except `high_entropy_share` are `None`.
#[must_use]
pub fn thinking(path: &Path, tokens: Option<ThinkTokens>, threshold: f64) -> Thinking {
    let think = ThinkStats::new(path, tokens, threshold);
    Thinking {
        entropy_mean: think.mean,
        tokens: tokens.map(|_| think.tokens as u64),
        closed: think.present.then_some(think.closed),
        high_entropy_share: think.high_share,
    }
}

/// Counts the tokens of a path, turn by turn.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ThinkCounter {
    /// `None` if the think tokens are unknown.
    spans: Option<ThinkSpans>,
    threshold: f64,
    stats: ThinkStats,
    /// A span was not closed.
    has_unclosed_span: bool,
    /// The sum of the known entropies of span tokens, in nats.
    sum: f64,
    /// The number of span tokens with a known entropy.
    known: usize,
    /// The number of sampled tokens with a known entropy.
    sampled: usize,
    /// The number of sampled tokens above the threshold.
    high: usize,
}

impl ThinkCounter {
    pub(super) fn new(tokens: Option<ThinkTokens>, threshold: f64) -> Self {
        Self { spans: tokens.map(ThinkSpans::new), threshold, ..Self::default() }
    }

    pub(super) fn turn(&mut self, turn: &Turn) {
        if !turn.prompt.is_empty() {
            self.end_span();
        }
        if let Some(spans) = &mut self.spans {
            spans.begin(&turn.prompt);
        }
        for (id, entropy) in turn.response.iter().zip(known_entropies(turn)) {
            self.token(*id, entropy);
        }
    }

    fn token(&mut self, id: u32, entropy: Option<f64>) {
        if let Some(nats) = entropy {
            self.sampled += 1;
            self.high += usize::from(nats > self.threshold);
        }
        let Some(spans) = &mut self.spans else { return };
        if spans.is_opened_by_prompt() {
            (self.stats.present, self.stats.in_prompt) = (true, true);
        }
        match spans.token(id) {
            ThinkToken::Start => self.stats.present = true,
            ThinkToken::Thinking => {
                self.stats.tokens += 1;
                match entropy {
                    Some(nats) => (self.sum, self.known) = (self.sum + nats, self.known + 1),
                    None => self.stats.incomplete = true,
                }
            }
            ThinkToken::End | ThinkToken::Answer => {}
        }
    }

    /// Notes whether a span is open, when the next token does not continue the response.
    fn end_span(&mut self) {
        self.has_unclosed_span |= self.spans.is_some_and(|spans| spans.is_open());
    }

    pub(super) fn finish(mut self) -> ThinkStats {
        self.end_span();
        ThinkStats {
            mean: ratio(self.sum, self.known),
            closed: self.stats.present && !self.has_unclosed_span,
            high_share: ratio(self.high as f64, self.sampled),
            ..self.stats
        }
    }
}

fn ratio(sum: f64, count: usize) -> Option<f64> {
    (count > 0).then(|| sum / count as f64)
}

/// The entropy of each sampled token of a turn in nats; `None` if it is unknown.
pub(super) fn known_entropies(turn: &Turn) -> impl Iterator<Item = Option<f64>> {
    let entropies = turn.known_entropies();
    (0..turn.response.len()).map(|at| entropies.get(at).copied().map(f64::from).filter(|nats| nats.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{END, START, THINK, path, turn};
    use super::*;
    use crate::session::Fault;

    fn think(turns: Vec<Turn>) -> ThinkStats {
        ThinkStats::new(&path("s", turns), Some(THINK), HIGH_ENTROPY)
    }

    #[test]
    fn think_tokens_are_not_counted() {
        let found = think(vec![turn(&[1], &[START, 7, 8, END, 9], &[9.0, 0.5, 1.0, 9.0, 0.25])]);
        assert_eq!((found.mean, found.tokens), (Some(0.75), 2));
        assert!(found.present && found.closed && !found.in_prompt && !found.incomplete);
        assert_eq!(found.high_share, Some(0.6), "9, 1 and 9 of five");
    }

    #[test]
    fn span_that_begins_in_the_prompt_continues_in_the_response() {
        let found = think(vec![turn(&[START, 4, END, 5, START, 6], &[7, END, 9], &[0.5, 1.0, 1.0])]);
        assert_eq!((found.mean, found.tokens, found.in_prompt, found.closed), (Some(0.5), 1, true, true));
        let shut = think(vec![turn(&[START, 6, END], &[7, 8], &[0.5, 1.0])]);
        assert_eq!((shut.mean, shut.present, shut.in_prompt), (None, false, false), "thinking is disabled");
    }

    #[test]
    fn unclosed_span_ends_with_its_response() {
        let found = think(vec![turn(&[1], &[START, 7], &[0.0, 2.0]), turn(&[2], &[8, END], &[100.0, 100.0])]);
        assert_eq!((found.mean, found.tokens, found.closed), (Some(2.0), 1, false));
    }

    #[test]
    fn span_continues_in_a_turn_with_an_empty_prompt() {
        let found = think(vec![turn(&[1, START], &[7], &[2.0]), turn(&[], &[8, END, 9], &[4.0, 0.0, 0.0])]);
        assert_eq!((found.mean, found.tokens, found.closed, found.in_prompt), (Some(3.0), 2, true, true));
        let late = think(vec![turn(&[1, START], &[], &[]), turn(&[], &[8], &[4.0])]);
        assert_eq!((late.mean, late.closed, late.in_prompt), (Some(4.0), false, true), "the first turn is empty");
    }

    #[test]
    fn spans_of_trained_and_untrained_turns_are_counted() {
        let turns = vec![
            turn(&[1], &[START, 7, END], &[0.0, 1.0, 0.0]),
            turn(&[2], &[START, 8, 8, END, START, 9, END], &[0.0, 2.0, 2.0, 0.0, 0.0, 3.0, 0.0]),
        ];
        let mut path = path("s", turns);
        path.steps[0].trained = false;
        let found = ThinkStats::new(&path, Some(THINK), HIGH_ENTROPY);
        assert_eq!((found.mean, found.tokens, found.closed), (Some(2.0), 4, true));
    }

    #[test]
    fn start_token_in_a_span_and_end_token_outside_are_not_counted() {
        let found = think(vec![turn(&[1], &[END, START, 7, START, 8, END, END, 9], &[1.0; 8])]);
        assert_eq!((found.tokens, found.closed), (2, true));
        let end = think(vec![turn(&[1], &[7, END, 8], &[1.0; 3])]);
        assert!(!end.present && !end.closed);
    }

    #[test]
    fn span_without_tokens_is_present_and_has_no_mean() {
        let empty = think(vec![turn(&[1], &[START, END, 9], &[1.0; 3])]);
        assert_eq!((empty.present, empty.closed, empty.tokens, empty.mean), (true, true, 0, None));
        let at_once = think(vec![turn(&[START], &[END, 9], &[1.0; 2])]);
        assert_eq!((at_once.present, at_once.closed, at_once.in_prompt), (true, true, true));
        let nothing = think(vec![turn(&[START], &[], &[])]);
        assert_eq!(nothing, ThinkStats::default(), "no token was sampled");
        let before = think(vec![turn(&[1], &[START, 7, END], &[1.0; 3]), turn(&[START], &[], &[])]);
        assert!(before.closed && !before.in_prompt, "a span without a sampled token is not unclosed");
    }

    #[test]
    fn unknown_entropies_are_excluded_and_set_incomplete() {
        let found = think(vec![turn(&[START], &[7, 8, END, 9], &[f32::NAN, 0.5, f32::NAN, 0.75])]);
        assert_eq!((found.mean, found.tokens, found.incomplete), (Some(0.5), 2, true));
        assert_eq!(found.high_share, Some(0.5));
        let outside = think(vec![turn(&[START], &[8, END, 9], &[0.5, f32::NAN, f32::NAN])]);
        assert!(!outside.incomplete, "all entropies of the span are known");
        let none = think(vec![turn(&[START], &[7, 8], &[])]);
        assert_eq!((none.mean, none.tokens, none.incomplete, none.high_share), (None, 2, true, None));
    }

    #[test]
    fn entropies_of_a_quarantined_turn_or_of_another_length_are_unknown() {
        let short = turn(&[START], &[7, 8], &[0.5]);
        let mut quarantined = turn(&[START], &[7, 8], &[0.5, 0.5]);
        quarantined.about.fault = Some(Fault::IdsMismatch);
        let mut cut = turn(&[START], &[7, 8], &[0.5, 0.5]);
        cut.about.fault = Some(Fault::Aborted);
        for turn in [short, quarantined] {
            let found = think(vec![turn]);
            assert_eq!((found.mean, found.incomplete), (None, true));
        }
        assert_eq!(think(vec![cut]).mean, Some(0.5), "the turn was aborted, but its entropies are valid");
    }

    #[test]
    fn unknown_statistics_are_null() {
        let thought = path("s", vec![turn(&[1], &[START, 7, 8, END], &[0.0, 0.5, 1.0, 0.0])]);
        let expected = [("mean", "0.75"), ("count", "2"), ("closed", "true"), ("share", "0.25")];
        check(thinking(&thought, Some(THINK), 0.672), expected);
        let silent = path("s", vec![turn(&[1], &[7], &[])]);
        let expected = [("mean", "null"), ("count", "0"), ("closed", "null"), ("share", "null")];
        check(thinking(&silent, Some(THINK), 0.672), expected);
        let cut = path("s", vec![turn(&[START], &[7], &[0.5])]);
        let expected = [("mean", "0.5"), ("count", "1"), ("closed", "false"), ("share", "1.0")];
        check(thinking(&cut, Some(THINK), 0.25), expected);
        let expected = [("mean", "null"), ("count", "null"), ("closed", "null"), ("share", "0.25")];
        check(thinking(&thought, None, 0.672), expected);
    }

    fn check(found: Thinking, expected: [(&str, &str); 4]) {
        for ((name, value), (ending, text)) in found.members().iter().zip(expected) {
            assert!(name.ends_with(ending) && value == text, "{name} is {value}, not {text}");
        }
    }
}
