// SPDX-License-Identifier: Apache-2.0
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
    /// The 99th percentile of `|l|`: the smallest value that at least 99 % of the tokens do not exceed. `None` in sums.
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
        let mut sums = MismatchSums::default();
        log_ratios.iter().for_each(|ratio| sums.add(*ratio, limits));
        let mut sizes: Vec<f64> = log_ratios.iter().map(|ratio| ratio.abs()).collect();
        sizes.sort_unstable_by(f64::total_cmp);
        // the smallest rank with at least 99 % of the tokens
        let rank = (sizes.len() * 99).div_ceil(100);
        Self { p99: rank.checked_sub(1).map(|at| sizes[at]), ..sums.mismatch() }
    }
}

/// The sums of statistics of log ratios, which take the same memory for any number of tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct MismatchSums {
    tokens: usize,
    ratio: f64,
    k3: f64,
    max: f64,
    above_limit: usize,
    truncated: f64,
    masked: usize,
}

impl MismatchSums {
    /// Adds the log ratio of a token.
    pub fn add(&mut self, ratio: f64, limits: &RatioLimits) {
        self.tokens += 1;
        self.ratio += ratio;
        // expm1 keeps the digits of small ratios
        self.k3 += ratio.exp_m1() - ratio;
        self.max = self.max.max(ratio.abs());
        self.above_limit += usize::from(ratio.abs() > limits.limit);
        self.truncated += limits.truncated(ratio);
        self.masked += usize::from(limits.masked(ratio) == 0.0);
    }

    /// The statistics, without the percentile.
    #[must_use]
    pub fn mismatch(&self) -> Mismatch {
        let has_tokens = self.tokens > 0;
        let mean = |sum: f64| has_tokens.then(|| sum / self.tokens as f64);
        Mismatch {
            tokens: self.tokens,
            mean: mean(self.ratio),
            k1: mean(-self.ratio),
            k3: mean(self.k3),
            p99: None,
            max: has_tokens.then_some(self.max),
            above_limit: mean(self.above_limit as f64),
            tis_mean: mean(self.truncated),
            mis_masked: mean(self.masked as f64),
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
