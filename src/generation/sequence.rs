// SPDX-License-Identifier: Apache-2.0
//! The tokens and measurements of one sequence of a reply.

mod content;
mod exact;

use content::EventLists;
pub(crate) use content::{Anomaly, ExpectedContent};
pub(crate) use exact::ExactFailure;

use bytes::Bytes;

use crate::engine::events::{Array, Chunk, KnownPrefix};
use crate::engine::plan::ExactSource;
use crate::engine::reason::Reason;
use crate::generation::entropy_lists::{EntropyLists, ListContent};

#[derive(Debug)]
pub(crate) struct Sequence {
    /// Tokens so far.
    pub tokens: usize,
    /// Prompt tokens, as the last event counts them.
    pub prompt_tokens: u64,
    /// Top-k rows so far.
    top_rows: usize,
    chosen_content: Bytes,
    /// `output_ids` of the last event whose lists held all tokens.
    ids_content: Bytes,
    top_content: Bytes,
    exact_content: Bytes,
    /// The engine's exact values so far.
    exact_seen: usize,
    /// Why the engine's exact values are no longer used.
    pub exact_failure: Option<ExactFailure>,
    /// The members to be added, as text.
    pub lists: EntropyLists,
    sum: f64,
    measured: usize,
    /// The length of the widest row.
    pub width: usize,
    /// Every entropy so far is exact: reported by the engine, or from a row that covers the vocabulary.
    pub exact: bool,
    /// An event with a finish reason has arrived.
    pub finished: bool,
    /// A row was not part of a distribution, so its token has no entropy.
    pub inconsistent: bool,
    /// An event contradicts the earlier ones. Its tokens are unknown, and nothing is measured from there on.
    pub contradicted: bool,
}

/// The position of an event's tokens in its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventStep {
    /// Whether the lists hold all tokens or only the new ones.
    pub content: ListContent,
    /// New tokens.
    pub new: usize,
    /// The index of the first new token in the parsed chosen logprobs.
    pub chosen_from: usize,
    /// The number of leading tokens that repeat the previous event, because an abort was merged with it.
    pub merged: usize,
    /// The list of ids has the last one twice.
    pub repeats_last: bool,
    /// The index of the first new token's row in the parsed rows; `None` unless there is one row per token.
    pub row_from: Option<usize>,
    /// The event's difference from the expected mode.
    pub anomaly: Option<Anomaly>,
}

impl Default for Sequence {
    fn default() -> Self {
        Self {
            tokens: 0,
            prompt_tokens: 0,
            top_rows: 0,
            chosen_content: Bytes::new(),
            ids_content: Bytes::new(),
            top_content: Bytes::new(),
            exact_content: Bytes::new(),
            exact_seen: 0,
            exact_failure: None,
            lists: EntropyLists::default(),
            sum: 0.0,
            measured: 0,
            width: 0,
            exact: true,
            finished: false,
            inconsistent: false,
            contradicted: false,
        }
    }
}

impl Sequence {
    /// Whether the skipped prefix of this event is this sequence's: another sample may begin with the same tokens.
    #[must_use]
    pub(crate) fn owns(&self, chunk: &Chunk, bytes: &[u8]) -> bool {
        let own = |array: &Option<Array>, content: &Bytes| {
            array
                .as_ref()
                .is_none_or(|array| array.known == 0 || bytes[array.content.clone()][..array.known] == content[..])
        };
        let both_or_neither = |other: &Option<Array>| match (&chunk.chosen, other) {
            (Some(chosen), Some(other)) => (chosen.known == 0) == (other.known == 0),
            _ => true,
        };
        own(&chunk.chosen, &self.chosen_content)
            && own(&chunk.top, &self.top_content)
            && own(&chunk.exact, &self.exact_content)
            && both_or_neither(&chunk.top)
            && both_or_neither(&chunk.exact)
    }

    /// Adds an event. `chosen` and `rows` are the numbers of entries that were parsed after the known prefix.
    pub(crate) fn step(
        &mut self,
        bytes: &[u8],
        chunk: &Chunk,
        chosen: usize,
        rows: usize,
        expected: &mut ExpectedContent,
    ) -> EventStep {
        let known = |array: &Option<Array>| array.as_ref().is_some_and(|array| array.known > 0);
        let read = if chunk.chosen.is_some() { chosen } else { chunk.count_ids(bytes) };
        let completion = chunk.completion_tokens.and_then(|tokens| usize::try_from(tokens).ok());
        let event = EventLists { bytes, chunk, read, completion };
        let repeats_last = self.repeats_last_id(&event);
        let (content, anomaly) = if known(&chunk.chosen) {
            (ListContent::Full, None)
        } else if repeats_last {
            (ListContent::Delta, None)
        } else {
            self.content(&event, expected)
        };
        self.contradicted |= anomaly == Some(Anomaly::Contradiction);
        let repeats = content == ListContent::Full && !known(&chunk.chosen);
        // an abort merged with the previous event lists that event's delta before all tokens
        let merged = match (*expected, completion) {
            (ExpectedContent::Known(ListContent::Delta), Some(all)) if repeats && self.tokens > 0 => {
                read.saturating_sub(all)
            }
            _ => 0,
        };
        let before = if repeats { self.tokens + merged } else { 0 };
        let mut new = read.saturating_sub(before);
        if let (Some(all), true) = (completion, chunk.finish.is_some()) {
            // lists may run ahead of their event, but not past the end of the sequence
            new = new.min(all.saturating_sub(self.tokens));
        }
        // without one row per token, rows cannot be assigned to tokens
        let row_from = match content {
            _ if self.contradicted => None,
            ListContent::Full if known(&chunk.top) => {
                (known(&chunk.chosen) && self.top_rows == self.tokens && rows == read).then_some(0)
            }
            ListContent::Full if known(&chunk.chosen) => (rows == self.tokens + read).then_some(self.tokens),
            ListContent::Full => (rows == read).then_some(before),
            ListContent::Delta => (rows == read).then_some(0),
        };
        self.tokens += new;
        self.top_rows = if known(&chunk.top) || content == ListContent::Delta { self.top_rows + rows } else { rows };
        EventStep { content, new, merged, repeats_last, chosen_from: before, row_from, anomaly }
    }

    /// Remembers the event's lists, so that only the new part of the next event is parsed.
    pub(crate) fn remember(&mut self, bytes: &Bytes, chunk: &Chunk) {
        let content =
            |array: &Option<Array>| array.as_ref().map_or_else(Bytes::new, |array| bytes.slice(array.content.clone()));
        self.chosen_content = content(&chunk.chosen);
        self.top_content = content(&chunk.top);
        self.exact_content = content(&chunk.exact);
        let ids = chunk.output_ids.as_ref().map(|span| bytes.slice(span.start + 1..span.end - 1));
        self.ids_content = ids.unwrap_or_default();
    }

    /// Adds one token's entropy; NaN if it has none.
    pub(crate) fn count(&mut self, value: f32) {
        if !value.is_nan() {
            self.sum += f64::from(value);
            self.measured += 1;
        }
    }

    /// Whether any token has an entropy.
    #[must_use]
    pub(crate) fn is_measured(&self) -> bool {
        self.measured > 0
    }

    /// Why there is no entropy, if the plan of the request does not explain it.
    #[must_use]
    pub(crate) fn missing_reason(&self, exact: Option<ExactSource>) -> Option<Reason> {
        match (self.tokens, self.width) {
            (0, _) => None,
            _ if self.contradicted => Some(Reason::StreamContradiction),
            _ if exact.is_some() => Some(Reason::MissingValues),
            (_, 0) => Some(Reason::MissingRows),
            _ => Some(Reason::UnusableRows),
        }
    }

    /// The sum of the measured entropies, in nats, and their number.
    #[must_use]
    pub(crate) fn entropies(&self) -> (f64, usize) {
        (self.sum, self.measured)
    }

    /// The mean of the measured entropies, in nats.
    #[must_use]
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.measured > 0).then(|| self.sum / self.measured as f64)
    }
}

/// The known prefixes of all sequences of a stream: the index of an event's sequence follows its lists.
#[derive(Debug)]
pub(crate) struct SequencePrefixes<'a>(pub &'a [Sequence]);

impl SequencePrefixes<'_> {
    fn longest<'b>(contents: impl Iterator<Item = &'b Bytes>, bytes: &[u8]) -> usize {
        contents
            .filter(|content| bytes.starts_with(content) && matches!(bytes.get(content.len()), Some(b',' | b']')))
            .map(Bytes::len)
            .max()
            .unwrap_or(0)
    }
}

impl KnownPrefix for SequencePrefixes<'_> {
    fn chosen(&self, bytes: &[u8]) -> usize {
        Self::longest(self.0.iter().map(|sequence| &sequence.chosen_content), bytes)
    }

    fn top(&self, bytes: &[u8]) -> usize {
        Self::longest(self.0.iter().map(|sequence| &sequence.top_content), bytes)
    }

    fn exact(&self, bytes: &[u8]) -> usize {
        Self::longest(self.0.iter().map(|sequence| &sequence.exact_content), bytes)
    }
}
