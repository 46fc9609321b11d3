//! The engine's own numbers of a sequence, and whether they are those of its tokens.

use super::{Sequence, Step};
use crate::generation::forcing::Exact;

/// What became of numbers that the engine itself was to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It said none.
    Missing,
    /// It did not say one a token, so that nobody knows whose they are.
    Misaligned,
    /// It said that it knows none of them.
    Null,
}

impl Lost {
    /// The label of the metric.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Misaligned => "misaligned",
            Self::Null => "null",
        }
    }
}

impl Sequence {
    /// Takes the engine's own numbers of the tokens of `step` from `said`, what was read of its list; `listed` is how many tokens the
    /// event's own lists were read to have. One NaN a token where they do not belong to the tokens, which is then so for good.
    pub fn take_exact(&mut self, said: Option<&[f32]>, listed: usize, step: &Step, out: &mut Vec<f32>) {
        out.clear();
        if step.new > 0 && self.lost.is_none() {
            self.lost = match said {
                // an event may end a sequence that has shown no token yet
                None if self.exact_seen == 0 => Some(Lost::Missing),
                Some(said) if said.len() == listed || step.merged > 0 && said.len() == step.merged => None,
                _ => Some(Lost::Misaligned),
            };
        }
        // what an abort was merged with is the delta alone
        let from = if said.is_some_and(|said| said.len() == listed) { step.chosen_from } else { 0 };
        let taken = said.filter(|_| self.lost.is_none()).and_then(|said| said.get(from..));
        out.extend(taken.unwrap_or_default().iter().take(step.new));
        self.exact_seen += out.len();
        out.resize(step.new, f32::NAN);
    }

    /// What became of the engine's own numbers of a sequence that has ended.
    #[must_use]
    pub fn lost_exact(&self, exact: Option<Exact>) -> Option<Lost> {
        exact?;
        self.lost.or_else(|| (self.tokens > 0 && self.measured == 0).then_some(Lost::Null))
    }
}
