//! One object of a native reply, as far as a chat reply is made of it.

use std::collections::VecDeque;

use crate::engine::response::Chunk;
use crate::generation::event::{EventKind, GenerationEvent, Output};
use crate::json::{Cursor, Malformed, Value};

/// An object: a whole sequence, or an event of its stream.
#[derive(Debug)]
pub struct Sample<'a> {
    /// Which of the request's sequences.
    pub index: usize,
    /// The ids after the tokens that are known.
    pub ids: Vec<u32>,
    /// The event repeats all earlier tokens.
    pub repeats: bool,
    /// How many tokens the sequence has by now.
    pub tokens: usize,
    /// `stop`, `length`, `abort`; `None` before the end.
    pub finish: Option<String>,
    /// `finish_reason.matched`, as JSON text.
    pub matched: Option<String>,
    /// It ended by an error, which is `finish_reason.status_code`.
    pub failed: bool,
    /// Tokens that are new.
    new: usize,
    event: &'a GenerationEvent,
    output: &'a Output,
}

/// The logprob of a sampled token, with the likeliest tokens in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Its text, if the engine sends it.
    pub text: Option<String>,
    /// Its logprob, as JSON text.
    pub logprob: String,
    /// The likeliest tokens with their logprobs and texts, in the engine's order.
    pub top: Vec<(u32, String, Option<String>)>,
}

impl<'a> Sample<'a> {
    /// An object of an event, of a sequence of which `known` tokens have been seen.
    ///
    /// # Errors
    /// When its ids are not integers.
    pub fn of(event: &'a GenerationEvent, output: &'a Output, known: usize) -> Result<Self, Malformed> {
        let (bytes, chunk) = (event.raw(), &output.chunk);
        // counted from the start of the sequence in every kind of stream, while lists hold all tokens or the new ones
        let counted = chunk.completion_tokens.and_then(|tokens| usize::try_from(tokens).ok());
        let tokens = counted.unwrap_or_else(|| chunk.count_ids(bytes)).max(known);
        let mut ids = Vec::new();
        let repeats = match &chunk.output_ids {
            Some(span) => Chunk::last_ids(bytes, span, tokens - known, &mut ids)?,
            None => false,
        };
        let reason = chunk.member(bytes, "finish_reason").and_then(|text| Value::parse(text).ok());
        let matched = reason.as_ref().and_then(|reason| reason.get("matched")).map(crate::chat::dumps);
        let failed = reason.as_ref().is_some_and(|reason| reason.get("status_code").is_some());
        let mut sample = Self {
            index: output.index,
            repeats,
            tokens,
            ids,
            new: tokens - known,
            finish: chunk.finish.as_ref().map(|finish| finish.kind.clone()),
            matched,
            failed,
            event,
            output,
        };
        if sample.ids.len() < sample.new {
            // events that were merged list the ids of the last (0.5.6 with `--stream-output`), but the logprobs of all
            let chosen = sample.last("output_token_logprobs");
            if chosen.len() == sample.new {
                sample.ids = chosen.iter().filter_map(|value| Some(entry(value)?.0)).collect();
            }
        }
        Ok(sample)
    }

    /// The objects of a reply that does not stream; none where the event holds none.
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

    /// The engine's text: all of it, or only the new text.
    #[must_use]
    pub fn text(&self) -> String {
        let text = self.chunk().object.get(self.event.raw(), "text").and_then(|text| Value::parse(text).ok());
        text.and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// The prompt's ids that the engine echoes, as JSON text.
    #[must_use]
    pub fn prompt_ids(&self) -> Option<&'a str> {
        std::str::from_utf8(&self.event.raw()[self.chunk().prompt_ids.clone()?]).ok()
    }

    /// `meta_info.id`.
    #[must_use]
    pub fn rid(&self) -> Option<&'a str> {
        self.chunk().rid.as_deref()
    }

    /// The parts of ids of its tool calls: the engine's request id, and the index of the sample.
    #[must_use]
    pub fn name(&self) -> (&str, usize) {
        (self.rid().unwrap_or_default(), self.index)
    }

    /// Tokens of the prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.chunk().prompt_tokens.unwrap_or(0)
    }

    /// A member of `meta_info` that counts something.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        self.chunk().count(self.event.raw(), name)
    }

    /// A member of `meta_info` that tokentap does not change, as JSON text.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&'a str> {
        self.chunk().member(self.event.raw(), name).and_then(|text| std::str::from_utf8(text).ok())
    }

    /// All of `meta_info` with what tokentap changes of it, as JSON text.
    #[must_use]
    pub fn meta_info(&self) -> Option<String> {
        let span = self.chunk().meta.as_ref()?.span.clone();
        String::from_utf8(self.event.edited(span)).ok()
    }

    /// A list of logprobs without entries that only tokentap asked for, as JSON text.
    fn logprobs(&self, name: &str) -> Option<String> {
        let span = self.chunk().meta.as_ref()?.value_span(self.event.raw(), name)?;
        String::from_utf8(self.event.edited(span)).ok().filter(|text| text != "null")
    }

    /// The entries of a list of `meta_info` that belong to the new tokens; those before them are passed unread.
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

    /// The logprobs of the new tokens; empty where the engine was not asked for them.
    #[must_use]
    pub fn token_logprobs(&self) -> Vec<TokenLogprob> {
        let mut rows = self.last("output_top_logprobs").into_iter();
        let chosen = self.last("output_token_logprobs").into_iter();
        let said = chosen.filter_map(|value| {
            let (id, logprob, text) = entry(&value)?;
            let row = rows.next().unwrap_or_default();
            let top = row.as_array().unwrap_or_default().iter().filter_map(entry).collect();
            Some(TokenLogprob { id, text, logprob, top })
        });
        said.collect()
    }
}

/// An entry of a list of logprobs: the logprob, the id, and perhaps the text.
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

    fn sample(event: &GenerationEvent, known: usize) -> Sample<'_> {
        let EventKind::Outputs(outputs) = &event.kind else { panic!("an object") };
        Sample::of(event, &outputs[0], known).unwrap()
    }

    /// An event that lists these ids, says so many tokens, and has rows of these.
    fn event(ids: &[u32], tokens: &str, rows: &[u32]) -> String {
        let rows: Vec<String> = rows.iter().map(|id| format!("[-0.{id}, {id}, \"],[\"]")).collect();
        format!(
            r#"{{"output_ids": {ids:?}, "meta_info": {{"completion_tokens": {tokens}, "output_token_logprobs": [{}]}}}}"#,
            rows.join(",")
        )
    }

    #[test]
    fn ids_after_the_known_tokens_are_taken() {
        for (ids, tokens, known, expected, repeats) in [
            (&[1, 2, 3][..], "3", 0, &[1, 2, 3][..], false),
            (&[1, 2, 3], "3", 2, &[3], true),
            (&[1, 2, 3], "3", 3, &[], true),
            // what is new alone
            (&[3], "3", 2, &[3], false),
            (&[], "2", 2, &[], false),
            // an engine that does not count
            (&[1, 2, 3], "null", 1, &[2, 3], true),
        ] {
            let event = parsed(&event(ids, tokens, &[]));
            let sample = sample(&event, known);
            assert_eq!((&sample.ids[..], sample.repeats), (expected, repeats), "{ids:?} {tokens} {known}");
        }
    }

    #[test]
    fn ids_that_merged_events_lost_stand_in_their_logprobs() {
        let merged = parsed(&event(&[4], "4", &[1, 2, 3, 4]));
        let sample = self::sample(&merged, 1);
        assert_eq!((sample.ids.as_slice(), sample.tokens), (&[2, 3, 4][..], 4));
        let said: Vec<_> = sample.token_logprobs().into_iter().map(|said| (said.id, said.logprob, said.text)).collect();
        assert_eq!(said[0], (2, "-0.2".to_owned(), Some("],[".to_owned())));
        assert_eq!(said.len(), 3);
        // a count that is impossible is ignored
        for tokens in ["20000000000000", "18446744073709551615"] {
            let event = parsed(&event(&[4], tokens, &[1, 4]));
            let sample = self::sample(&event, 0);
            assert_eq!((&sample.ids[..], sample.token_logprobs().len()), (&[4][..], 2), "{tokens}");
        }
        // ids that no member has are not invented
        assert_eq!(self::sample(&parsed(&event(&[4], "4", &[])), 1).ids, [4]);
    }
}
