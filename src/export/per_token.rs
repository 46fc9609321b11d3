// SPDX-License-Identifier: Apache-2.0
//! The values that every token of a row has: id, mask, logprob, entropy, advantage.

use super::safetensors::{Run, Sink};
use super::text::Text;
use crate::session::{Advantages, Path, Row, Segment, TokenAdvantages};

/// A value of each token of a row.
#[derive(Debug, Clone, Copy)]
pub(super) enum PerToken<'a> {
    /// The token, or the padding.
    Ids {
        /// `pad_token_id`.
        pad: u32,
    },
    /// 1 at trained tokens.
    Mask,
    /// 0.0 where the mask is 0.
    Logprobs,
    /// 0.0 where the mask is 0.
    Entropy,
    /// 0.0 where the mask is 0.
    Advantage(&'a Advantages),
}

impl<'a> PerToken<'a> {
    /// Writes the values of these segments to `sink`: exactly `width` values, truncated or padded on the right.
    pub(super) fn fill<'s>(self, segments: impl Iterator<Item = Segment<'s>>, width: usize, sink: Sink<'_>)
    where
        'a: 's,
    {
        let mut room = width;
        for segment in segments {
            let count = segment.ids.len().min(room);
            sink(self.run(&segment, count));
            room -= count;
        }
        sink(self.blank(room));
    }

    fn run<'s>(self, segment: &Segment<'s>, count: usize) -> Run<'s>
    where
        'a: 's,
    {
        match (self, numbers(self, segment)) {
            (Self::Ids { .. }, _) => Run::Ids(&segment.ids[..count]),
            (Self::Mask, _) => Run::Integer(segment.trained.into(), count),
            (Self::Advantage(advantages), _) if segment.trained => match advantages.of(segment.turn) {
                TokenAdvantages::Same(advantage) => Run::Float(advantage, count),
                TokenAdvantages::Each(advantages) => Run::Floats(&advantages[..count]),
            },
            (_, Some(numbers)) if segment.trained => Run::Floats(&numbers[..count]),
            (Self::Logprobs | Self::Entropy | Self::Advantage(_), _) => Run::Float(0.0, count),
        }
    }

    fn blank(self, count: usize) -> Run<'static> {
        match self {
            Self::Ids { pad } => Run::Integer(pad.into(), count),
            Self::Mask => Run::Integer(0, count),
            Self::Logprobs | Self::Entropy | Self::Advantage(_) => Run::Float(0.0, count),
        }
    }

    /// Writes the values of these segments as a JSON list, with `blank` where the mask is 0, and null for a missing number.
    pub(super) fn list<'s>(self, segments: impl Iterator<Item = Segment<'s>>, blank: &str, text: &mut Text) {
        text.array(|list| {
            for segment in segments {
                let count = segment.ids.len();
                match (self, numbers(self, &segment)) {
                    (Self::Ids { .. }, _) => list.ids(segment.ids),
                    (Self::Mask, _) => list.repeat(if segment.trained { "1" } else { "0" }, count),
                    (Self::Logprobs | Self::Entropy | Self::Advantage(_), _) if !segment.trained => {
                        list.repeat(blank, count)
                    }
                    (Self::Advantage(advantages), _) => match advantages.of(segment.turn) {
                        TokenAdvantages::Same(advantage) => list.floats(&vec![advantage; count]),
                        TokenAdvantages::Each(advantages) => list.floats(advantages),
                    },
                    (_, Some(numbers)) => list.floats(numbers),
                    (_, None) => list.repeat("null", count),
                }
            }
        });
    }
}

/// The numbers of a segment, one per token, if it has any.
pub(super) fn numbers<'a>(values: PerToken<'_>, segment: &Segment<'a>) -> Option<&'a [f32]> {
    let numbers = match values {
        PerToken::Logprobs => segment.logprobs,
        PerToken::Entropy => segment.entropy,
        PerToken::Ids { .. } | PerToken::Mask | PerToken::Advantage(_) => return None,
    };
    (numbers.len() == segment.ids.len()).then_some(numbers)
}

/// Writes a member with the entropies after the first prompt, 0.0 where the mask is 0; null if none was measured.
pub(super) fn entropies(path: &Path, name: &str, text: &mut Text) {
    if super::settle::is_measured(path) {
        PerToken::Entropy.list(response(path), "0.0", text.key(name));
    } else {
        text.key(name).literal("null");
    }
}

/// The rows of a tensor `advantages`, zeros for a row without advantages.
pub(super) fn fill_advantages<'a>(
    row: &'a Row,
    segments: impl Iterator<Item = Segment<'a>>,
    width: usize,
    sink: Sink<'_>,
) {
    match &row.marks.advantages {
        Some(advantages) => PerToken::Advantage(advantages).fill(segments, width, sink),
        None => sink(Run::Float(0.0, width)),
    }
}

/// Writes the member `advantages` with one value for each token of these segments, if the row has an advantage.
pub(super) fn advantages<'a>(path: &'a Path, segments: impl Iterator<Item = Segment<'a>>, text: &mut Text) {
    if let Some(advantages) = &path.marks.advantages {
        PerToken::Advantage(advantages).list(segments, "0.0", text.key("advantages"));
    }
}

/// The tokens of the first prompt.
pub(super) fn prompt(path: &Path) -> &[u32] {
    path.steps.first().map_or(&[], |step| &step.turn.prompt)
}

/// The segments after the first prompt. Trainers call them the response.
pub(super) fn response(path: &Path) -> impl Iterator<Item = Segment<'_>> {
    path.segments().skip(usize::from(path.prompt_len() > 0))
}
