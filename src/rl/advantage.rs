// SPDX-License-Identifier: Apache-2.0
//! Advantages: from the rewards of a group (GRPO), and shaped by entropy (EGPO).

/// The constant that verl adds to the standard deviation.
const EPSILON: f64 = 1e-6;

/// Mean and standard deviation of a group's rewards, as in verl's `compute_grpo_outcome_advantage`.
///
/// verl computes in float32 and this in float64. They agree to about 1e-5, relative, if the standard deviation is well above 1e-6. If all
/// rewards are equal, the advantage here is exactly 0; in float32 the rounding of the mean may leave up to about 1e-2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupStats {
    /// The mean; 0 for a group of one.
    pub mean: f64,
    /// The unbiased standard deviation, with n - 1 in the denominator; 1 for a group of one.
    pub std: f64,
}

impl GroupStats {
    /// Computes the statistics of `rewards`, which must be finite and in the range of float32.
    #[must_use]
    pub fn new(rewards: &[f64]) -> Self {
        let [first, _, ..] = rewards else { return Self { mean: 0.0, std: 1.0 } };
        let count = rewards.len() as f64;
        // relative to the first reward, so that the mean of equal rewards is exactly that reward
        let mean = first + rewards.iter().map(|reward| reward - first).sum::<f64>() / count;
        let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
        Self { mean, std: (squares / (count - 1.0)).sqrt() }
    }

    /// Returns the advantage: `(reward - mean) / (std + 1e-6)`, or `reward - mean` without `normalize_std` (Dr. GRPO, arXiv 2503.20783).
    #[must_use]
    pub fn advantage(&self, reward: f64, normalize_std: bool) -> f64 {
        let centred = reward - self.mean;
        if normalize_std { centred / (self.std + EPSILON) } else { centred }
    }
}

/// The entropy bonus of EGPO: `A + lambda * clip(H, -|A|/alpha, |A|/alpha)`.
///
/// `H` is not negative, so the bonus is `lambda * min(H, |A|/alpha)` for either sign of `A`. With `|lambda| < alpha` no advantage
/// changes its sign.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shaping {
    /// The weight of the bonus, per nat.
    pub lambda: f64,
    /// The clipped entropy is at most `|A| / alpha`; positive.
    pub alpha: f64,
}

impl Shaping {
    /// Returns the shaped advantage. `entropy` is the mean entropy `H` in nats. Without it the advantage is unchanged.
    #[must_use]
    pub fn apply(&self, advantage: f64, entropy: Option<f64>) -> f64 {
        let Some(entropy) = entropy else { return advantage };
        let bound = advantage.abs() / self.alpha;
        advantage + self.lambda * entropy.clamp(-bound, bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEFAULT: Shaping = Shaping { lambda: 0.4, alpha: 2.0 };

    #[test]
    fn advantages_of_a_group_are_centred_and_scaled() {
        let stats = GroupStats::new(&[1.0, 0.0, 0.0, 1.0]);
        assert_eq!(stats, GroupStats { mean: 0.5, std: (1.0_f64 / 3.0).sqrt() });
        assert!((stats.advantage(1.0, true) - 0.866_023_903_787_036_7).abs() < 1e-12);
        assert_eq!(stats.advantage(0.0, false), -0.5);
    }

    #[test]
    fn advantage_of_a_group_of_one_is_not_centred() {
        let stats = GroupStats::new(&[3.0]);
        assert_eq!(stats, GroupStats { mean: 0.0, std: 1.0 });
        assert_eq!(stats.advantage(3.0, true), 3.0 / 1.000_001);
        assert_eq!(stats.advantage(3.0, false), 3.0);
    }

    #[test]
    fn advantage_of_equal_rewards_is_exactly_zero() {
        let stats = GroupStats::new(&[0.1; 7]);
        assert_eq!((stats.mean, stats.std, stats.advantage(0.1, true)), (0.1, 0.0, 0.0));
    }

    #[test]
    fn bonus_is_added_for_either_sign_and_clipped_by_the_absolute_advantage() {
        assert_eq!(DEFAULT.apply(1.0, Some(0.25)), 1.1);
        assert_eq!(DEFAULT.apply(1.0, Some(9.0)), 1.2);
        assert_eq!(DEFAULT.apply(-1.0, Some(0.25)), -0.9);
        assert_eq!(DEFAULT.apply(-1.0, Some(9.0)), -0.8);
        assert_eq!(DEFAULT.apply(-1.0, None), -1.0);
        assert_eq!(DEFAULT.apply(0.0, Some(9.0)), 0.0);
    }

    proptest! {
        #[test]
        fn lambda_below_alpha_never_changes_the_sign_of_an_advantage(
            advantage in -1e6..1e6_f64, entropy in 0.0..20.0_f64, lambda in 0.0..0.99_f64, alpha in 1.0..100.0_f64,
        ) {
            let shaped = Shaping { lambda, alpha }.apply(advantage, Some(entropy));
            prop_assert_eq!(shaped.signum(), advantage.signum());
            prop_assert!(shaped >= advantage, "the bonus is never negative");
        }

        #[test]
        fn advantage_of_zero_is_not_shaped(
            entropy in proptest::option::of(0.0..20.0_f64), lambda in -9.0..9.0_f64, alpha in 1e-9..9.0_f64,
        ) {
            prop_assert_eq!(Shaping { lambda, alpha }.apply(0.0, entropy), 0.0);
        }

        #[test]
        fn advantages_do_not_depend_on_the_order_of_the_group(rewards in proptest::collection::vec(-1e3..1e3_f64, 2..9), by in 0..9_usize) {
            let mut reordered = rewards.clone();
            reordered.rotate_left(by % rewards.len());
            reordered.swap(0, 1);
            let (stats, other) = (GroupStats::new(&rewards), GroupStats::new(&reordered));
            for reward in rewards {
                let (a, b) = (stats.advantage(reward, true), other.advantage(reward, true));
                prop_assert!((a - b).abs() < 1e-9, "{} and {}", a, b);
            }
        }
    }
}
