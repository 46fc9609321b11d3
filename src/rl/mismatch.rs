//! The mismatch between the policy that sampled tokens and the one that trains: statistics of the log ratio of their probabilities.

use serde::Serialize;

/// How the weights of importance sampling are bounded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioLimits {
    /// The largest weight of a token: `min(ratio, cap)` in truncated importance sampling. Masked importance sampling gives the weight 0 to a
    /// token whose ratio is above it, or below its inverse. At least 1.
    pub cap: f64,
    /// The share of tokens with an absolute log ratio above this is counted, in nats.
    pub limit: f64,
}

impl RatioLimits {
    /// verl's default of the cap, and a factor of 2.
    pub const DEFAULT: Self = Self { cap: 2.0, limit: std::f64::consts::LN_2 };

    /// The weight of truncated importance sampling (TIS).
    #[must_use]
    pub fn truncated(&self, log_ratio: f64) -> f64 {
        log_ratio.exp().min(self.cap)
    }

    /// The weight of masked importance sampling (MIS).
    #[must_use]
    pub fn masked(&self, log_ratio: f64) -> f64 {
        if log_ratio.abs() > self.cap.ln() { 0.0 } else { log_ratio.exp() }
    }
}

/// Statistics of log ratios `l = logprob of the scoring policy - logprob of the sampling policy` of sampled tokens, in nats. The tokens were
/// sampled from the second one, so the means estimate `KL(sampling || scoring)`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Mismatch {
    /// The number of tokens.
    pub tokens: usize,
    /// The mean of `l`; the estimator k1 of the KL divergence is its negative. `None` without tokens, as all members below.
    pub mean: Option<f64>,
    /// The mean of `-l`: the estimator k1.
    pub k1: Option<f64>,
    /// The mean of `exp(l) - 1 - l`: the estimator k3, which is never negative.
    pub k3: Option<f64>,
    /// The 99th percentile of `|l|`: the smallest value that at least 99 % of the tokens do not exceed.
    pub p99: Option<f64>,
    /// The largest `|l|`.
    pub max: Option<f64>,
    /// The share of tokens with `|l|` above the limit, 0 to 1.
    pub above_limit: Option<f64>,
    /// The mean of the truncated weights.
    pub tis_mean: Option<f64>,
    /// The share of tokens that masked importance sampling drops, 0 to 1.
    pub mis_masked: Option<f64>,
}

impl Mismatch {
    /// Computes the statistics. Estimators: <http://joschu.net/blog/kl-approx.html>.
    #[must_use]
    pub fn new(log_ratios: &[f64], limits: &RatioLimits) -> Self {
        if log_ratios.is_empty() {
            return Self::default();
        }
        let count = log_ratios.len();
        let mean =
            |of: &dyn Fn(f64) -> f64| Some(log_ratios.iter().map(|ratio| of(*ratio)).sum::<f64>() / count as f64);
        let mut sizes: Vec<f64> = log_ratios.iter().map(|ratio| ratio.abs()).collect();
        sizes.sort_unstable_by(f64::total_cmp);
        // the smallest rank with at least 99 % of the tokens
        let rank = (count * 99).div_ceil(100);
        Self {
            tokens: count,
            mean: mean(&|ratio| ratio),
            k1: mean(&|ratio| -ratio),
            // expm1 keeps the digits of small ratios
            k3: mean(&|ratio| ratio.exp_m1() - ratio),
            p99: Some(sizes[rank - 1]),
            max: sizes.last().copied(),
            above_limit: mean(&|ratio| f64::from(u8::from(ratio.abs() > limits.limit))),
            tis_mean: mean(&|ratio| limits.truncated(ratio)),
            mis_masked: mean(&|ratio| f64::from(u8::from(limits.masked(ratio) == 0.0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_policies_have_no_mismatch() {
        let same = Mismatch::new(&[0.0; 5], &RatioLimits::DEFAULT);
        assert_eq!((same.tokens, same.mean, same.k1, same.k3), (5, Some(0.0), Some(0.0), Some(0.0)));
        assert_eq!((same.p99, same.max, same.above_limit), (Some(0.0), Some(0.0), Some(0.0)));
        assert_eq!((same.tis_mean, same.mis_masked), (Some(1.0), Some(0.0)));
        assert_eq!(Mismatch::new(&[], &RatioLimits::DEFAULT), Mismatch::default());
    }

    #[test]
    fn weights_are_truncated_or_masked() {
        let limits = RatioLimits { cap: 2.0, limit: 0.5 };
        assert_eq!((limits.truncated(3.0), limits.masked(3.0)), (2.0, 0.0));
        assert_eq!((limits.truncated(-3.0), limits.masked(-3.0)), ((-3.0_f64).exp(), 0.0));
        assert_eq!((limits.truncated(0.5), limits.masked(0.5)), (0.5_f64.exp(), 0.5_f64.exp()));
        let found = Mismatch::new(&[3.0, -3.0, 0.25, 0.0], &limits);
        assert_eq!((found.above_limit, found.mis_masked, found.max), (Some(0.5), Some(0.5), Some(3.0)));
        assert_eq!((found.mean, found.k1), (Some(0.0625), Some(-0.0625)));
    }

    #[test]
    fn percentile_is_the_smallest_value_that_99_percent_do_not_exceed() {
        let ratios: Vec<f64> = (1..=200).map(f64::from).map(|ratio| ratio / 100.0).collect();
        assert_eq!(Mismatch::new(&ratios, &RatioLimits::DEFAULT).p99, Some(1.98));
        assert_eq!(Mismatch::new(&[1.0, 2.0], &RatioLimits::DEFAULT).p99, Some(2.0));
    }

    proptest! {
        #[test]
        fn k3_is_not_negative(ratios in prop::collection::vec(-5.0..5.0_f64, 1..50)) {
            let found = Mismatch::new(&ratios, &RatioLimits::DEFAULT);
            prop_assert!(found.k3.unwrap() >= 0.0);
            prop_assert!(found.p99.unwrap() <= found.max.unwrap());
            prop_assert!(found.tis_mean.unwrap() <= RatioLimits::DEFAULT.cap);
        }
    }
}
