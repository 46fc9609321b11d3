//! The entropy of the thinking: a mean over the tokens that a policy sampled between the think tokens.

use serde::Serialize;

use crate::session::{Path, Turn};

/// Nats above which a token counts as one of high entropy: the 80th percentile that the "80/20" paper (arXiv 2506.01939) found.
pub const HIGH_ENTROPY: f64 = 0.672;

/// The ids of the tokens around the thinking, which differ between models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinkTokens {
    /// `<think>`.
    pub start: u32,
    /// `</think>`.
    pub end: u32,
}

/// The thinking of a trajectory: the spans of all its responses together.
///
/// A span holds the sampled tokens strictly between a start token and the next end token. It begins behind a sampled start token, or
/// with the response where the last think token of the prompt's new part is a start token. It ends at the end token, or unclosed with
/// its response; only a turn that goes on with no token in between goes on inside. A second start token inside is a boundary too: it
/// is not counted and opens nothing more.
///
/// The loss mask plays no part: it depends on which other rows an export has, and the thinking of a trajectory does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Think {
    /// Mean entropy of the span tokens whose entropy is known, nats; `None` where there is no such token.
    pub mean: Option<f64>,
    /// Tokens in spans, those of unknown entropy among them, the think tokens themselves not.
    pub tokens: usize,
    /// There is a span, though it may have no token between its ends.
    pub present: bool,
    /// There is a span and none was left open.
    pub closed: bool,
    /// A span began in a prompt: the template wrote the start token.
    pub in_prompt: bool,
    /// The entropy of a span token is not known, so `mean` is of the others.
    pub incomplete: bool,
    /// Of all sampled tokens with a known entropy, in spans or not: the share above the threshold, 0 to 1; `None` without such tokens.
    pub high_share: Option<f64>,
}

impl Think {
    /// Measures a path; `threshold` in nats is what a token of high entropy exceeds. Without think tokens there are no spans.
    #[must_use]
    pub fn of(path: &Path, tokens: Option<ThinkTokens>, threshold: f64) -> Self {
        let mut walk = Walk { tokens, threshold, ..Walk::default() };
        for step in &path.steps {
            walk.turn(&step.turn);
        }
        walk.finish()
    }

    /// Measures one turn, as if it were a path.
    #[must_use]
    pub fn of_turn(turn: &Turn, tokens: Option<ThinkTokens>, threshold: f64) -> Self {
        let mut walk = Walk { tokens, threshold, ..Walk::default() };
        walk.turn(turn);
        walk.finish()
    }
}

/// Where the next token is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ThinkState {
    #[default]
    Outside,
    /// The prompt opened a span, and no token was sampled in it yet. The span counts once one is.
    Promised,
    Inside,
}

#[derive(Debug, Default)]
struct Walk {
    tokens: Option<ThinkTokens>,
    threshold: f64,
    place: ThinkState,
    found: Think,
    left_open: bool,
    /// Of span tokens: the sum of the known entropies, and how many there are.
    sum: f64,
    known: usize,
    /// Of all sampled tokens: known entropies, and those above the threshold.
    sampled: usize,
    high: usize,
}

impl Walk {
    fn turn(&mut self, turn: &Turn) {
        // No token in between: the policy goes on in the very context that it left, whatever the turn's cause is called.
        if !turn.prompt.is_empty() {
            self.end_run();
            let opens = self.tokens.is_some_and(|ThinkTokens { start, end }| {
                turn.prompt.iter().rev().find(|id| **id == start || **id == end) == Some(&start)
            });
            self.place = if opens { ThinkState::Promised } else { ThinkState::Outside };
        }
        let entropies = trusted(turn);
        for (at, id) in turn.response.iter().enumerate() {
            self.token(*id, entropies.get(at).copied().map(f64::from).filter(|nats| nats.is_finite()));
        }
    }

    fn token(&mut self, id: u32, entropy: Option<f64>) {
        if let Some(nats) = entropy {
            self.sampled += 1;
            self.high += usize::from(nats > self.threshold);
        }
        if self.place == ThinkState::Promised {
            self.place = ThinkState::Inside;
            (self.found.present, self.found.in_prompt) = (true, true);
        }
        if self.tokens.is_some_and(|tokens| id == tokens.start) {
            self.place = ThinkState::Inside;
            self.found.present = true;
        } else if self.tokens.is_some_and(|tokens| id == tokens.end) {
            self.place = ThinkState::Outside;
        } else if self.place == ThinkState::Inside {
            self.found.tokens += 1;
            match entropy {
                Some(nats) => (self.sum, self.known) = (self.sum + nats, self.known + 1),
                None => self.found.incomplete = true,
            }
        }
    }

    /// What follows is not what the policy would have sampled next.
    fn end_run(&mut self) {
        self.left_open |= self.place == ThinkState::Inside;
        self.place = ThinkState::Outside;
    }

    fn finish(mut self) -> Think {
        self.end_run();
        Think {
            mean: ratio(self.sum, self.known),
            closed: self.found.present && !self.left_open,
            high_share: ratio(self.high as f64, self.sampled),
            ..self.found
        }
    }
}

fn ratio(sum: f64, count: usize) -> Option<f64> {
    (count > 0).then(|| sum / count as f64)
}

/// A turn's entropies where each belongs to the token at its place; empty where that is not certain.
fn trusted(turn: &Turn) -> &[f32] {
    let whole = turn.entropy.len() == turn.response.len();
    let doubted = turn.about.fault.is_some_and(|fault| fault.is_quarantine());
    if whole && !doubted { &turn.entropy } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{END, START, THINK, path, turn};
    use super::*;
    use crate::session::Fault;

    fn think(turns: Vec<Turn>) -> Think {
        Think::of(&path("s", turns), Some(THINK), HIGH_ENTROPY)
    }

    #[test]
    fn the_think_tokens_themselves_are_not_counted() {
        let found = think(vec![turn(&[1], &[START, 7, 8, END, 9], &[9.0, 0.5, 1.0, 9.0, 0.25])]);
        assert_eq!((found.mean, found.tokens), (Some(0.75), 2));
        assert!(found.present && found.closed && !found.in_prompt && !found.incomplete);
        assert_eq!(found.high_share, Some(0.6), "9, 1 and 9 of five");
    }

    #[test]
    fn a_prompt_that_ends_inside_opens_the_response() {
        let found = think(vec![turn(&[START, 4, END, 5, START, 6], &[7, END, 9], &[0.5, 1.0, 1.0])]);
        assert_eq!((found.mean, found.tokens, found.in_prompt, found.closed), (Some(0.5), 1, true, true));
        let shut = think(vec![turn(&[START, 6, END], &[7, 8], &[0.5, 1.0])]);
        assert_eq!((shut.mean, shut.present, shut.in_prompt), (None, false, false), "thinking switched off");
    }

    #[test]
    fn an_unclosed_span_runs_to_the_end_of_its_response_and_no_further() {
        let found = think(vec![turn(&[1], &[START, 7], &[0.0, 2.0]), turn(&[2], &[8, END], &[100.0, 100.0])]);
        assert_eq!((found.mean, found.tokens, found.closed), (Some(2.0), 1, false));
    }

    #[test]
    fn a_turn_with_no_token_in_between_goes_on_inside() {
        let found = think(vec![turn(&[1, START], &[7], &[2.0]), turn(&[], &[8, END, 9], &[4.0, 0.0, 0.0])]);
        assert_eq!((found.mean, found.tokens, found.closed, found.in_prompt), (Some(3.0), 2, true, true));
        let late = think(vec![turn(&[1, START], &[], &[]), turn(&[], &[8], &[4.0])]);
        assert_eq!((late.mean, late.closed, late.in_prompt), (Some(4.0), false, true), "the first try sampled nothing");
    }

    #[test]
    fn the_spans_of_all_responses_count_together_whether_trained_or_not() {
        let turns = vec![
            turn(&[1], &[START, 7, END], &[0.0, 1.0, 0.0]),
            turn(&[2], &[START, 8, 8, END, START, 9, END], &[0.0, 2.0, 2.0, 0.0, 0.0, 3.0, 0.0]),
        ];
        let mut path = path("s", turns);
        path.steps[0].trained = false;
        let found = Think::of(&path, Some(THINK), HIGH_ENTROPY);
        assert_eq!((found.mean, found.tokens, found.closed), (Some(2.0), 4, true));
    }

    #[test]
    fn a_second_start_inside_and_an_end_outside_are_nothing_but_boundaries() {
        let found = think(vec![turn(&[1], &[END, START, 7, START, 8, END, END, 9], &[1.0; 8])]);
        assert_eq!((found.tokens, found.closed), (2, true));
        let end = think(vec![turn(&[1], &[7, END, 8], &[1.0; 3])]);
        assert!(!end.present && !end.closed);
    }

    #[test]
    fn spans_without_tokens_are_present_and_have_no_mean() {
        let empty = think(vec![turn(&[1], &[START, END, 9], &[1.0; 3])]);
        assert_eq!((empty.present, empty.closed, empty.tokens, empty.mean), (true, true, 0, None));
        let at_once = think(vec![turn(&[START], &[END, 9], &[1.0; 2])]);
        assert_eq!((at_once.present, at_once.closed, at_once.in_prompt), (true, true, true));
        let nothing = think(vec![turn(&[START], &[], &[])]);
        assert_eq!(nothing, Think::default(), "nothing was sampled in it");
        let before = think(vec![turn(&[1], &[START, 7, END], &[1.0; 3]), turn(&[START], &[], &[])]);
        assert!(before.closed && !before.in_prompt, "and it leaves nothing open");
    }

    #[test]
    fn unknown_entropies_are_left_out_and_reported() {
        let found = think(vec![turn(&[START], &[7, 8, END, 9], &[f32::NAN, 0.5, f32::NAN, 0.75])]);
        assert_eq!((found.mean, found.tokens, found.incomplete), (Some(0.5), 2, true));
        assert_eq!(found.high_share, Some(0.5));
        let outside = think(vec![turn(&[START], &[8, END, 9], &[0.5, f32::NAN, f32::NAN])]);
        assert!(!outside.incomplete, "none of the span is missing");
        let none = think(vec![turn(&[START], &[7, 8], &[])]);
        assert_eq!((none.mean, none.tokens, none.incomplete, none.high_share), (None, 2, true, None));
    }

    #[test]
    fn entropies_that_may_belong_to_other_tokens_are_unknown() {
        let short = turn(&[START], &[7, 8], &[0.5]);
        let mut doubted = turn(&[START], &[7, 8], &[0.5, 0.5]);
        doubted.about.fault = Some(Fault::IdsMismatch);
        let mut cut = turn(&[START], &[7, 8], &[0.5, 0.5]);
        cut.about.fault = Some(Fault::Aborted);
        for turn in [short, doubted] {
            let found = think(vec![turn]);
            assert_eq!((found.mean, found.incomplete), (None, true));
        }
        assert_eq!(think(vec![cut]).mean, Some(0.5), "cut short, but what came is right");
    }
}
