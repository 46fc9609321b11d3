//! `sglext`: the token ids of a chat, if a client asks for them. Parses it in replies of SGLang's own endpoint, and writes it in replies of
//! tokentap.

mod filter;
pub(super) mod options;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::json::{Cursor, Edit, Malformed, Object, Splice, Text, Value};

use crate::api::openai::id_list;

pub(crate) use filter::SglextFilter;
pub(crate) use options::SglextOptions;

/// The ids and labels that the engine reported for a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EngineIds {
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

/// The part of an event or a reply that is forwarded to the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Remainder {
    /// All of it, unchanged.
    Same,
    /// This text, without the ids that the client does not get.
    Changed(Vec<u8>),
    /// Nothing, because the text has only ids that the client does not get.
    Nothing,
}

/// `sglext` with the ids that the client asks for, with a leading comma. Empty if the client asks for no ids.
#[must_use]
pub(crate) fn member<'a>(options: SglextOptions, prompt: &[u32], responses: impl Iterator<Item = &'a [u32]>) -> String {
    let input = options.input.then(|| format!("\"input_ids\":{}", id_list(prompt)));
    let output = options.output.then(|| {
        let lists: Vec<String> = responses.map(id_list).collect();
        format!("\"output_ids\":[{}]", lists.join(","))
    });
    let members: Vec<String> = input.into_iter().chain(output).collect();
    if members.is_empty() { String::new() } else { format!(",\"sglext\":{{{}}}", members.join(",")) }
}

impl EngineIds {
    /// Parses a whole reply, or an event of a stream. Its JSON object is at `data` in `text`. Returns the text without the ids that
    /// `options` exclude.
    ///
    /// # Errors
    /// [`Malformed`] when the object does not have SGLang's format.
    pub(crate) fn read(
        &mut self,
        text: &[u8],
        data: Range<usize>,
        options: SglextOptions,
    ) -> Result<Remainder, Malformed> {
        let mut cursor = Cursor::at(&text[..data.end], data.start);
        let object = members(&mut cursor)?;
        cursor.end()?;
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
        let Some(at) = object.value_span(text, "sglext").filter(|at| text[at.start] == b'{') else {
            return Ok(Remainder::Same);
        };
        let sglext = members(&mut Cursor::at(&text[..at.end], at.start))?;
        let ids = |name: &str| sglext.value_span(text, name).filter(|at| text[at.start] == b'[');
        // a list with a value that is not an id counts as missing, and is removed like a list of ids
        if let Some(at) = ids("input_ids") {
            self.prompt = list(text, at);
        }
        if let Some(at) = ids("output_ids") {
            self.responses = list(text, at);
        }
        let is_removed = |key: &Text<'_>| options.excludes(key);
        let remaining = sglext.members.iter().filter(|member| !is_removed(&sglext.key(text, member))).count();
        let mut splice = Splice::default();
        if remaining == sglext.members.len() {
            return Ok(Remainder::Same);
        } else if remaining > 0 {
            let mut edit = Edit::new(text, &sglext);
            edit.remove(is_removed);
            edit.finish(&mut splice);
        } else {
            let is_empty = |name: &str, empty: &[u8]| object.get(text, name).is_none_or(|value| value == empty);
            if is_empty("choices", b"[]") && is_empty("usage", b"null") {
                return Ok(Remainder::Nothing);
            }
            let mut edit = Edit::new(text, &object);
            edit.remove(|key| key.is("sglext"));
            edit.finish(&mut splice);
        }
        Ok(Remainder::Changed(splice.apply(text)))
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

/// The text of a JSON string; `None` for another value.
fn string(value: &[u8]) -> Option<Box<str>> {
    Value::parse(value).ok()?.as_str().map(Box::from)
}

/// Parses a JSON list; `None` if it has other elements.
fn list<T: serde::de::DeserializeOwned>(text: &[u8], at: Range<usize>) -> Option<T> {
    serde_json::from_slice(&text[at]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: SglextOptions = SglextOptions { input: false, output: false, framed: false };

    fn read(text: &str, options: SglextOptions) -> (Result<Remainder, Malformed>, EngineIds) {
        let mut engine_ids = EngineIds::default();
        (engine_ids.read(text.as_bytes(), 0..text.len(), options), engine_ids)
    }

    fn forwarded(text: &str, options: SglextOptions) -> String {
        match read(text, options).0.unwrap() {
            Remainder::Same => text.to_owned(),
            Remainder::Changed(bytes) => String::from_utf8(bytes).unwrap(),
            Remainder::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn ids_finish_reasons_and_weight_versions_are_parsed() {
        let text = r#"{"id":"r\u0031","choices":[{"index":1,"finish_reason":"tool_calls"},{"index":0,"finish_reason":"length"},
            {"index":2,"finish_reason":null}],"usage":{"prompt_tokens_details":{"cached_tokens":1}},"metadata":{"weight_version":"b","weight_versions":[{"version":"a","start":0,"end":1},
            {"version":"b","start":1,"end":2}]},"sglext":{"input_ids":[1,2],"output_ids":[[3,4],[5],[]]}}"#;
        let (remainder, engine_ids) = read(text, NONE);
        assert!(matches!(remainder, Ok(Remainder::Changed(_))));
        let expected = EngineIds {
            rid: Some("r1".into()),
            prompt: Some(vec![1, 2]),
            responses: Some(vec![vec![3, 4], vec![5], vec![]]),
            finishes: BTreeMap::from([(0, "length".into()), (1, "stop".into())]),
            cached_tokens: Some(1),
            label: Some("b".into()),
            spans: vec![("a".into(), 0, 1), ("b".into(), 1, 2)],
        };
        assert_eq!(engine_ids, expected);
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
        assert_eq!(forwarded(bare, NONE), "nothing");
        assert_eq!(forwarded(bare, input), "nothing");
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
            let (_, engine_ids) = read(&text, NONE);
            assert_eq!((engine_ids.prompt, engine_ids.responses), (None, None));
            assert_eq!(forwarded(&text, NONE), r#"{"choices":[{}]}"#);
        }
    }
}
