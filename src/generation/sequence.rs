//! What has been seen and measured of one sequence of a reply.

mod content;
mod own;

use content::Event;
pub use content::{Anomaly, Content, Expected};
pub use own::Lost;

use bytes::Bytes;

use crate::engine::response::{Array, Chunk, Known};
use crate::generation::forcing::Exact;
use crate::generation::measure::Lists;
use crate::generation::reason::Reason;

/// One sequence.
#[derive(Debug)]
pub struct Sequence {
    /// Tokens seen.
    pub tokens: usize,
    /// Top-k rows seen.
    top_rows: usize,
    chosen_content: Bytes,
    /// `output_ids` of the last event whose lists held all tokens.
    ids_content: Bytes,
    top_content: Bytes,
    exact_content: Bytes,
    /// Numbers of the engine's own seen.
    exact_seen: usize,
    /// Why the engine's own numbers are not taken any more.
    pub lost: Option<Lost>,
    /// The members to be added, as text.
    pub lists: Lists,
    sum: f64,
    measured: usize,
    /// The widest row.
    pub width: usize,
    /// Every number so far is exact: the engine's own, or of a row that covers the vocabulary.
    pub exact: bool,
    /// The event with a finish reason has been seen.
    pub finished: bool,
    /// A row was no part of a distribution, and its token has no number.
    pub inconsistent: bool,
    /// An event contradicted the others: what its tokens are is not known, and from there on nothing is measured.
    pub contradicted: bool,
}

/// Where the tokens of one event lie among those of the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What the event's lists hold.
    pub content: Content,
    /// New tokens.
    pub new: usize,
    /// Among the chosen logprobs that were read, the first that is new.
    pub chosen_from: usize,
    /// Tokens of the event before, in front of everything: an abort was merged with it.
    pub merged: usize,
    /// Among the rows that were read, the one of the first new token; `None` where there is not one row a token.
    pub row_from: Option<usize>,
    /// What is wrong with the event.
    pub anomaly: Option<Anomaly>,
}

impl Default for Sequence {
    fn default() -> Self {
        Self {
            tokens: 0,
            top_rows: 0,
            chosen_content: Bytes::new(),
            ids_content: Bytes::new(),
            top_content: Bytes::new(),
            exact_content: Bytes::new(),
            exact_seen: 0,
            lost: None,
            lists: Lists::default(),
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
    /// Whether what was jumped over in this event is this sequence's own: another sample may have begun with the same tokens.
    #[must_use]
    pub fn owns(&self, chunk: &Chunk, bytes: &[u8]) -> bool {
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

    /// Takes note of an event: `chosen` and `rows` are how many were read, behind what was known.
    pub fn step(
        &mut self,
        bytes: &[u8],
        chunk: &Chunk,
        (chosen, rows): (usize, usize),
        expected: &mut Expected,
    ) -> Step {
        let known = |array: &Option<Array>| array.as_ref().is_some_and(|array| array.known > 0);
        let read = if chunk.chosen.is_some() { chosen } else { chunk.count_ids(bytes) };
        let completion = chunk.completion_tokens.and_then(|tokens| usize::try_from(tokens).ok());
        let (content, anomaly) = if known(&chunk.chosen) {
            (Content::Full, None)
        } else {
            let event = Event { bytes, chunk, read, completion };
            self.content(&event, expected)
        };
        self.contradicted |= anomaly == Some(Anomaly::Contradiction);
        let repeats = content == Content::Full && !known(&chunk.chosen);
        // an abort merged with the event before it holds that event's delta in front of everything
        let merged = match (*expected, completion) {
            (Expected::Known(Content::Delta), Some(all)) if repeats && self.tokens > 0 => read.saturating_sub(all),
            _ => 0,
        };
        let before = if repeats { self.tokens + merged } else { 0 };
        let mut new = read.saturating_sub(before);
        if let (Some(all), true) = (completion, chunk.finish.is_some()) {
            // lists may be ahead of their event, but not behind the end
            new = new.min(all.saturating_sub(self.tokens));
        }
        // one row a token, or nothing says which token a row belongs to
        let row_from = match content {
            _ if self.contradicted => None,
            Content::Full if known(&chunk.top) => {
                (known(&chunk.chosen) && self.top_rows == self.tokens && rows == read).then_some(0)
            }
            Content::Full if known(&chunk.chosen) => (rows == self.tokens + read).then_some(self.tokens),
            Content::Full => (rows == read).then_some(before),
            Content::Delta => (rows == read).then_some(0),
        };
        self.tokens += new;
        self.top_rows = if known(&chunk.top) || content == Content::Delta { self.top_rows + rows } else { rows };
        Step { content, new, merged, chosen_from: before, row_from, anomaly }
    }

    /// Remembers the event's lists, so that the next one is read only where it is new.
    pub fn remember(&mut self, bytes: &Bytes, chunk: &Chunk) {
        let content =
            |array: &Option<Array>| array.as_ref().map_or_else(Bytes::new, |array| bytes.slice(array.content.clone()));
        self.chosen_content = content(&chunk.chosen);
        self.top_content = content(&chunk.top);
        self.exact_content = content(&chunk.exact);
        let ids = chunk.output_ids.as_ref().map(|span| bytes.slice(span.start + 1..span.end - 1));
        self.ids_content = ids.unwrap_or_default();
    }

    /// Counts one token's number, NaN where it has none.
    pub fn count(&mut self, value: f32) {
        if !value.is_nan() {
            self.sum += f64::from(value);
            self.measured += 1;
        }
    }

    /// Whether any token has a number.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.measured > 0
    }

    /// Why there is no number, although nothing on the request's side explains it.
    #[must_use]
    pub fn lack(&self, exact: Option<Exact>) -> Option<Reason> {
        match (self.tokens, self.width) {
            (0, _) => None,
            _ if self.contradicted => Some(Reason::StreamContradiction),
            _ if exact.is_some() => Some(Reason::MissingValues),
            (_, 0) => Some(Reason::MissingRows),
            _ => Some(Reason::UnusableRows),
        }
    }

    /// The mean of the numbers there are, in nats.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.measured > 0).then(|| self.sum / self.measured as f64)
    }
}

/// What all sequences of a stream know together: an event names its sequence only at its end.
#[derive(Debug)]
pub struct KnownContent<'a>(pub &'a [Sequence]);

impl KnownContent<'_> {
    fn longest<'b>(contents: impl Iterator<Item = &'b Bytes>, bytes: &[u8]) -> usize {
        contents
            .filter(|content| bytes.starts_with(content) && matches!(bytes.get(content.len()), Some(b',' | b']')))
            .map(Bytes::len)
            .max()
            .unwrap_or(0)
    }
}

impl Known for KnownContent<'_> {
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
