//! What has been seen and measured of one sequence of a reply.

use bytes::Bytes;

use crate::entropy::{Estimator, Flags, TokenStats};
use crate::generation::measure::Lists;
use crate::generation::reason::Reason;
use crate::sglang::response::{Array, Chunk, Known};

/// Whether the lists of an event hold everything so far or only what is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Everything so far.
    Full,
    /// Only what is new.
    Delta,
}

/// One sequence.
#[derive(Debug)]
pub struct Sequence {
    /// Tokens seen.
    pub tokens: usize,
    /// Top-k rows seen.
    top_rows: usize,
    chosen_content: Bytes,
    top_content: Bytes,
    /// The members to be added, as text.
    pub lists: Lists,
    sum: f64,
    measured: usize,
    /// The widest row.
    pub width: usize,
    /// Every row so far covered the vocabulary.
    pub exact: bool,
    /// The event with a finish reason has been seen.
    pub finished: bool,
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
    /// Among the rows that were read, the one of the first new token; negative where that row never came.
    pub row_from: isize,
}

impl Default for Sequence {
    fn default() -> Self {
        Self {
            tokens: 0,
            top_rows: 0,
            chosen_content: Bytes::new(),
            top_content: Bytes::new(),
            lists: Lists::default(),
            sum: 0.0,
            measured: 0,
            width: 0,
            exact: true,
            finished: false,
        }
    }
}

impl Sequence {
    /// Whether what was jumped over in this event is this sequence's own: another sample may have begun with the same tokens.
    #[must_use]
    pub fn owns(&self, chunk: &Chunk) -> bool {
        let own = |array: &Option<Array>, content: &Bytes| {
            array.as_ref().is_none_or(|array| array.known == 0 || array.known == content.len())
        };
        let both_or_neither = match (&chunk.chosen, &chunk.top) {
            (Some(chosen), Some(top)) => (chosen.known == 0) == (top.known == 0),
            _ => true,
        };
        own(&chunk.chosen, &self.chosen_content) && own(&chunk.top, &self.top_content) && both_or_neither
    }

    /// Takes note of an event: `chosen` and `rows` are how many were read, behind what was known.
    pub fn step(&mut self, chunk: &Chunk, chosen: usize, rows: usize, locked: &mut Option<Content>) -> Step {
        let resumed = chunk.chosen.as_ref().is_some_and(|array| array.known > 0);
        let read = if chunk.chosen.is_some() { chosen } else { chunk.output_ids.unwrap_or(0) };
        let content = if resumed { Content::Full } else { self.content(read, chunk.completion_tokens, locked) };
        let before = if resumed || content == Content::Delta { 0 } else { self.tokens };
        let new = read.saturating_sub(before);
        // rows are counted apart from tokens: either list may lack one
        let rows_known = if chunk.top.as_ref().is_some_and(|array| array.known > 0) || content == Content::Delta {
            self.top_rows
        } else {
            0
        };
        let first = self.tokens as isize;
        let step = Step { content, new, chosen_from: before, row_from: first - rows_known as isize };
        self.tokens += new;
        self.top_rows = rows_known + rows;
        step
    }

    /// `completion_tokens` counts from the start in every kind of stream, which tells the kinds apart from the second event on.
    fn content(&self, read: usize, completion: Option<u64>, locked: &mut Option<Content>) -> Content {
        if self.tokens == 0 {
            return locked.unwrap_or(Content::Full);
        }
        let completion = completion.and_then(|tokens| usize::try_from(tokens).ok());
        let content = match completion {
            // an abort repeats everything even in an incremental stream, so the lists of each event are looked at anew
            Some(tokens) if tokens == self.tokens + read => Content::Delta,
            Some(tokens) if read >= tokens && read >= self.tokens => Content::Full,
            _ => locked.unwrap_or(if read >= self.tokens { Content::Full } else { Content::Delta }),
        };
        if read > 0 {
            locked.get_or_insert(content);
        }
        content
    }

    /// Remembers the event's lists, so that the next one is read only where it is new.
    pub fn remember(&mut self, bytes: &Bytes, chunk: &Chunk) {
        let content =
            |array: &Option<Array>| array.as_ref().map_or_else(Bytes::new, |array| bytes.slice(array.content.clone()));
        self.chosen_content = content(&chunk.chosen);
        self.top_content = content(&chunk.top);
    }

    /// Counts one token's number.
    pub fn count(&mut self, stats: &TokenStats, estimator: Estimator) {
        let value = estimator.of(stats);
        if !value.is_nan() {
            self.sum += f64::from(value);
            self.measured += 1;
        }
        if stats.flags.contains(Flags::MISSING) {
            self.exact = false;
        }
    }

    /// Whether any token has a number.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.measured > 0
    }

    /// Why there is no number, although nothing on the request's side explains it.
    #[must_use]
    pub fn lack(&self) -> Option<Reason> {
        match (self.tokens, self.width) {
            (0, _) => None,
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
}
