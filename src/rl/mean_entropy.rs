//! EGPO's `H`: the mean entropy of sampled tokens.

use super::think::known_entropies;
use super::{AdvantageOptions, EntropyScope, ThinkStats};
use crate::session::Path;

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
    pub(super) fn of(path: &Path, think: &ThinkStats, options: &AdvantageOptions) -> Self {
        match options.entropy_over {
            EntropyScope::Thinking => Self { nats: think.mean, incomplete: think.incomplete },
            EntropyScope::Response => Self::of_response(path),
        }
    }

    /// The mean over all sampled tokens. As in [`ThinkStats`], the loss mask has no effect.
    fn of_response(path: &Path) -> Self {
        let entropies = path.steps.iter().flat_map(|step| known_entropies(&step.turn));
        let (mut sum, mut known, mut incomplete) = (0.0, 0_u32, false);
        for entropy in entropies {
            match entropy {
                Some(nats) => (sum, known) = (sum + nats, known + 1),
                None => incomplete = true,
            }
        }
        Self { nats: (known > 0).then(|| sum / f64::from(known)), incomplete }
    }
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
    fn unknown_entropies_of_a_response_are_excluded_and_set_incomplete() {
        let of = |turns| MeanEntropy::of_response(&path("s", turns));
        let partly = of(vec![turn(&[1], &[7, 8], &[2.0, f32::NAN]), turn(&[2], &[9], &[])]);
        assert_eq!(partly, MeanEntropy { nats: Some(2.0), incomplete: true });
        assert_eq!(of(vec![turn(&[1], &[7], &[])]), MeanEntropy { nats: None, incomplete: true });
        assert_eq!(of(vec![turn(&[1], &[], &[])]), MeanEntropy::default());
    }
}
