// SPDX-License-Identifier: Apache-2.0
//! Detects whether the lists of an event hold all tokens so far or only the new ones. The event itself decides: behind a router the engine
//! is not always the one that was probed.

use super::Sequence;
use crate::engine::capabilities::StreamMode;
use crate::engine::events::Chunk;
use crate::generation::entropy_lists::ListContent;

/// What the events of a stream are expected to hold. Each event is checked against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedContent {
    /// The mode is known from the engine's information routes or from earlier events.
    Known(ListContent),
    /// The second event of a sequence will show the mode.
    Unknown,
}

/// How an event differs from the expected mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anomaly {
    /// The stream has another mode than the engine reports; it is parsed by the observed mode.
    ModeSwitched,
    /// The event's lists, its `completion_tokens` and the tokens before it fit no mode, or fit both.
    Contradiction,
}

impl Anomaly {
    /// The label of the metric.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ModeSwitched => "stream_mode_switched",
            Self::Contradiction => "stream_contradiction",
        }
    }
}

impl ExpectedContent {
    /// The mode that the probe found. 0.5.6 with `--stream-output` repeats logprobs, but not ids.
    #[must_use]
    pub(crate) fn new(streaming: Option<StreamMode>, logprobs: bool) -> Self {
        match streaming {
            Some(StreamMode::Incremental) => Self::Known(ListContent::Delta),
            Some(StreamMode::IncrementalIds) if !logprobs => Self::Known(ListContent::Delta),
            Some(StreamMode::Cumulative | StreamMode::IncrementalIds) => Self::Known(ListContent::Full),
            None => Self::Unknown,
        }
    }

    /// Whether each event repeats all tokens.
    #[must_use]
    pub(crate) fn is_full(self) -> bool {
        self == Self::Known(ListContent::Full)
    }
}

/// The lists of one event and their lengths.
pub(super) struct EventLists<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) chunk: &'a Chunk,
    /// Tokens in its lists.
    pub(super) read: usize,
    pub(super) completion: Option<usize>,
}

impl Sequence {
    /// Whether the skipped prefix is the tokens of earlier events, by the engine's count. The second event of an incremental stream may
    /// repeat the first byte for byte.
    #[must_use]
    pub(crate) fn counts_jump(&self, chunk: &Chunk, read: usize) -> bool {
        let jumped = chunk.chosen.as_ref().is_some_and(|array| array.known > 0);
        let again = self.tokens + self.tokens + read;
        !jumped || chunk.completion_tokens.and_then(|all| usize::try_from(all).ok()) != Some(again)
    }

    /// Detects the content of this event's lists. Evidence, strongest first: `completion_tokens`, which counts from the start of the
    /// sequence in every mode; the earlier tokens, with which a cumulative list begins; the mode of the stream so far. Each event is
    /// checked, because an abort repeats all tokens even in an incremental stream.
    pub(super) fn content(
        &self,
        event: &EventLists<'_>,
        expected: &mut ExpectedContent,
    ) -> (ListContent, Option<Anomaly>) {
        let (read, seen) = (event.read, self.tokens);
        if seen == 0 {
            // in both modes all tokens are new
            return (if let ExpectedContent::Known(content) = *expected { content } else { ListContent::Full }, None);
        }
        let shown = match event.completion {
            Some(all) if seen + read == all && !self.may_lag(event) => Some(ListContent::Delta),
            // ambiguous: the new tokens, or all but the last ones; the expected mode decides
            Some(all) if seen + read == all => None,
            Some(all) if read == all => Some(ListContent::Full),
            Some(_) if *expected != ExpectedContent::Unknown => None,
            _ if !self.remembers_all(event) => None,
            _ if !self.is_continued_by(event) => Some(ListContent::Delta),
            // equal lists fit both modes: no new token, or the same tokens again
            _ => (read > seen).then_some(ListContent::Full),
        };
        match (*expected, shown) {
            (ExpectedContent::Known(known), Some(shown)) if known == shown => (shown, None),
            (ExpectedContent::Known(known), Some(shown)) => {
                let is_last = event.chunk.finish.is_some();
                if !is_last {
                    *expected = ExpectedContent::Known(shown);
                }
                // an abort repeats all tokens in an incremental stream as well
                let is_abort = is_last && known == ListContent::Delta;
                (shown, (!is_abort).then_some(Anomaly::ModeSwitched))
            }
            (ExpectedContent::Known(ListContent::Delta), None) => match event.completion {
                Some(all) if seen + read > all && read >= all => (ListContent::Full, None),
                _ => (ListContent::Delta, None),
            },
            (ExpectedContent::Known(ListContent::Full), None) if read < seen || self.is_other_list(event) => {
                (ListContent::Full, Some(Anomaly::Contradiction))
            }
            (ExpectedContent::Known(ListContent::Full), None) => (ListContent::Full, None),
            (ExpectedContent::Unknown, Some(shown)) => {
                *expected = ExpectedContent::Known(shown);
                (shown, None)
            }
            (ExpectedContent::Unknown, None) => (ListContent::Full, Some(Anomaly::Contradiction)),
        }
    }

    /// Whether the event has no tokens but those of its id list, and the last one is listed twice. The list is then a delta in every mode.
    pub(super) fn repeats_last_id(&self, event: &EventLists<'_>) -> bool {
        let is_whole = || event.completion == Some(event.read) && self.is_continued_by(event);
        event.chunk.chosen.is_none() && event.chunk.repeats_last_id(event.bytes, self.tokens) && !is_whole()
    }

    /// Whether the event's list may be a cumulative one that lags behind `completion_tokens`. A list that adds nothing to the earlier
    /// tokens is more likely a token that was sampled twice.
    fn may_lag(&self, event: &EventLists<'_>) -> bool {
        event.read > self.tokens && self.remembers_all(event) && self.is_continued_by(event)
    }

    /// Whether a list that is shorter than `completion_tokens` does not begin with the earlier tokens. A lagging list would begin with
    /// them.
    fn is_other_list(&self, event: &EventLists<'_>) -> bool {
        let lags = event.completion.is_some_and(|all| event.read < all);
        lags && self.remembers_all(event) && !self.is_continued_by(event)
    }

    /// Whether the previous event's lists are known and held all tokens.
    fn remembers_all(&self, event: &EventLists<'_>) -> bool {
        let content = if event.chunk.chosen.is_some() { &self.chosen_content } else { &self.ids_content };
        !content.is_empty()
    }

    /// Whether the event's list begins with all earlier tokens, as a cumulative list does.
    fn is_continued_by(&self, event: &EventLists<'_>) -> bool {
        let (content, list) = match (&event.chunk.chosen, &event.chunk.output_ids) {
            (Some(array), _) => (&self.chosen_content, array.content.clone()),
            (None, Some(span)) => (&self.ids_content, span.start + 1..span.end - 1),
            (None, None) => return false,
        };
        let rest = event.bytes[list].strip_prefix(&content[..]);
        !content.is_empty() && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b',')))
    }
}
