//! The fields of one object of a reply, for the encoders of all APIs except the native one.

use std::collections::VecDeque;

use crate::engine::sglang::response::Chunk;
use crate::generation::event::{EventKind, GenerationEvent, Output};
use crate::json::{Cursor, Malformed, Value};

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
    pub fn of(event: &'a GenerationEvent, output: &'a Output, known: usize) -> Result<Self, Malformed> {
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
            let chosen = update.last("output_token_logprobs");
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
        outputs.iter().map(|output| Self::of(event, output, 0)).collect()
    }

    fn chunk(&self) -> &'a Chunk {
        &self.output.chunk
    }

    /// The text of the event: the whole text or only the new text, as the engine sends it. Empty if it is missing.
    #[must_use]
    pub fn text(&self) -> String {
        let text = self.chunk().object.get(self.event.raw(), "text").filter(|text| text.first() == Some(&b'"'));
        let text = text.and_then(|text| Cursor::new(text).string().ok());
        text.map(|text| text.decode().into_owned()).unwrap_or_default()
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

    /// A member of `meta_info` that is a count.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        self.chunk().count(self.event.raw(), name)
    }

    /// A member of `meta_info` that tokentap does not change, as JSON text. `None` if it is null.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&'a str> {
        self.chunk().member(self.event.raw(), name).and_then(|text| std::str::from_utf8(text).ok())
    }

    /// `meta_info` with tokentap's changes, as JSON text.
    #[must_use]
    pub fn meta_info(&self) -> Option<String> {
        let span = self.chunk().meta.as_ref()?.span.clone();
        String::from_utf8(self.event.edited(span)).ok()
    }

    /// A list of logprobs without the forced entries, as JSON text.
    fn logprobs(&self, name: &str) -> Option<String> {
        let span = self.chunk().meta.as_ref()?.value_span(self.event.raw(), name)?;
        String::from_utf8(self.event.edited(span)).ok().filter(|text| text != "null")
    }

    /// The entries of a list of `meta_info` that belong to the new tokens. Earlier entries are skipped without parsing.
    fn last(&self, name: &str) -> Vec<Value> {
        let Some(text) = self.logprobs(name) else { return Vec::new() };
        let mut spans = VecDeque::new();
        let mut cursor = Cursor::new(text.as_bytes());
        let mut read = || {
            cursor.expect(b'[')?;
            while !cursor.take(b']') {
                cursor.take(b',');
                spans.push_back(cursor.skip()?);
                if spans.len() > self.new {
                    spans.pop_front();
                }
            }
            Ok::<_, Malformed>(())
        };
        if read().is_err() {
            return Vec::new();
        }
        spans.into_iter().filter_map(|span| Value::parse(&text.as_bytes()[span]).ok()).collect()
    }

    /// The logprobs of the new tokens. Empty if they were not requested.
    #[must_use]
    pub fn token_logprobs(&self) -> Vec<TokenLogprob> {
        let mut rows = self.last("output_top_logprobs").into_iter();
        let chosen = self.last("output_token_logprobs").into_iter();
        let logprobs = chosen.filter_map(|value| {
            let (id, logprob, text) = entry(&value)?;
            let row = rows.next().unwrap_or_default();
            let top = row.as_array().unwrap_or_default().iter().filter_map(entry).collect();
            Some(TokenLogprob { id, text, logprob, top })
        });
        logprobs.collect()
    }
}

/// Reads an entry of a list of logprobs: the id, the logprob as JSON text, and the text if there is one.
fn entry(value: &Value) -> Option<(u32, String, Option<String>)> {
    let [logprob, id, rest @ ..] = value.as_array()? else { return None };
    let Value::Number(id) = id else { return None };
    let logprob = match logprob {
        Value::Number(text) if text.bytes().all(|byte| !matches!(byte, b'N' | b'I')) => text.to_string(),
        _ => "null".to_owned(),
    };
    let text = rest.first().and_then(Value::as_str).map(str::to_owned);
    Some((id.parse().ok()?, logprob, text))
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
        SequenceUpdate::of(event, &outputs[0], known).unwrap()
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
