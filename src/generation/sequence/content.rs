//! What the lists of an event hold: all tokens so far, or the new ones. Judged by the event itself, since an engine behind a router is not
//! always the one that was asked.

use super::Sequence;
use crate::engine::probe::Streaming;
use crate::engine::response::Chunk;

/// Whether the lists of an event hold everything so far or only what is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Everything so far.
    Full,
    /// Only what is new.
    Delta,
}

/// What the events of a stream are expected to hold. Each event is checked against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// As the engine's information routes or the events so far have shown.
    Known(Content),
    /// The second event of a sequence shows it.
    Unknown,
}

/// An event that is not as expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anomaly {
    /// The stream has the other mode than the engine names; it is read by its own.
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

impl Expected {
    /// What the probe found; 0.5.6 with `--stream-output` repeats its logprobs, but not its ids.
    #[must_use]
    pub fn of(streaming: Option<Streaming>, logprobs: bool) -> Self {
        match streaming {
            Some(Streaming::Incremental) => Self::Known(Content::Delta),
            Some(Streaming::IncrementalIds) if !logprobs => Self::Known(Content::Delta),
            Some(Streaming::Cumulative | Streaming::IncrementalIds) => Self::Known(Content::Full),
            None => Self::Unknown,
        }
    }

    /// Whether events repeat everything.
    #[must_use]
    pub fn is_full(self) -> bool {
        self == Self::Known(Content::Full)
    }
}

/// One event, as far as its lists are counted.
pub(super) struct Event<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) chunk: &'a Chunk,
    /// Tokens in its lists.
    pub(super) read: usize,
    pub(super) completion: Option<usize>,
}

impl Sequence {
    /// Whether the tokens that were jumped over are the ones seen before, by the count of the engine: the second event of an incremental
    /// stream may repeat the first to the byte.
    #[must_use]
    pub fn counts_jump(&self, chunk: &Chunk, read: usize) -> bool {
        let jumped = chunk.chosen.as_ref().is_some_and(|array| array.known > 0);
        let again = self.tokens + self.tokens + read;
        !jumped || chunk.completion_tokens.and_then(|all| usize::try_from(all).ok()) != Some(again)
    }

    /// What this event's lists hold, by the strongest evidence first: `completion_tokens`, which counts from the start of the sequence in
    /// every kind of stream; the tokens seen before, which a cumulative list begins with; the mode of the stream so far. An abort repeats
    /// everything even in an incremental stream, so each event is checked.
    pub(super) fn content(&self, event: &Event<'_>, expected: &mut Expected) -> (Content, Option<Anomaly>) {
        let (read, seen) = (event.read, self.tokens);
        if seen == 0 {
            // both readings say that all tokens are new
            return (if let Expected::Known(content) = *expected { content } else { Content::Full }, None);
        }
        let shown = match event.completion {
            Some(all) if seen + read == all && !self.may_lag(event) => Some(Content::Delta),
            // the new ones, or all but the last: only what is known of the engine tells
            Some(all) if seen + read == all => None,
            Some(all) if read == all => Some(Content::Full),
            Some(_) if *expected != Expected::Unknown => None,
            _ if !self.remembers_all(event) => None,
            _ if !self.is_continued_by(event) => Some(Content::Delta),
            // equal lists fit both: no new token, or the same ones again
            _ => (read > seen).then_some(Content::Full),
        };
        match (*expected, shown) {
            (Expected::Known(known), Some(shown)) if known == shown => (shown, None),
            (Expected::Known(known), Some(shown)) => {
                let is_last = event.chunk.finish.is_some();
                if !is_last {
                    *expected = Expected::Known(shown);
                }
                // an abort repeats everything in an incremental stream as well
                let is_abort = is_last && known == Content::Delta;
                (shown, (!is_abort).then_some(Anomaly::ModeSwitched))
            }
            (Expected::Known(Content::Delta), None) => match event.completion {
                Some(all) if seen + read > all && read >= all => (Content::Full, None),
                _ => (Content::Delta, None),
            },
            (Expected::Known(Content::Full), None) if read < seen || self.is_other_list(event) => {
                (Content::Full, Some(Anomaly::Contradiction))
            }
            (Expected::Known(Content::Full), None) => (Content::Full, None),
            (Expected::Unknown, Some(shown)) => {
                *expected = Expected::Known(shown);
                (shown, None)
            }
            (Expected::Unknown, None) => (Content::Full, Some(Anomaly::Contradiction)),
        }
    }

    /// Whether the event's list may be a cumulative one that is shorter than the count. One that adds nothing to the tokens seen is more
    /// likely a token that was sampled again.
    fn may_lag(&self, event: &Event<'_>) -> bool {
        event.read > self.tokens && self.remembers_all(event) && self.is_continued_by(event)
    }

    /// Whether a list that is shorter than the count does not begin with the tokens seen: it may lag, but then it continues them.
    fn is_other_list(&self, event: &Event<'_>) -> bool {
        let lags = event.completion.is_some_and(|all| event.read < all);
        lags && self.remembers_all(event) && !self.is_continued_by(event)
    }

    /// Whether the lists of the event before it are known and held all tokens.
    fn remembers_all(&self, event: &Event<'_>) -> bool {
        let content = if event.chunk.chosen.is_some() { &self.chosen_content } else { &self.ids_content };
        !content.is_empty()
    }

    /// Whether the event's list begins with all tokens seen, as a cumulative list does.
    fn is_continued_by(&self, event: &Event<'_>) -> bool {
        let (content, list) = match (&event.chunk.chosen, &event.chunk.output_ids) {
            (Some(array), _) => (&self.chosen_content, array.content.clone()),
            (None, Some(span)) => (&self.ids_content, span.start + 1..span.end - 1),
            (None, None) => return false,
        };
        let rest = event.bytes[list].strip_prefix(&content[..]);
        !content.is_empty() && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b',')))
    }
}
