//! How far the tokens that are kept are from what the template would make of the conversation.
//!
//! They may differ: what was sampled is rarely what encoding its text gives, and thoughts are kept that templates drop. What must not
//! differ unseen is the frame around it. Two prompts are cut at their control tokens, and the pieces compared.

use std::collections::HashSet;

/// How two prompts differ, the gravest first.
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

    /// Compares the tokens that went out, of which `sampled` says which were sampled, with those of a `rendered` conversation.
    #[must_use]
    pub fn between(sent: &[u32], sampled: &[bool], rendered: &[u32], controls: &HashSet<u32>) -> Self {
        let (ours, theirs) = (pieces(sent, controls), pieces(rendered, controls));
        if ours.len() != theirs.len() {
            return Self::SpecialCount;
        }
        let mut worst = Self::None;
        let mut at = 0;
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let (is_control, length) = (ours.first().is_some_and(|id| controls.contains(id)), ours.len());
            if ours != theirs {
                let was_sampled = sampled.get(at..at + length).is_some_and(|flags| flags.contains(&true));
                worst = worst.min(match (is_control, was_sampled) {
                    (true, _) => Self::SpecialType,
                    (false, true) => Self::SampledText,
                    (false, false) => Self::OtherText,
                });
            }
            at += length;
        }
        worst
    }
}

/// Control tokens, each for itself, and what lies between them, which may be nothing.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_difference_is_named() {
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
