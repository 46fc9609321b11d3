// SPDX-License-Identifier: Apache-2.0
//! A path of a session, read from the control port in ranges.

use std::ops::Range;

use serde::Deserialize;

use crate::cli::control::{ControlClient, percent_encoded};
use crate::config::ShowArgs;

/// The number of tokens of a request.
const RANGE: usize = 32_768;

/// The share of the sampled tokens below the entropy of a spike, as on the page.
const SPIKE_QUANTILE: f64 = 0.95;

/// Everything about a path but its tokens.
#[derive(Debug, Deserialize)]
pub(super) struct Head {
    pub(super) session: String,
    pub(super) leaf: u32,
    /// The number of tokens of the path.
    pub(super) tokens: usize,
    pub(super) segments: Vec<Segment>,
    pub(super) policy: Vec<PolicySpan>,
    /// The ids of the tokens that open and close thinking.
    think: Option<ThinkIds>,
}

/// Tokens of a prompt or of a response. Positions count the tokens of the whole path.
#[derive(Debug, Deserialize)]
pub(super) struct Segment {
    pub(super) turn: u32,
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) loss_mask: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Prompt,
    Response,
}

/// Sampled tokens of one policy.
#[derive(Debug, Deserialize)]
pub(super) struct PolicySpan {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) epoch: u64,
    pub(super) weight_version: Option<String>,
    pub(super) version: Option<String>,
    pub(super) adapter: Option<String>,
    pub(super) adapter_epoch: Option<u64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct ThinkIds {
    start: u32,
    end: u32,
}

#[derive(Deserialize)]
struct Tokens {
    token_ids: Vec<u32>,
    entropy: Option<Vec<Option<f32>>>,
}

#[derive(Deserialize)]
struct Session {
    list: Vec<Turn>,
}

#[derive(Deserialize)]
struct Turn {
    turn: u32,
}

/// A part of a path.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) head: Head,
    /// The position of the first token that is read.
    pub(super) from: usize,
    pub(super) ids: Vec<u32>,
    /// Nats; NaN where an entropy is missing, and for tokens of prompts.
    pub(super) entropy: Vec<f32>,
}

impl Path {
    /// Reads the path that ends in `--leaf`, or in the last turn of the session.
    ///
    /// # Errors
    /// A line for the user.
    pub(super) async fn read(client: &ControlClient, args: &ShowArgs) -> Result<Self, String> {
        let session = format!("/v1/sessions/{}", percent_encoded(&args.session));
        let leaf = match args.leaf {
            Some(leaf) => leaf,
            None => {
                let Session { list } = client.get(&session).await?;
                let last = list.iter().map(|turn| turn.turn).max();
                last.ok_or_else(|| format!("session {:?} has no turn yet", args.session))?
            }
        };
        let target = format!("{session}/paths/{leaf}");
        let head: Head = client.get(&target).await?;
        let end = args.limit.map_or(head.tokens, |limit| args.from.saturating_add(limit).min(head.tokens));
        let mut path = Self { head, from: args.from.min(end), ids: Vec::new(), entropy: Vec::new() };
        while path.end() < end {
            let (from, limit) = (path.end(), RANGE.min(end - path.end()));
            let part: Tokens = client.get(&format!("{target}?from={from}&limit={limit}")).await?;
            let count = part.token_ids.len();
            if count == 0 {
                return Err(format!("session {:?} changed while it was read", args.session));
            }
            path.ids.extend(part.token_ids);
            let entropy = part.entropy.unwrap_or_default();
            path.entropy.extend((0..count).map(|at| entropy.get(at).copied().flatten().unwrap_or(f32::NAN)));
        }
        Ok(path)
    }

    /// The position after the last token that was read.
    pub(super) fn end(&self) -> usize {
        self.from + self.ids.len()
    }

    /// The segments of which tokens were read, with the range of these tokens in [`Self::ids`].
    pub(super) fn segments(&self) -> impl Iterator<Item = (&Segment, Range<usize>)> {
        self.head.segments.iter().filter_map(|segment| {
            let (start, end) = (segment.start.max(self.from), segment.end.min(self.end()));
            (start < end).then(|| (segment, start - self.from..end - self.from))
        })
    }

    /// The indices of the sampled tokens.
    pub(super) fn sampled(&self) -> impl Iterator<Item = usize> {
        self.segments().filter(|(segment, _)| segment.kind == Kind::Response).flat_map(|(_, range)| range)
    }

    /// Which tokens are thinking: those sampled between a start token, which may end a prompt, and an end token.
    pub(super) fn thinking(&self) -> Vec<bool> {
        let mut thinking = vec![false; self.ids.len()];
        let Some(think) = self.head.think else { return thinking };
        let mut is_inside = false;
        for (segment, range) in self.segments() {
            is_inside &= segment.kind == Kind::Response;
            for at in range {
                match self.ids[at] {
                    id if id == think.start => is_inside = true,
                    id if id == think.end => is_inside = false,
                    _ => thinking[at] = is_inside && segment.kind == Kind::Response,
                }
            }
        }
        thinking
    }

    /// The indices of the spikes, as on the page: local maxima among the highest twentieth of the sampled tokens.
    pub(super) fn spikes(&self) -> Vec<usize> {
        let mut values: Vec<f32> = self.sampled().map(|at| self.entropy[at]).filter(|nats| !nats.is_nan()).collect();
        values.sort_by(f32::total_cmp);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index of the list")]
        let rank = (values.len() as f64 * SPIKE_QUANTILE) as usize;
        let Some(&threshold) = values.get(rank) else { return Vec::new() };
        let at_least =
            |at: Option<usize>, value: f32| at.and_then(|at| self.entropy.get(at)).is_some_and(|other| *other >= value);
        self.sampled()
            .filter(|&at| {
                let value = self.entropy[at];
                let before = at.checked_sub(1).and_then(|at| self.entropy.get(at));
                // of neighbouring spikes only the highest
                value >= threshold
                    && value > 0.0
                    && !before.is_some_and(|before| *before > value)
                    && !at_least(Some(at + 1), value)
            })
            .collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A path of a prompt of two tokens, and a response with these entropies.
    pub(in crate::cli::show) fn path(ids: &[u32], entropy: &[f32]) -> Path {
        let head = serde_json::json!({
            "session": "s", "leaf": 0, "tokens": ids.len(), "think": {"start": 90, "end": 91},
            "segments": [
                {"turn": 0, "kind": "prompt", "start": 0, "end": 2, "loss_mask": 0},
                {"turn": 0, "kind": "response", "start": 2, "end": ids.len(), "loss_mask": 1},
            ],
            "policy": [{"start": 2, "end": ids.len(), "epoch": 4, "weight_version": "w\u{1b}", "version": null}],
        });
        let entropy = [&[f32::NAN; 2][..], entropy].concat();
        assert_eq!(entropy.len(), ids.len());
        Path { head: serde_json::from_value(head).unwrap(), from: 0, ids: ids.to_vec(), entropy }
    }

    #[test]
    fn spikes_are_local_maxima_of_the_highest_twentieth() {
        let mut entropy = vec![0.1; 38];
        (entropy[5], entropy[6], entropy[20]) = (1.5, 2.0, 1.0);
        let found = path(&(0..40).collect::<Vec<_>>(), &entropy).spikes();
        assert_eq!(
            found,
            [8],
            "the threshold is the third highest of 38, and of neighbours the highest counts: {found:?}"
        );
        assert_eq!(path(&[1, 2, 3], &[0.0]).spikes(), [0_usize; 0]);
        assert_eq!(path(&[1, 2, 3], &[f32::NAN]).spikes(), [0_usize; 0]);
    }

    #[test]
    fn thinking_begins_in_the_prompt_or_in_the_response() {
        let thinking = path(&[1, 90, 5, 91, 6, 90, 7], &[0.0; 5]).thinking();
        assert_eq!(thinking, [false, false, true, false, false, false, true]);
    }
}
