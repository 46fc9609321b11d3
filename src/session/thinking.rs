//! Which sampled tokens of a path are thinking, and the entropies of the thinking of a session.

use std::sync::Arc;

use super::state::PER_LOCK;
use super::{EntropyTotals, Session, Turn};

/// The ids of the think tokens, which differ between models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinkTokens {
    /// `<think>`.
    pub start: u32,
    /// `</think>`.
    pub end: u32,
}

/// What a sampled token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkToken {
    /// A start token.
    Start,
    /// An end token.
    End,
    /// A token of a span.
    Thinking,
    /// A token outside of spans.
    Answer,
}

/// Finds the spans of thinking in the sampled tokens of a path, turn by turn.
///
/// A span has the sampled tokens between a start token and the next end token, without both. It begins after a sampled start token, or at
/// the beginning of the response if the last think token of the new prompt tokens is a start token. It ends at an end token. Without an
/// end token it ends, unclosed, with the response; but if the next turn has no new prompt tokens, it continues in that turn. A second start
/// token within a span does not begin another span.
#[derive(Debug, Clone, Copy)]
pub struct ThinkSpans {
    tokens: ThinkTokens,
    position: Position,
}

/// The position of the next token relative to the spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Outside,
    /// The prompt ends in a span, and no token was sampled yet. The span counts once a token is sampled.
    OpenedByPrompt,
    Inside,
}

impl ThinkSpans {
    /// The spans of a path that has no turns yet.
    #[must_use]
    pub fn new(tokens: ThinkTokens) -> Self {
        Self { tokens, position: Position::Outside }
    }

    /// Begins a turn with these new prompt tokens. Without any, the policy continues in the context of the previous turn.
    pub fn begin(&mut self, prompt: &[u32]) {
        if !prompt.is_empty() {
            let ThinkTokens { start, end } = self.tokens;
            let last = prompt.iter().rev().find(|id| **id == start || **id == end);
            self.position = if last == Some(&start) { Position::OpenedByPrompt } else { Position::Outside };
        }
    }

    /// Whether the prompt ends in a span, and no token was sampled yet.
    #[must_use]
    pub fn is_opened_by_prompt(&self) -> bool {
        self.position == Position::OpenedByPrompt
    }

    /// Whether a sampled token is in a span that no end token has closed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.position == Position::Inside
    }

    /// The next sampled token.
    pub fn token(&mut self, id: u32) -> ThinkToken {
        if self.position == Position::OpenedByPrompt {
            self.position = Position::Inside;
        }
        if id == self.tokens.start {
            self.position = Position::Inside;
            ThinkToken::Start
        } else if id == self.tokens.end {
            self.position = Position::Outside;
            ThinkToken::End
        } else if self.position == Position::Inside {
            ThinkToken::Thinking
        } else {
            ThinkToken::Answer
        }
    }
}

/// The entropies of the thinking of the first turns of a session.
#[derive(Debug, Default)]
pub(super) struct ThinkingTotals {
    /// The think tokens with which they were read.
    tokens: Option<ThinkTokens>,
    /// The turns that were read.
    turns: usize,
    /// Those of them that end in a span, by rising numbers, with the spans after them.
    open: Vec<(u32, ThinkSpans)>,
    /// `None` without such entropies.
    entropy: Option<Box<EntropyTotals>>,
}

impl Session {
    /// The entropies of the thinking of all turns. Turns that were not read before are read while the state is not locked.
    pub(super) fn thinking(&self, tokens: ThinkTokens) -> EntropyTotals {
        let mut known = self.thinking.lock();
        if known.tokens != Some(tokens) {
            *known = ThinkingTotals { tokens: Some(tokens), ..ThinkingTotals::default() };
        }
        loop {
            let new = {
                let state = self.state();
                let rest = state.forest.turns().get(known.turns..).unwrap_or_default();
                rest.iter().take(PER_LOCK).map(Arc::clone).collect::<Vec<_>>()
            };
            if new.is_empty() {
                return known.entropy.as_deref().cloned().unwrap_or_default();
            }
            for turn in &new {
                known.add(turn, tokens);
            }
        }
    }
}

impl ThinkingTotals {
    fn add(&mut self, turn: &Turn, tokens: ThinkTokens) {
        let place = |parent: u32| self.open.binary_search_by_key(&parent, |(turn, _)| *turn).ok();
        let before = turn.parent.and_then(place).map(|at| self.open[at].1);
        let mut spans = before.unwrap_or_else(|| ThinkSpans::new(tokens));
        spans.begin(&turn.prompt);
        let entropies = turn.known_entropies();
        for (at, id) in turn.response.iter().enumerate() {
            if spans.token(*id) == ThinkToken::Thinking
                && let Some(nats) = entropies.get(at)
            {
                self.entropy.get_or_insert_default().add(*nats);
            }
        }
        if spans.position != Position::Outside {
            self.open.push((turn.id, spans));
        }
        self.turns += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::{BOUNDLESS, draft, store};
    use crate::session::{Call, Fault};

    const THINK: ThinkTokens = ThinkTokens { start: 100, end: 101 };

    /// The tokens with a known entropy, and the sum of their entropies, which are the ids as nats.
    fn thinking(turns: &[(&[u32], &[u32], Option<Fault>)], reads_each: bool) -> (u64, f64) {
        let store = store(BOUNDLESS);
        for (prompt, response, fault) in turns {
            let mut draft = draft(prompt, response);
            draft.about.fault = *fault;
            let _ = Call::new(Arc::clone(&store), "s".into()).commit(draft);
            if reads_each {
                store.session("s").expect("it has a turn").thinking(THINK);
            }
        }
        let EntropyTotals { measured, sum, .. } = store.session("s").expect("it has turns").thinking(THINK);
        (measured, sum)
    }

    #[tokio::test]
    async fn entropies_are_those_of_spans_whenever_they_are_read() {
        let resumed: &[(&[u32], &[u32], Option<Fault>)] = &[
            (&[1, 100], &[2, 3], Some(Fault::Aborted)),
            (&[7], &[100, 5, 101, 6], None),
            (&[1, 100, 2, 3], &[4, 101, 9], Some(Fault::Aborted)),
            (&[1, 100, 2, 3, 4, 101, 9], &[8], None),
            (&[1, 100, 2, 3, 4, 101, 9, 8, 1], &[8], None),
        ];
        for reads_each in [false, true] {
            assert_eq!(thinking(resumed, reads_each), (4, 14.0), "2, 3, 4 and 5");
        }
        assert_eq!(thinking(&[(&[1], &[2, 3], None)], true), (0, 0.0));
        assert_eq!(
            thinking(&[(&[100], &[2], Some(Fault::IdsMismatch))], true),
            (0, 0.0),
            "the entropies may be others'"
        );
    }

    #[tokio::test]
    async fn other_think_tokens_are_read_again() {
        let store = store(BOUNDLESS);
        let _ = Call::new(Arc::clone(&store), "s".into()).commit(draft(&[100], &[2, 101, 3]));
        let session = store.session("s").expect("it has a turn");
        assert_eq!(session.thinking(THINK).measured, 1);
        assert_eq!(session.thinking(ThinkTokens { start: 101, end: 7 }).measured, 1);
        assert_eq!(session.thinking(ThinkTokens { start: 5, end: 7 }).measured, 0);
    }
}
