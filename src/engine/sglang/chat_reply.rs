// SPDX-License-Identifier: Apache-2.0
//! Reads the replies of the engine's own chat endpoint: their token ids, and the bytes without the ids that the client did not ask for.

use std::collections::BTreeMap;
use std::ops::Range;

use memchr::memmem;

use crate::engine::events::{Chunk, Finish};
use crate::engine::sglang::sglext::SglextOptions;
use crate::json::{Cursor, Edit, Malformed, Object, Splice, Text, Value};

/// The ids and labels that the engine reported for a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatIds {
    /// `id`.
    pub rid: Option<Box<str>>,
    /// The ids of the prompt.
    pub prompt: Option<Vec<u32>>,
    /// The sampled ids of each choice.
    pub responses: Option<Vec<Vec<u32>>>,
    /// By choice: `finish_reason.type`, as /generate reports it.
    pub finishes: BTreeMap<usize, Box<str>>,
    /// `usage.prompt_tokens_details.cached_tokens`.
    pub cached_tokens: Option<u64>,
    /// `weight_version`.
    pub label: Option<Box<str>>,
    /// `weight_versions` of the first choice: the label, the first token, and the token after the last.
    pub spans: Vec<(Box<str>, u32, u32)>,
}

/// Reads one reply: a body, or the events of a stream.
#[derive(Debug)]
pub struct ChatReader {
    sglext: SglextOptions,
    /// The number of choices.
    n: usize,
    ids: ChatIds,
}

/// What the client gets of an object.
#[derive(Debug, PartialEq, Eq)]
enum Remainder {
    /// The object without the ids that the client does not get.
    Some,
    /// Nothing: the object has only ids that the client does not get.
    Nothing,
}

impl ChatReader {
    /// A reader of a reply with `n` choices.
    #[must_use]
    pub fn new(sglext: SglextOptions, n: usize) -> Self {
        Self { sglext, n, ids: ChatIds::default() }
    }

    /// Reads an event of a stream, whose JSON is at `json`. Returns the changes for the client: they remove an event without a remainder. Most
    /// events have neither ids nor a finish reason, and are not parsed.
    ///
    /// # Errors
    /// [`Malformed`] when the object does not have SGLang's format.
    pub fn decode_event(&mut self, event: &[u8], json: Range<usize>) -> Result<Splice, Malformed> {
        let mut changes = Splice::default();
        let is_read = self.ids.rid.is_none() || is_relevant(event);
        if is_read && self.decode_object(event, json, &mut changes)? == Remainder::Nothing {
            changes.cut(0..event.len());
        }
        Ok(changes)
    }

    /// Reads a reply that does not stream. Returns the changes for the client. A reply without a remainder is forwarded too.
    ///
    /// # Errors
    /// [`Malformed`] when the body does not have SGLang's format.
    pub fn decode_whole(&mut self, body: &[u8]) -> Result<Splice, Malformed> {
        let mut changes = Splice::default();
        self.decode_object(body, 0..body.len(), &mut changes)?;
        Ok(changes)
    }

    /// The request id, once it is known.
    #[must_use]
    pub fn rid(&self) -> Option<&str> {
        self.ids.rid.as_deref()
    }

    /// Takes the ids and labels, once the ids of the prompt and of all choices have arrived.
    pub fn take_ids(&mut self) -> Option<ChatIds> {
        let rid = self.ids.rid.clone();
        self.has_ids().then(|| std::mem::replace(&mut self.ids, ChatIds { rid, ..ChatIds::default() }))
    }

    /// Whether the ids of the prompt and of all choices have arrived.
    #[must_use]
    fn has_ids(&self) -> bool {
        self.ids.prompt.is_some() && self.ids.responses.is_some()
    }

    /// Whether all choices have ended, but the ids have not arrived. Clients may disconnect after the last choice.
    #[must_use]
    pub fn awaits_ids(&self) -> bool {
        self.ids.finishes.len() >= self.n && !self.has_ids()
    }

    /// The first choice of a body that was read, as an object of /generate. `None` if the engine did not report its ids.
    #[must_use]
    pub fn first_choice(&self, body: &[u8]) -> Option<Chunk> {
        let (prompt, ids) = (self.ids.prompt.as_ref()?, self.ids.responses.as_ref()?.first()?);
        let object = Object::parse(body).ok()?;
        let sglext = inner(body, &object, "sglext")?;
        let first = |at: Range<usize>| {
            let mut cursor = Cursor::at(&body[..at.end], at.start);
            cursor.expect(b'[').ok()?;
            cursor.skip().ok()
        };
        let choice = first(object.value_span(body, "choices")?)?;
        let choice = members(&mut Cursor::at(&body[..choice.end], choice.start)).ok()?;
        // the counts of /generate: those of `usage` and of its details
        let mut meta = inner(body, &object, "usage").unwrap_or_default();
        meta.members.extend(inner(body, &meta, "prompt_tokens_details").unwrap_or_default().members);
        Some(Chunk {
            rid: Some(self.ids.rid.as_deref().unwrap_or_default().to_owned()),
            finish: Some(Finish {
                kind: Finish::kind(self.ids.finishes.get(&0).map_or("stop", |kind| kind)),
                matched: choice.value_span(body, "matched_stop").filter(|at| &body[at.clone()] != b"null"),
                status_code: None,
                message: None,
            }),
            prompt_tokens: Some(prompt.len() as u64),
            completion_tokens: Some(ids.len() as u64),
            output_ids: first(sglext.value_span(body, "output_ids")?),
            prompt_ids: sglext.value_span(body, "input_ids"),
            meta: Some(meta),
            ..Chunk::default()
        })
    }

    /// Reads the object at `data` in `text`. Adds the changes that remove the ids that the client does not get.
    fn decode_object(&mut self, text: &[u8], data: Range<usize>, changes: &mut Splice) -> Result<Remainder, Malformed> {
        let mut cursor = Cursor::at(&text[..data.end], data.start);
        let object = members(&mut cursor)?;
        cursor.end()?;
        let sglext = inner(text, &object, "sglext");
        self.ids.add(text, &object, sglext.as_ref())?;
        let sglext = sglext.unwrap_or_default();
        let is_removed = |key: &Text<'_>| self.sglext.excludes(key);
        let removed = sglext.members.iter().filter(|member| is_removed(&sglext.key(text, member))).count();
        let is_empty = |name: &str, empty: &[u8]| object.get(text, name).is_none_or(|value| value == empty);
        if removed == 0 {
            Ok(Remainder::Some)
        } else if removed < sglext.members.len() {
            let mut edit = Edit::new(text, &sglext);
            edit.remove(is_removed);
            edit.finish(changes);
            Ok(Remainder::Some)
        } else if is_empty("choices", b"[]") && is_empty("usage", b"null") {
            Ok(Remainder::Nothing)
        } else {
            let mut edit = Edit::new(text, &object);
            edit.remove(|key| key.is("sglext"));
            edit.finish(changes);
            Ok(Remainder::Some)
        }
    }
}

impl ChatIds {
    /// Adds what an object and its `sglext` report.
    fn add(&mut self, text: &[u8], object: &Object, sglext: Option<&Object>) -> Result<(), Malformed> {
        if self.rid.is_none() {
            self.rid = object.get(text, "id").and_then(string);
        }
        if let Some(choices) = object.value_span(text, "choices") {
            self.read_choices(text, choices)?;
        }
        if let Some(metadata) = object.get(text, "metadata") {
            self.read_metadata(&Value::parse(metadata)?);
        }
        if let Some(usage) = object.get(text, "usage").filter(|usage| usage.first() == Some(&b'{')) {
            self.read_usage(&Value::parse(usage)?);
        }
        let ids = |name: &str| sglext?.get(text, name).filter(|value| value.first() == Some(&b'['));
        // a list with a value that is not an id counts as missing, and is removed like a list of ids
        if let Some(ids) = ids("input_ids") {
            self.prompt = serde_json::from_slice(ids).ok();
        }
        if let Some(ids) = ids("output_ids") {
            self.responses = serde_json::from_slice(ids).ok();
        }
        Ok(())
    }

    /// Records the finish reasons of the choices.
    fn read_choices(&mut self, text: &[u8], at: Range<usize>) -> Result<(), Malformed> {
        let mut cursor = Cursor::at(&text[..at.end], at.start);
        cursor.expect(b'[')?;
        while !cursor.take(b']') {
            let choice = members(&mut cursor)?;
            let index = choice.get(text, "index").and_then(|index| std::str::from_utf8(index).ok()?.parse().ok());
            if let Some(reason) = choice.get(text, "finish_reason").and_then(string) {
                let kind = if matches!(&*reason, "tool_calls" | "function_call") { "stop".into() } else { reason };
                self.finishes.insert(index.unwrap_or(0), kind);
            }
            cursor.take(b',');
        }
        Ok(())
    }

    /// Records the number of cached tokens.
    fn read_usage(&mut self, usage: &Value) {
        let cached = usage.get("prompt_tokens_details").and_then(|details| details.get("cached_tokens"));
        if let Some(Value::Number(cached)) = cached {
            self.cached_tokens = cached.parse().ok();
        }
    }

    /// Records the weight versions.
    fn read_metadata(&mut self, metadata: &Value) {
        let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(Box::from);
        let number = |value: &Value, name: &str| match value.get(name) {
            Some(Value::Number(text)) => text.parse().ok(),
            _ => None,
        };
        let span = |span: &Value| Some((text(span, "version")?, number(span, "start")?, number(span, "end")?));
        self.label = text(metadata, "weight_version");
        let spans = metadata.get("weight_versions").and_then(Value::as_array).unwrap_or_default();
        self.spans = spans.iter().map(span).collect::<Option<_>>().unwrap_or_default();
    }
}

/// Parses an object without its values.
fn members(cursor: &mut Cursor<'_>) -> Result<Object, Malformed> {
    Object::read(cursor, |_, cursor| cursor.skip().map(drop))
}

/// The members of an object in an object. `None` if the value is not an object.
fn inner(text: &[u8], object: &Object, name: &str) -> Option<Object> {
    let at = object.value_span(text, name)?;
    members(&mut Cursor::at(&text[..at.end], at.start)).ok()
}

/// Whether an event may have ids or a finish reason. Quotes in JSON strings are escaped, so that a text does not match as a key.
fn is_relevant(event: &[u8]) -> bool {
    const REASON: &[u8] = b"\"finish_reason\":";
    let ended = |at: usize| !event[at + REASON.len()..].trim_ascii_start().starts_with(b"null");
    memmem::find(event, b"\"sglext\"").is_some() || memmem::find_iter(event, REASON).any(ended)
}

/// The text of a JSON string; `None` for another value.
fn string(value: &[u8]) -> Option<Box<str>> {
    Value::parse(value).ok()?.as_str().map(Box::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    use crate::engine::transport::sse::SseDecoder;

    const NONE: SglextOptions = SglextOptions { input: false, output: false, framed: false };

    fn read(text: &str, sglext: SglextOptions) -> (Result<Splice, Malformed>, ChatIds) {
        let mut reader = ChatReader::new(sglext, 1);
        (reader.decode_event(text.as_bytes(), 0..text.len()), reader.ids)
    }

    /// An event without its framing; empty if nothing is forwarded.
    fn forwarded(text: &str, sglext: SglextOptions) -> String {
        String::from_utf8(read(text, sglext).0.unwrap().apply(text.as_bytes())).unwrap()
    }

    #[test]
    fn ids_finish_reasons_and_weight_versions_are_parsed() {
        let text = r#"{"id":"r\u0031","choices":[{"index":1,"finish_reason":"tool_calls"},{"index":0,"finish_reason":"length"},
            {"index":2,"finish_reason":null}],"usage":{"prompt_tokens_details":{"cached_tokens":1}},"metadata":{"weight_version":"b","weight_versions":[{"version":"a","start":0,"end":1},
            {"version":"b","start":1,"end":2}]},"sglext":{"input_ids":[1,2],"output_ids":[[3,4],[5],[]]}}"#;
        let (changes, ids) = read(text, NONE);
        assert!(!changes.unwrap().is_empty());
        let expected = ChatIds {
            rid: Some("r1".into()),
            prompt: Some(vec![1, 2]),
            responses: Some(vec![vec![3, 4], vec![5], vec![]]),
            finishes: BTreeMap::from([(0, "length".into()), (1, "stop".into())]),
            cached_tokens: Some(1),
            label: Some("b".into()),
            spans: vec![("a".into(), 0, 1), ("b".into(), 1, 2)],
        };
        assert_eq!(ids, expected);
    }

    #[test]
    fn ids_that_the_client_did_not_request_are_removed() {
        let both = r#"{"choices":[1],"sglext":{"input_ids":[1],"output_ids":[[2]]}}"#;
        let both = both.replace("[1],\"sglext", "[{}],\"sglext");
        let input = SglextOptions { input: true, ..NONE };
        assert_eq!(forwarded(&both, NONE), r#"{"choices":[{}]}"#);
        assert_eq!(forwarded(&both, input), r#"{"choices":[{}],"sglext":{"input_ids":[1]}}"#);
        assert_eq!(forwarded(&both, SglextOptions { input: true, output: true, ..NONE }), both);
        let more = r#"{"choices":[],"usage":null,"sglext":{"routed_experts":"x","output_ids":[[2]]}}"#;
        assert_eq!(forwarded(more, NONE), r#"{"choices":[],"usage":null,"sglext":{"routed_experts":"x"}}"#);
        let bare = r#"{"id":"r","choices":[],"usage":null,"sglext":{"output_ids":[[2]]}}"#;
        assert_eq!(forwarded(bare, NONE), "");
        assert_eq!(forwarded(bare, input), "");
        let reply = ChatReader::new(NONE, 1).decode_whole(bare.as_bytes()).unwrap();
        assert!(reply.is_empty(), "a reply that does not stream is forwarded");
        let usage = r#"{"choices":[],"sglext":{"output_ids":[[2]]},"usage":{"total_tokens":1}}"#;
        assert_eq!(forwarded(usage, NONE), r#"{"choices":[],"usage":{"total_tokens":1}}"#);
        for same in [r#"{"sglext":null}"#, r#"{"sglext":{}}"#, r#"{"sglext":{"other":1}}"#, "{}"] {
            assert_eq!(forwarded(same, NONE), same);
        }
    }

    #[test]
    fn malformed_reply_is_an_error() {
        for text in ["", "[]", "{", r#"{"choices":[1]}"#, r#"{"choices":{}}"#] {
            assert!(read(text, NONE).0.is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_id_lists_are_removed_and_ignored() {
        for ids in [r#""input_ids":[-1]"#, r#""output_ids":[1]"#, r#""output_ids":[[4294967296]]"#] {
            let text = format!(r#"{{"choices":[{{}}],"sglext":{{{ids}}}}}"#);
            let (_, read) = read(&text, NONE);
            assert_eq!((read.prompt, read.responses), (None, None));
            assert_eq!(forwarded(&text, NONE), r#"{"choices":[{}]}"#);
        }
    }

    /// The bytes for the client, and the ids, of a stream in these pieces.
    fn read_all<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, sglext: SglextOptions) -> (Vec<u8>, ChatIds) {
        let (mut decoder, mut reader) = (SseDecoder::default(), ChatReader::new(sglext, 1));
        let mut out = Vec::new();
        for chunk in chunks {
            decoder.push(chunk);
            for event in decoder.by_ref() {
                let changes =
                    event.data.and_then(|json| reader.decode_event(&event.raw, json).ok()).unwrap_or_default();
                out.extend_from_slice(&changes.apply(&event.raw));
            }
        }
        out.extend_from_slice(&decoder.take_rest());
        (out, reader.ids)
    }

    /// An event, and whether it has ids.
    fn event() -> impl Strategy<Value = (bool, &'static str)> {
        prop::sample::select(vec![
            (false, "data: {\"id\":\"r\",\"choices\":[{\"index\":0,\"finish_reason\":null}]}\n\n"),
            (false, "data: {\"choices\":[{\"index\":0,\"finish_reason\": \"stop\"}]}\r\n\r\n"),
            (false, "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"sglext\\\":\\\"finish_reason\\\":\"}}]}\n\n"),
            (false, "data: {\"choices\":[],\"usage\":{\"total_tokens\":3}}\n\n"),
            (false, ": ping\n\n"),
            (false, "event: other\ndata: \"finish_reason\":1\n\n"),
            (false, "data: a\ndata: b\n\n"),
            (false, "data: [DONE]\n\n"),
            (false, "dat"),
            (
                true,
                "event: sglext_ids\ndata: {\"choices\":[],\"usage\":null,\"sglext\":{\"input_ids\":[1],\"output_ids\":[[2]]}}\n\n",
            ),
            (
                true,
                "data: {\"choices\":[],\"sglext\":{\"routed_experts\":\"x\",\"input_ids\":[1],\"output_ids\":[[2]]}}\n\n",
            ),
        ])
    }

    proptest! {
        #[test]
        fn splits_of_the_bytes_do_not_change_the_ids_or_the_text(
            events in prop::collection::vec(event(), 0..10),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            requested in any::<(bool, bool)>(),
        ) {
            let options = SglextOptions { input: requested.0, output: requested.1, framed: false };
            let text: String = events.iter().map(|(_, text)| *text).collect();
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
            at.sort_unstable();
            let whole = read_all([bytes], options);
            prop_assert_eq!(&read_all(at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]), options), &whole);
            prop_assert_eq!(&read_all(bytes.chunks(1), options), &whole);
            let both = SglextOptions { input: true, output: true, framed: false };
            if options == both || events.iter().all(|(ids, _)| !ids) {
                prop_assert_eq!(&whole.0, bytes);
            }
        }
    }

    #[test]
    fn separate_event_with_ids_is_parsed_and_not_forwarded() {
        let finish = "data: {\"id\":\"r\",\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n";
        let ids = "event: sglext_ids\ndata: {\"id\":\"r\",\"choices\":[],\"usage\":null,\"sglext\":{\"input_ids\":[1],\"output_ids\":[[2]]}}\n\n";
        let (out, read) = read_all([finish.as_bytes(), ids.as_bytes(), b"data: [DONE]\n\n"], NONE);
        assert_eq!(String::from_utf8(out).unwrap(), format!("{finish}data: [DONE]\n\n"));
        assert_eq!((read.prompt, read.responses), (Some(vec![1]), Some(vec![vec![2]])));
    }

    #[test]
    fn reader_awaits_ids_after_all_choices_have_ended() {
        let mut reader = ChatReader::new(NONE, 2);
        let finish = |index: usize| format!("{{\"choices\":[{{\"index\":{index},\"finish_reason\":\"stop\"}}]}}");
        let ids = r#"{"choices":[],"sglext":{"input_ids":[1],"output_ids":[[2],[3]]}}"#.to_owned();
        for (event, awaits_ids) in [(finish(1), false), (finish(1), false), (finish(0), true), (ids, false)] {
            reader.decode_event(event.as_bytes(), 0..event.len()).unwrap();
            assert_eq!(reader.awaits_ids(), awaits_ids, "{event}");
        }
    }

    #[test]
    fn first_choice_has_the_ids_and_the_counts_of_the_chat() {
        let chat = r#"{"id":"r","choices":[{"index":0,"finish_reason":"tool_calls","matched_stop":"x"}],
            "usage":{"prompt_tokens":2,"reasoning_tokens":1,"prompt_tokens_details":{"cached_tokens":2}},
            "sglext":{"input_ids":[1,2],"output_ids":[[3,4,5],[6]]}}"#;
        let read = |chat: &str| {
            let mut reader = ChatReader::new(NONE, 1);
            reader.decode_whole(chat.as_bytes()).unwrap();
            reader.first_choice(chat.as_bytes())
        };
        let choice = read(chat).unwrap();
        assert_eq!(
            (choice.rid.as_deref(), choice.prompt_tokens, choice.completion_tokens),
            (Some("r"), Some(2), Some(3))
        );
        let text = |at: &Option<Range<usize>>| at.clone().map(|at| &chat[at]);
        assert_eq!((text(&choice.output_ids), text(&choice.prompt_ids)), (Some("[3,4,5]"), Some("[1,2]")));
        let finish = choice.finish.as_ref().unwrap();
        assert_eq!((&*finish.kind, text(&finish.matched)), ("stop", Some("\"x\"")));
        let bytes = chat.as_bytes();
        assert_eq!((choice.reasoning_tokens(bytes), choice.cached_tokens(bytes)), (Some(1), Some(2)));
        let plain = chat.replace("\"x\"", "null").replace("\"usage\"", "\"other\"");
        let choice = read(&plain).unwrap();
        assert_eq!((choice.finish.unwrap().matched, choice.meta.unwrap().members.len()), (None, 0));
        assert!(read(&chat.replace("output_ids", "outputs")).is_none());
    }
}
