// SPDX-License-Identifier: Apache-2.0
//! The entropies of the thinking of a session.

use std::sync::Arc;

use super::{PER_LOCK, Session};
use crate::session::{EntropyTotals, ThinkSpans, ThinkToken, ThinkTokens, Turn};

/// The entropies of the thinking of the first turns of a session.
#[derive(Debug, Default)]
pub(in crate::session) struct ThinkingTotals {
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
    pub(in crate::session) fn thinking(&self, tokens: ThinkTokens) -> EntropyTotals {
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
        if spans.is_in_span() {
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
