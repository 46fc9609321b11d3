// SPDX-License-Identifier: Apache-2.0
//! EGPO's `H`: the mean entropy of sampled tokens.

use std::sync::Arc;

use super::think::{ThinkCounter, known_entropies};
use super::{AdvantageOptions, EntropyScope, HIGH_ENTROPY, ThinkStats};
use crate::session::{Path, Turn};

/// The mean entropy of sampled tokens of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct MeanEntropy {
    /// The mean of the known entropies, in nats; `None` without such a token.
    pub(super) nats: Option<f64>,
    /// The entropy of a token is unknown.
    pub(super) incomplete: bool,
}

impl MeanEntropy {
    /// `H` of a path with this thinking.
    pub(super) fn new(path: &Path, think: &ThinkStats, options: &AdvantageOptions) -> Self {
        match options.entropy_over {
            EntropyScope::Thinking => Self::of_thinking(think),
            EntropyScope::Response => Self::of_response(path),
        }
    }

    /// `H` of the path that ends in each turn, by its number. Each turn is visited once, not once for each path that holds it.
    pub(super) fn by_turn(turns: &[Arc<Turn>], options: &AdvantageOptions) -> Vec<Self> {
        match options.entropy_over {
            EntropyScope::Thinking => {
                let start = ThinkCounter::new(options.think_tokens(), HIGH_ENTROPY);
                let counters = along(turns, start, ThinkCounter::turn);
                counters.into_iter().map(|counter| Self::of_thinking(&counter.finish())).collect()
            }
            EntropyScope::Response => {
                let sums = along(turns, EntropySum::default(), EntropySum::turn);
                sums.into_iter().map(EntropySum::finish).collect()
            }
        }
    }

    fn of_thinking(think: &ThinkStats) -> Self {
        Self { nats: think.mean, incomplete: think.incomplete }
    }

    /// The mean over all sampled tokens. As in [`ThinkStats`], the loss mask has no effect.
    fn of_response(path: &Path) -> Self {
        let mut sum = EntropySum::default();
        path.steps.iter().for_each(|step| sum.turn(&step.turn));
        sum.finish()
    }
}

/// The sum of the known entropies of sampled tokens.
#[derive(Debug, Clone, Copy, Default)]
struct EntropySum {
    nats: f64,
    known: u32,
    incomplete: bool,
}

impl EntropySum {
    fn turn(&mut self, turn: &Turn) {
        for entropy in known_entropies(turn) {
            match entropy {
                Some(nats) => (self.nats, self.known) = (self.nats + nats, self.known + 1),
                None => self.incomplete = true,
            }
        }
    }

    fn finish(self) -> MeanEntropy {
        let nats = (self.known > 0).then(|| self.nats / f64::from(self.known));
        MeanEntropy { nats, incomplete: self.incomplete }
    }
}

/// The value of the path that ends in each turn: that of its parent, to which the turn is added. A parent's number is below its children's.
fn along<T: Copy>(turns: &[Arc<Turn>], start: T, add: impl Fn(&mut T, &Turn)) -> Vec<T> {
    let mut known: Vec<T> = Vec::with_capacity(turns.len());
    for turn in turns {
        let mut value = turn.parent.map_or(start, |parent| known[parent as usize]);
        add(&mut value, turn);
        known.push(value);
    }
    known
}

#[cfg(test)]
mod tests {
    use super::super::tests::{END, START, path, turn};
    use super::*;

    #[test]
    fn response_has_all_sampled_tokens_of_all_turns() {
        let turns = vec![turn(&[1], &[START, 7, END], &[1.0, 2.0, 3.0]), turn(&[2], &[8, 9], &[6.0, 8.0])];
        let mut path = path("s", turns);
        path.steps[0].trained = false;
        assert_eq!(MeanEntropy::of_response(&path), MeanEntropy { nats: Some(4.0), incomplete: false });
    }

    #[test]
    fn each_turn_of_a_branched_session_has_the_mean_of_its_path() {
        let mut turns = vec![
            turn(&[1, START], &[7], &[2.0]),
            turn(&[], &[8, END, 9], &[4.0, 0.0, 1.0]),
            turn(&[], &[8, END, 9], &[6.0, 0.0, f32::NAN]),
            turn(&[5], &[START, 6], &[1.0, f32::NAN]),
        ];
        for (id, parent) in [(1, 0), (2, 0), (3, 1)] {
            turns[id].parent = Some(parent);
        }
        let turns: Vec<Arc<Turn>> = (0..).zip(turns).map(|(id, turn)| Arc::new(Turn { id, ..turn })).collect();
        for (scope, line) in [("thinking", &[0, 1, 3][..]), ("response", &[0, 2])] {
            let body = format!(r#"{{"entropy_over":"{scope}","think_start":{START},"think_end":{END}}}"#);
            let options: AdvantageOptions = serde_json::from_str(&body).unwrap();
            let path = path("s", line.iter().map(|id| Turn::clone(&turns[*id])).collect());
            let think = ThinkStats::new(&path, options.think_tokens(), HIGH_ENTROPY);
            let leaf = *line.last().unwrap();
            assert_eq!(
                MeanEntropy::by_turn(&turns, &options)[leaf],
                MeanEntropy::new(&path, &think, &options),
                "{scope}"
            );
        }
    }

    #[test]
    fn unknown_entropies_of_a_response_are_excluded_and_set_incomplete() {
        let of = |turns| MeanEntropy::of_response(&path("s", turns));
        let partly = of(vec![turn(&[1], &[7, 8], &[2.0, f32::NAN]), turn(&[2], &[9], &[])]);
        assert_eq!(partly, MeanEntropy { nats: Some(2.0), incomplete: true });
        assert_eq!(of(vec![turn(&[1], &[7], &[])]), MeanEntropy { nats: None, incomplete: true });
        assert_eq!(of(vec![turn(&[1], &[], &[])]), MeanEntropy::default());
    }
}
