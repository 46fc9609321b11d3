//! Which of the numbers of a token is published as its entropy.

use crate::entropy::TokenStats;

/// The published number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimator {
    /// The power-law estimate inside the certified interval.
    Estimate,
    /// The entropy of the top-k alone, renormalised: what most scripts compute; always below the truth.
    Renormalized,
    /// The certified lower bound.
    Lower,
    /// The certified upper bound.
    Upper,
    /// The entropy of the distribution that was sampled from, after top-k, top-p and min-p.
    Sampled,
    /// The entropy of the full distribution, measured inside the engine.
    Exact,
}

impl Estimator {
    /// Those a request may name.
    pub const NAMED: [Self; 5] = [Self::Estimate, Self::Renormalized, Self::Lower, Self::Upper, Self::Sampled];

    /// The name in requests, replies and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Estimate => "estimate",
            Self::Renormalized => "renormalized",
            Self::Lower => "lower",
            Self::Upper => "upper",
            Self::Sampled => "sampled",
            Self::Exact => "exact",
        }
    }

    /// What is published when the vocabulary size is not known: the tail's share cannot be bounded from above then.
    #[must_use]
    pub fn without_vocabulary(self) -> Self {
        match self {
            Self::Estimate | Self::Upper => Self::Lower,
            other => other,
        }
    }

    /// The number that a top-k row gives for a token, in nats; NaN if it does not exist or the row does not determine it.
    #[must_use]
    pub fn of(self, stats: &TokenStats) -> f32 {
        match self {
            Self::Estimate => stats.estimate,
            Self::Renormalized => stats.renormalized,
            Self::Lower => stats.lower,
            Self::Upper => stats.upper,
            Self::Sampled | Self::Exact => f32::NAN,
        }
    }
}
