//! `sglext`: the token ids of a chat, if a client asks for them. Reads it from replies of SGLang's own endpoint, and writes it for chats that tokentap serves.

mod listener;
pub(super) mod wanted;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::json::{Cursor, Edit, Malformed, Object, Splice, Text, Value};

use crate::api::openai::list as ids;

pub(crate) use listener::Listener;
pub(crate) use wanted::Wanted;

/// The ids and labels that the engine reported for a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EngineIds {
    /// `id`.
    pub rid: Option<Box<str>>,
    /// The prompt's ids.
    pub prompt: Option<Vec<u32>>,
    /// The sampled ids of each choice.
    pub responses: Option<Vec<Vec<u32>>>,
    /// By choice: `finish_reason.type`, as the native endpoint has it.
    pub finishes: BTreeMap<usize, Box<str>>,
    /// `weight_version`.
    pub label: Option<Box<str>>,
    /// `weight_versions` of the first choice: label, first token, behind the last.
    pub spans: Vec<(Box<str>, u32, u32)>,
}

/// What the client gets of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Remainder {
    /// All of it, as it is.
    Same,
    /// This.
    Changed(Vec<u8>),
    /// Nothing: the text has only ids.
    Nothing,
}

/// `sglext` with the ids of a reply that are wanted, behind a comma; empty where none are.
#[must_use]
pub(crate) fn member<'a>(wanted: Wanted, prompt: &[u32], responses: impl Iterator<Item = &'a [u32]>) -> String {
    let input = wanted.input.then(|| format!("\"input_ids\":{}", ids(prompt)));
    let output = wanted.output.then(|| {
        let lists: Vec<String> = responses.map(ids).collect();
        format!("\"output_ids\":[{}]", lists.join(","))
    });
    let members: Vec<String> = input.into_iter().chain(output).collect();
    if members.is_empty() { String::new() } else { format!(",\"sglext\":{{{}}}", members.join(",")) }
}

impl EngineIds {
    /// Reads an object of a reply: the whole of it or an event, in `text` at `data`. Ids that are not `wanted` go.
    ///
    /// # Errors
    /// When it is not what SGLang writes.
    pub(crate) fn read(&mut self, text: &[u8], data: Range<usize>, wanted: Wanted) -> Result<Remainder, Malformed> {
        let mut cursor = Cursor::at(&text[..data.end], data.start);
        let object = members(&mut cursor)?;
        cursor.end()?;
        if self.rid.is_none() {
            self.rid = object.get(text, "id").and_then(string);
        }
        if let Some(choices) = object.value_span(text, "choices") {
            self.choices(text, choices)?;
        }
        if let Some(metadata) = object.get(text, "metadata") {
            self.metadata(&Value::parse(metadata)?);
        }
        let Some(at) = object.value_span(text, "sglext").filter(|at| text[at.start] == b'{') else {
            return Ok(Remainder::Same);
        };
        let said = members(&mut Cursor::at(&text[..at.end], at.start))?;
        let ids = |name: &str| said.value_span(text, name).filter(|at| text[at.start] == b'[');
        // a list that has other values than ids was not asked for, either
        if let Some(at) = ids("input_ids") {
            self.prompt = list(text, at);
        }
        if let Some(at) = ids("output_ids") {
            self.responses = list(text, at);
        }
        let gone = |key: &Text<'_>| wanted.is_without(key);
        let left = said.members.iter().filter(|member| !gone(&said.key(text, member))).count();
        let mut splice = Splice::default();
        if left == said.members.len() {
            return Ok(Remainder::Same);
        } else if left > 0 {
            let mut edit = Edit::new(text, &said);
            edit.remove(gone);
            edit.finish(&mut splice);
        } else {
            let is = |name: &str, nothing: &[u8]| object.get(text, name).is_none_or(|value| value == nothing);
            if is("choices", b"[]") && is("usage", b"null") {
                return Ok(Remainder::Nothing);
            }
            let mut edit = Edit::new(text, &object);
            edit.remove(|key| key.is("sglext"));
            edit.finish(&mut splice);
        }
        Ok(Remainder::Changed(splice.apply(text)))
    }

    /// Takes note of how choices ended.
    fn choices(&mut self, text: &[u8], at: Range<usize>) -> Result<(), Malformed> {
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

    fn metadata(&mut self, metadata: &Value) {
        let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(Box::from);
        let place = |value: &Value, name: &str| match value.get(name) {
            Some(Value::Number(number)) => number.parse().ok(),
            _ => None,
        };
        let span = |span: &Value| Some((text(span, "version")?, place(span, "start")?, place(span, "end")?));
        self.label = text(metadata, "weight_version");
        let spans = metadata.get("weight_versions").and_then(Value::as_array).unwrap_or_default();
        self.spans = spans.iter().map(span).collect::<Option<_>>().unwrap_or_default();
    }
}

fn members(cursor: &mut Cursor<'_>) -> Result<Object, Malformed> {
    Object::read(cursor, |_, cursor| cursor.skip().map(drop))
}

/// The text of a string.
fn string(value: &[u8]) -> Option<Box<str>> {
    Value::parse(value).ok()?.as_str().map(Box::from)
}

fn list<T: serde::de::DeserializeOwned>(text: &[u8], at: Range<usize>) -> Option<T> {
    serde_json::from_slice(&text[at]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Wanted = Wanted { input: false, output: false, framed: false };

    fn read(text: &str, wanted: Wanted) -> (Result<Remainder, Malformed>, EngineIds) {
        let mut engine_ids = EngineIds::default();
        (engine_ids.read(text.as_bytes(), 0..text.len(), wanted), engine_ids)
    }

    fn left(text: &str, wanted: Wanted) -> String {
        match read(text, wanted).0.unwrap() {
            Remainder::Same => text.to_owned(),
            Remainder::Changed(bytes) => String::from_utf8(bytes).unwrap(),
            Remainder::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn all_that_is_told_is_taken() {
        let text = r#"{"id":"r\u0031","choices":[{"index":1,"finish_reason":"tool_calls"},{"index":0,"finish_reason":"length"},
            {"index":2,"finish_reason":null}],"metadata":{"weight_version":"b","weight_versions":[{"version":"a","start":0,"end":1},
            {"version":"b","start":1,"end":2}]},"sglext":{"input_ids":[1,2],"output_ids":[[3,4],[5],[]]}}"#;
        let (left, engine_ids) = read(text, NONE);
        assert!(matches!(left, Ok(Remainder::Changed(_))));
        let expected = EngineIds {
            rid: Some("r1".into()),
            prompt: Some(vec![1, 2]),
            responses: Some(vec![vec![3, 4], vec![5], vec![]]),
            finishes: BTreeMap::from([(0, "length".into()), (1, "stop".into())]),
            label: Some("b".into()),
            spans: vec![("a".into(), 0, 1), ("b".into(), 1, 2)],
        };
        assert_eq!(engine_ids, expected);
    }

    #[test]
    fn members_that_were_not_asked_for_are_removed() {
        let both = r#"{"choices":[1],"sglext":{"input_ids":[1],"output_ids":[[2]]}}"#;
        let both = both.replace("[1],\"sglext", "[{}],\"sglext");
        let input = Wanted { input: true, ..NONE };
        assert_eq!(left(&both, NONE), r#"{"choices":[{}]}"#);
        assert_eq!(left(&both, input), r#"{"choices":[{}],"sglext":{"input_ids":[1]}}"#);
        assert_eq!(left(&both, Wanted { input: true, output: true, ..NONE }), both);
        let more = r#"{"choices":[],"usage":null,"sglext":{"routed_experts":"x","output_ids":[[2]]}}"#;
        assert_eq!(left(more, NONE), r#"{"choices":[],"usage":null,"sglext":{"routed_experts":"x"}}"#);
        let bare = r#"{"id":"r","choices":[],"usage":null,"sglext":{"output_ids":[[2]]}}"#;
        assert_eq!(left(bare, NONE), "nothing");
        assert_eq!(left(bare, input), "nothing");
        let usage = r#"{"choices":[],"sglext":{"output_ids":[[2]]},"usage":{"total_tokens":1}}"#;
        assert_eq!(left(usage, NONE), r#"{"choices":[],"usage":{"total_tokens":1}}"#);
        for same in [r#"{"sglext":null}"#, r#"{"sglext":{}}"#, r#"{"sglext":{"other":1}}"#, "{}"] {
            assert_eq!(left(same, NONE), same);
        }
    }

    #[test]
    fn unreadable_text_is_an_error() {
        for text in ["", "[]", "{", r#"{"choices":[1]}"#, r#"{"choices":{}}"#] {
            assert!(read(text, NONE).0.is_err(), "{text}");
        }
    }

    #[test]
    fn lists_that_are_none_of_ids_go_and_tell_nothing() {
        for ids in [r#""input_ids":[-1]"#, r#""output_ids":[1]"#, r#""output_ids":[[4294967296]]"#] {
            let text = format!(r#"{{"choices":[{{}}],"sglext":{{{ids}}}}}"#);
            let (_, engine_ids) = read(&text, NONE);
            assert_eq!((engine_ids.prompt, engine_ids.responses), (None, None));
            assert_eq!(left(&text, NONE), r#"{"choices":[{}]}"#);
        }
    }
}
