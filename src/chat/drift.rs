// SPDX-License-Identifier: Apache-2.0
//! Compares the tokens of a prompt that reuses a session's tokens with the tokens that the template renders for the whole conversation.
//!
//! Sampled text may differ: sampled tokens are rarely the tokens that the encoder returns for their text, and a prompt keeps thoughts that
//! templates drop. A difference in control tokens or in other text must be detected. Both prompts are split at their control tokens, and
//! the pieces are compared.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

/// How two prompts differ, from the largest to the smallest difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drift {
    /// The numbers of control tokens differ.
    SpecialCount,
    /// The numbers of control tokens are equal, but some tokens differ.
    SpecialType,
    /// Text that was not sampled differs: a message, or the template's text around it.
    OtherText,
    /// Sampled text differs, in its tokens only or also in its characters.
    SampledText,
    /// No difference.
    None,
}

impl Drift {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::SpecialCount, Self::SpecialType, Self::OtherText, Self::SampledText, Self::None];

    /// The name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SpecialCount => "special_count",
            Self::SpecialType => "special_type",
            Self::OtherText => "other_text",
            Self::SampledText => "sampled_text",
            Self::None => "none",
        }
    }

    /// Compares the tokens that were `sent` with the tokens of the `rendered` conversation, and returns the largest difference. `sampled`
    /// has a flag for each sent token.
    #[must_use]
    pub fn between(sent: &[u32], sampled: &[bool], rendered: &[u32], controls: &HashSet<u32>) -> Self {
        let (ours, theirs) = (pieces(sent, controls), pieces(rendered, controls));
        if ours.len() != theirs.len() {
            return Self::SpecialCount;
        }
        let mut largest = Self::None;
        let mut at = 0;
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let (is_control, length) = (ours.first().is_some_and(|id| controls.contains(id)), ours.len());
            if ours != theirs {
                let was_sampled = sampled.get(at..at + length).is_some_and(|flags| flags.contains(&true));
                largest = largest.min(match (is_control, was_sampled) {
                    (true, _) => Self::SpecialType,
                    (false, true) => Self::SampledText,
                    (false, false) => Self::OtherText,
                });
            }
            at += length;
        }
        largest
    }
}

/// Splits a prompt: each control token is a piece, and so are the tokens between two control tokens.
fn pieces<'a>(ids: &'a [u32], controls: &HashSet<u32>) -> Vec<&'a [u32]> {
    let mut pieces = Vec::new();
    let mut from = 0;
    for (at, id) in ids.iter().enumerate() {
        if controls.contains(id) {
            pieces.extend([&ids[from..at], &ids[at..=at]]);
            from = at + 1;
        }
    }
    pieces.push(&ids[from..]);
    pieces
}

/// Selects the prompts that are compared.
#[derive(Debug)]
pub(super) struct DriftSampler {
    count: AtomicU64,
    /// One comparison runs at a time.
    pub(super) permit: Arc<Semaphore>,
}

impl Default for DriftSampler {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), permit: Arc::new(Semaphore::new(1)) }
    }
}

impl DriftSampler {
    /// Whether this prompt is in the sample: an evenly spread `share` of all prompts, from 0 to 1.
    pub(super) fn is_due(&self, share: f64) -> bool {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let due = |count: u64| (count as f64 * share).floor();
        due(before + 1) > due(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_selects_an_evenly_spread_share() {
        let due = |share: f64| {
            let sampler = DriftSampler::default();
            (0..1000).filter(|_| sampler.is_due(share)).count()
        };
        assert_eq!([due(0.0), due(0.01), due(0.5), due(1.0)], [0, 10, 500, 1000]);
    }

    #[test]
    fn largest_difference_is_reported() {
        let controls = HashSet::from([100, 101]);
        let sampled: Vec<bool> = [0, 0, 0, 1, 1, 0, 0].iter().map(|flag| *flag == 1).collect();
        let sent = [100, 1, 101, 2, 3, 100, 4];
        let of = |rendered: &[u32]| Drift::between(&sent, &sampled, rendered, &controls);
        assert_eq!(of(&sent), Drift::None);
        assert_eq!(of(&[100, 1, 101, 5, 100, 4]), Drift::SampledText);
        assert_eq!(of(&[100, 9, 101, 2, 3, 100, 4]), Drift::OtherText);
        assert_eq!(of(&[100, 9, 101, 5, 100, 4]), Drift::OtherText);
        assert_eq!(of(&[100, 1, 101, 2, 3, 101, 4]), Drift::SpecialType);
        assert_eq!(of(&[100, 1, 101, 2, 3, 100, 4, 100]), Drift::SpecialCount);
        assert_eq!(of(&[]), Drift::SpecialCount);
    }
}
