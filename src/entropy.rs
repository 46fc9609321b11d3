// SPDX-License-Identifier: Apache-2.0
//! Entropy of the policy at each token, in nats, from the token's top-k logprobs or its whole row of logits.
//!
//! A top-k slice does not determine the entropy of the full distribution, so a token gets four
//! numbers instead of one:
//!
//! * *renormalized*: the entropy of the slice scaled to sum to one; never above the true value;
//! * *lower* and *upper*: the tightest interval that the slice and the vocabulary size allow;
//! * *estimate*: a point inside that interval, from a log-normal tail.
//!
//! Notation in this module: `p_1 >= .. >= p_k` the reported probabilities, `l_i = ln p_i`,
//! `phi(x) = -x ln x`, `r = 1 - sum p_i` the tail mass, `V` the vocabulary, `n = V - k` the number
//! of tail tokens, each of which has at most `p_k`.

mod approx;
mod bounds;
mod cpu;
mod estimator;
mod flags;
mod head;
mod kernel;
mod lanes;
mod report;
pub(crate) mod rows;
mod scratch;
mod support;
mod tail;

pub use cpu::Cpu;
pub use estimator::Estimator;
pub use flags::Flags;
pub use rows::{Dtype, Logits, RowStats};
pub use support::whole_entropy;

use crate::logprobs::Rows;

/// Logprobs at or below this are masked tokens of probability zero: engines clamp `-inf` to the
/// most negative finite float before they send it.
pub const MASKED: f32 = -1e30;

/// The threshold of a token with high entropy, in nats: the 80th percentile in the "80/20" paper (arXiv 2506.01939).
pub const HIGH_ENTROPY: f64 = 0.672;

/// A batch of tokens to measure.
#[derive(Debug, Clone, Copy)]
pub struct TopK<'a> {
    /// One row a token: its `k` largest logprobs over the whole vocabulary, in any order.
    pub rows: &'a Rows,
    /// The logprob of the sampled token, one a row; NaN, or a slice that ends early, is unknown.
    pub chosen: &'a [f32],
    /// The number of tokens the distributions range over, where it is known.
    pub vocab: Option<u32>,
    /// Also compute varentropy, margin, confidence and rank.
    pub stats: bool,
}

/// The statistics of a token, computed from its row of logprobs. Entropies are in nats; NaN means unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenStats {
    /// Entropy of the row scaled to sum to one, `ln P - sum p_i l_i / P` with `P = sum p_i`.
    /// At most the true entropy, because no tail token is likelier than a reported one.
    pub renormalized: f32,
    /// The least entropy that fits the row: as much of the tail as possible in tokens of `p_k`,
    /// the remainder in one more (the concave tail entropy is least at a vertex).
    pub lower: f32,
    /// The greatest entropy that fits the row: a uniform tail, `sum phi(p_i) + r ln(n/r)`.
    /// NaN when the vocabulary is unknown.
    pub upper: f32,
    /// A log-normal tail below `p_k` with mass `r`, clamped to the interval. NaN when the vocabulary
    /// is unknown.
    pub estimate: f32,
    /// `r`, the probability of all tokens the row does not report (a sampled one included).
    pub tail_mass: f32,
    /// Variance of the surprisal under the renormalised row, in nats squared. With `stats` only.
    pub varentropy: f32,
    /// `p_1 - p_2`; NaN when one value is reported and more tokens exist. With `stats` only.
    pub margin: f32,
    /// `-sum l_i / k`, the mean negative logprob of the reported tokens. With `stats` only.
    pub confidence: f32,
    /// `-l` of the sampled token; NaN when unknown, infinite when it is masked.
    pub surprisal: f32,
    /// Place of the sampled token in the row, 1 for the likeliest, ties sharing the best place;
    /// 0 when it is outside the row or unknown. With `stats` only.
    pub rank: u32,
    /// Unusual conditions of the row.
    pub flags: Flags,
}

impl TokenStats {
    /// Statistics without values, only with flags.
    pub(crate) fn unmeasured(flags: Flags) -> TokenStats {
        TokenStats {
            renormalized: f32::NAN,
            lower: f32::NAN,
            upper: f32::NAN,
            estimate: f32::NAN,
            tail_mass: f32::NAN,
            varentropy: f32::NAN,
            margin: f32::NAN,
            confidence: f32::NAN,
            surprisal: f32::NAN,
            rank: 0,
            flags,
        }
    }
}
