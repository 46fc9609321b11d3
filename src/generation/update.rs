// SPDX-License-Identifier: Apache-2.0
//! The fields of one object of a reply, for the encoders of all APIs except the native one.

use std::ops::Range;

use crate::engine::events::Chunk;
use crate::engine::sglang::response::{entry, last_entries};
use crate::generation::event::{EventKind, GenerationEvent, Output};
use crate::json::{Malformed, Value};

/// The new tokens of a sequence: a whole sequence, or what an event of its stream adds.
#[derive(Debug)]
pub struct SequenceUpdate<'a> {
    /// The index of the sequence in the request.
    pub index: usize,
    /// The new token ids.
    pub ids: Vec<u32>,
    /// Whether the event lists earlier tokens too.
    pub repeats: bool,
    /// The number of tokens of the sequence so far.
    pub tokens: usize,
    /// `stop`, `length`, `abort`; `None` before the end.
    pub finish: Option<&'a str>,
    /// `finish_reason.matched`, as JSON text.
    pub matched: Option<&'a str>,
    /// The number of new tokens.
    new: usize,
    event: &'a GenerationEvent,
    output: &'a Output,
}

/// The logprob of a sampled token, and the top-k logprobs at its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenLogprob {
    /// The token id.
    pub id: u32,
    /// The text of the token, if the engine sends it.
    pub text: Option<String>,
    /// The logprob, as JSON text.
    pub logprob: String,
    /// The top-k tokens with their logprobs and texts, in the engine's order.
    pub top: Vec<(u32, String, Option<String>)>,
}

impl<'a> SequenceUpdate<'a> {
    /// Reads an object of an event. `known` is the number of tokens of its sequence that earlier events had.
    ///
    /// # Errors
    /// When its ids are not integers.
    pub fn new(event: &'a GenerationEvent, output: &'a Output, known: usize) -> Result<Self, Malformed> {
        let (bytes, chunk) = (event.raw(), &output.chunk);
        // `completion_tokens` counts from the start of the sequence in every streaming mode, but lists hold all tokens or only the new ones
        let counted = chunk.completion_tokens.and_then(|tokens| usize::try_from(tokens).ok());
        let tokens = counted.unwrap_or_else(|| chunk.count_ids(bytes)).max(known);
        let mut ids = Vec::new();
        // after a single token, a list of all tokens is more likely
        let repeats_last = known != 1 && chunk.repeats_last_id(bytes, known);
        let lists_earlier = match &chunk.output_ids {
            Some(span) => Chunk::last_ids(bytes, span, tokens - known + usize::from(repeats_last), &mut ids)?,
            None => false,
        };
        ids.truncate(tokens - known);
        let finish = chunk.finish.as_ref();
        let mut update = Self {
            index: output.index,
            repeats: lists_earlier || repeats_last,
            tokens,
            ids,
            new: tokens - known,
            finish: finish.map(|finish| &*finish.kind),
            matched: finish.and_then(|finish| std::str::from_utf8(&bytes[finish.matched.clone()?]).ok()),
            event,
            output,
        };
        if update.ids.len() < update.new {
            // merged events list the ids of the last one (0.5.6 with `--stream-output`), but the logprobs of all
            let chosen = update.last(Chunk::token_logprobs);
            if chosen.len() == update.new {
                update.ids = chosen.iter().filter_map(|value| Some(entry(value)?.0)).collect();
            }
        }
        Ok(update)
    }

    /// Reads the objects of a reply that does not stream. Empty if the event has no objects.
    ///
    /// # Errors
    /// When the ids of one are not integers.
    pub fn all(event: &'a GenerationEvent) -> Result<Vec<Self>, Malformed> {
        let outputs = match &event.kind {
            EventKind::Outputs(outputs) => &outputs[..],
            _ => &[],
        };
        outputs.iter().map(|output| Self::new(event, output, 0)).collect()
    }

    fn chunk(&self) -> &'a Chunk {
        &self.output.chunk
    }

    /// The text of the event: the whole text or only the new text, as the engine sends it. Empty if it is missing.
    #[must_use]
    pub fn text(&self) -> String {
        self.chunk().text(self.event.raw()).unwrap_or_default()
    }

    /// The ids of the prompt that the engine echoes, as JSON text.
    #[must_use]
    pub fn prompt_ids(&self) -> Option<&'a str> {
        std::str::from_utf8(&self.event.raw()[self.chunk().prompt_ids.clone()?]).ok()
    }

    /// `meta_info.id`.
    #[must_use]
    pub fn rid(&self) -> Option<&'a str> {
        self.chunk().rid.as_deref()
    }

    /// The engine's request id and the index of the sequence, which identify its tool calls.
    #[must_use]
    pub fn name(&self) -> (&str, usize) {
        (self.rid().unwrap_or_default(), self.index)
    }

    /// The number of prompt tokens. 0 if the engine does not report it.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.chunk().prompt_tokens.unwrap_or(0)
    }

    /// The number of sampled tokens of the sequence so far, as the engine counts them.
    #[must_use]
    pub fn completion_tokens(&self) -> Option<u64> {
        self.chunk().completion_tokens
    }

    /// The number of sampled tokens of thinking, as the engine counts them.
    #[must_use]
    pub fn reasoning_tokens(&self) -> Option<u64> {
        self.chunk().reasoning_tokens(self.event.raw())
    }

    /// The number of cached tokens of the prompt.
    #[must_use]
    pub fn cached_tokens(&self) -> Option<u64> {
        self.chunk().cached_tokens(self.event.raw())
    }

    /// The routed experts, as JSON text, whether the client requested them or tokentap did. In a stream, the last event of a sequence has them.
    #[must_use]
    pub fn routed_experts(&self) -> Option<&'a str> {
        self.chunk().routed_experts(self.event.raw())
    }

    /// The weight version at the end, and the versions of spans of tokens, as JSON text.
    #[must_use]
    pub fn weight_versions(&self) -> [Option<&'a str>; 2] {
        let texts = self.chunk().weight_version_texts(self.event.raw());
        texts.map(|text| text.and_then(|text| std::str::from_utf8(text).ok()))
    }

    /// `meta_info` with tokentap's changes, as JSON text.
    #[must_use]
    pub fn meta_info(&self) -> Option<String> {
        let span = self.chunk().meta.as_ref()?.span.clone();
        String::from_utf8(self.event.edited(span)).ok()
    }

    /// The entries that belong to the new tokens, of a list of logprobs without the forced entries. `span` returns the range of the list.
    fn last(&self, span: impl FnOnce(&Chunk, &[u8]) -> Option<Range<usize>>) -> Vec<Value> {
        let Some(span) = span(self.chunk(), self.event.raw()) else { return Vec::new() };
        let list = String::from_utf8(self.event.edited(span)).unwrap_or_default();
        last_entries(&list, self.new)
    }

    /// The logprobs of the new tokens. Empty if they were not requested.
    #[must_use]
    pub fn token_logprobs(&self) -> Vec<TokenLogprob> {
        let mut rows = self.last(Chunk::top_logprobs).into_iter();
        let chosen = self.last(Chunk::token_logprobs).into_iter();
        let logprobs = chosen.filter_map(|value| {
            let (id, logprob, text) = entry(&value)?;
            let row = rows.next().unwrap_or_default();
            let top = row.as_array().unwrap_or_default().iter().filter_map(entry).collect();
            Some(TokenLogprob { id, text, logprob, top })
        });
        logprobs.collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::generation::event::EventAccess;

    fn parsed(text: &str) -> GenerationEvent {
        GenerationEvent::outline(Bytes::copy_from_slice(text.as_bytes()), EventAccess::Fields).unwrap()
    }

    fn update(event: &GenerationEvent, known: usize) -> SequenceUpdate<'_> {
        let EventKind::Outputs(outputs) = &event.kind else { panic!("an object") };
        SequenceUpdate::new(event, &outputs[0], known).unwrap()
    }

    /// An event with these `output_ids`, this `completion_tokens`, and logprobs of the ids in `rows`.
    fn event(ids: &[u32], tokens: &str, rows: &[u32]) -> String {
        let rows: Vec<String> = rows.iter().map(|id| format!("[-0.{id}, {id}, \"],[\"]")).collect();
        format!(
            r#"{{"output_ids": {ids:?}, "meta_info": {{"completion_tokens": {tokens}, "output_token_logprobs": [{}]}}}}"#,
            rows.join(",")
        )
    }

    #[test]
    fn ids_after_the_known_tokens_are_read() {
        for (ids, tokens, known, expected, repeats) in [
            (&[1, 2, 3][..], "3", 0, &[1, 2, 3][..], false),
            (&[1, 2, 3], "3", 2, &[3], true),
            (&[1, 2, 3], "3", 3, &[], true),
            // only the new ids
            (&[3], "3", 2, &[3], false),
            (&[], "2", 2, &[], false),
            // an engine that does not report `completion_tokens`
            (&[1, 2, 3], "null", 1, &[2, 3], true),
        ] {
            let event = parsed(&event(ids, tokens, &[]));
            let update = update(&event, known);
            assert_eq!((&update.ids[..], update.repeats), (expected, repeats), "{ids:?} {tokens} {known}");
        }
    }

    #[test]
    fn id_that_an_abort_repeats_is_not_new() {
        for (ids, known, expected) in [
            (&[2, 3, 4, 4][..], 2, &[2, 3, 4][..]),
            (&[5], 5, &[]),
            (&[1, 2, 3, 4, 5], 3, &[4, 5]),
            (&[1, 2, 3, 5, 5], 1, &[2, 3, 5, 5]),
        ] {
            let text = event(ids, "5", &[])
                .replace("\"meta_info\": {", r#""meta_info": {"finish_reason": {"type": "abort"}, "#);
            let event = parsed(&text);
            let update = update(&event, known);
            assert_eq!((&update.ids[..], update.repeats), (expected, true), "{ids:?} {known}");
        }
    }

    #[test]
    fn ids_that_merged_events_lack_are_read_from_logprobs() {
        let merged = parsed(&event(&[4], "4", &[1, 2, 3, 4]));
        let update = self::update(&merged, 1);
        assert_eq!((update.ids.as_slice(), update.tokens), (&[2, 3, 4][..], 4));
        let logprobs = update.token_logprobs().into_iter();
        let logprobs: Vec<_> = logprobs.map(|token| (token.id, token.logprob, token.text)).collect();
        assert_eq!(logprobs[0], (2, "-0.2".to_owned(), Some("],[".to_owned())));
        assert_eq!(logprobs.len(), 3);
        // a count that is impossible is ignored
        for tokens in ["20000000000000", "18446744073709551615"] {
            let event = parsed(&event(&[4], tokens, &[1, 4]));
            let update = self::update(&event, 0);
            assert_eq!((&update.ids[..], update.token_logprobs().len()), (&[4][..], 2), "{tokens}");
        }
        // missing ids are not invented
        assert_eq!(self::update(&parsed(&event(&[4], "4", &[])), 1).ids, [4]);
    }
}
