// SPDX-License-Identifier: Apache-2.0
//! The choice of the number that is reported as a token's entropy.

use crate::entropy::TokenStats;
use crate::named_enum::named_enum;

named_enum! {
    /// The reported number.
    pub enum Estimator {
        /// The log-normal estimate inside the certified interval.
        Estimate = "estimate",
        /// The entropy of the renormalised top-k, which most scripts compute; never above the true entropy.
        Renormalized = "renormalized",
        /// The certified lower bound.
        Lower = "lower",
        /// The certified upper bound.
        Upper = "upper",
        /// The entropy of the sampling distribution, after top-k, top-p and min-p.
        Sampled = "sampled",
        /// The entropy of the full distribution, measured inside the engine.
        Exact = "exact",
    }
}

impl Estimator {
    /// The estimators that a request can name.
    pub const NAMED: [Self; 5] = [Self::Estimate, Self::Renormalized, Self::Lower, Self::Upper, Self::Sampled];

    /// The reported number if the vocabulary size is unknown: without it the tail's share has no upper bound.
    #[must_use]
    pub fn without_vocabulary(self) -> Self {
        match self {
            Self::Estimate | Self::Upper => Self::Lower,
            other => other,
        }
    }

    /// The number of a token by its top-k row, in nats; NaN if the row does not determine it.
    #[must_use]
    pub fn value(self, stats: &TokenStats) -> f32 {
        match self {
            Self::Estimate => stats.estimate,
            Self::Renormalized => stats.renormalized,
            Self::Lower => stats.lower,
            Self::Upper => stats.upper,
            Self::Sampled | Self::Exact => f32::NAN,
        }
    }
}
