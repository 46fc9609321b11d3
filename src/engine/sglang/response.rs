// SPDX-License-Identifier: Apache-2.0
//! Parses one object of a reply: a whole reply, an element of a list, or an event of a stream.

mod array;

use std::collections::VecDeque;
use std::ops::Range;

use array::{array, count_numbers, optional, skip_numbers};

use super::flat;
use crate::engine::events::{Chunk, Finish, KnownPrefix, Numbers};
use crate::engine::sglang::scan;
use crate::json::{Cursor, Malformed, Object, Value, for_each_member, write_ids};

/// The length of a short element of `output_token_logprobs`, in bytes: `[-0.1234567,1234,null],`.
const SHORTEST_TRIPLE: usize = 24;

/// The largest number of tokens for which memory is reserved before they are read.
const MOST_RESERVED: usize = 4096;

/// The known prefixes of the lists, and the buffers for the rest.
type ListContext<'a> = (&'a dyn KnownPrefix, &'a mut Numbers);

#[cfg(test)]
thread_local! {
    /// Objects that this thread has parsed.
    static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The number of reply objects that this thread has parsed.
#[cfg(test)]
pub(crate) fn read_on_this_thread() -> usize {
    READ.with(std::cell::Cell::get)
}

impl Chunk {
    /// Parses the object at the cursor, and its numbers into `numbers`.
    ///
    /// # Errors
    /// When there is no object at the cursor, or its logprobs are not in SGLang's format.
    pub fn decode(cursor: &mut Cursor<'_>, known: &dyn KnownPrefix, numbers: &mut Numbers) -> Result<Self, Malformed> {
        numbers.clear();
        let chunk = Self::with(cursor, Some((known, &mut *numbers)))?;
        if let (None, Some(meta)) = (&chunk.top, &chunk.meta) {
            flat::read(cursor.bytes(), meta, &mut numbers.rows)?;
        }
        Ok(chunk)
    }

    /// Parses the object at the cursor without its lists of logprobs and entropies, which remain ordinary members.
    ///
    /// # Errors
    /// When there is no object at the cursor.
    pub fn outline(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Self::with(cursor, None)
    }

    fn with<'a>(cursor: &mut Cursor<'a>, mut lists: Option<ListContext<'_>>) -> Result<Self, Malformed> {
        #[cfg(test)]
        READ.with(|read| read.set(read.get() + 1));
        let bytes: &'a [u8] = cursor.bytes();
        let mut chunk = Self::default();
        let object = Object::read(&mut *cursor, |key, cursor| {
            match key.raw {
                b"meta_info" if cursor.peek() == Some(b'{') => chunk.meta_info(cursor, &mut lists)?,
                b"output_ids" if cursor.peek() == Some(b'[') => chunk.output_ids = Some(skip_numbers(cursor)?),
                b"prompt_token_ids" if cursor.peek() == Some(b'[') => chunk.prompt_ids = Some(skip_numbers(cursor)?),
                b"index" => {
                    let span = cursor.skip()?;
                    chunk.index = integer(&bytes[span]).and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
                }
                _ => {
                    cursor.skip()?;
                }
            }
            Ok(())
        })?;
        chunk.object = object;
        Ok(chunk)
    }

    /// The number of `output_ids`.
    #[must_use]
    pub fn count_ids(&self, bytes: &[u8]) -> usize {
        self.output_ids.clone().map_or(0, |span| count_numbers(&bytes[span]))
    }

    /// Appends the ids of the list at `span`.
    ///
    /// # Errors
    /// When they are not plain integers.
    pub fn ids(bytes: &[u8], span: &Range<usize>, out: &mut Vec<u32>) -> Result<(), Malformed> {
        scan::ids(bytes, span.start + 1, out).map(drop).map_err(|error| Malformed::new(error.at))
    }

    /// Whether the last id is listed once more than it was sampled, as in the last event of a stream whose waiting request SGLang aborts.
    /// `known` is the number of tokens of the earlier events. If it is 1, a list of all tokens that ends with two equal ids looks the same.
    #[must_use]
    pub fn repeats_last_id(&self, bytes: &[u8], known: usize) -> bool {
        let (Some(span), Some(all)) = (&self.output_ids, self.completion_tokens) else { return false };
        let is_abort = self.finish.as_ref().is_some_and(|finish| finish.kind == "abort");
        let new = usize::try_from(all).ok().and_then(|all| all.checked_sub(known));
        if !is_abort || all == 0 || new.is_none_or(|new| self.count_ids(bytes) != new + 1) {
            return false;
        }
        let mut last = Vec::new();
        let read = Self::last_ids(bytes, span, 2, &mut last);
        read.is_ok() && (last.len() == 1 || last[0] == last[1])
    }

    /// Appends the last `count` ids of a list, or all if it has fewer. Returns whether more precede them. Only the appended ids are parsed,
    /// however long the list is.
    ///
    /// # Errors
    /// When they are not plain integers.
    pub fn last_ids(bytes: &[u8], span: &Range<usize>, count: usize, out: &mut Vec<u32>) -> Result<bool, Malformed> {
        let content = span.start + 1..span.end - 1;
        if count == 0 {
            return Ok(count_numbers(&bytes[content]) > 0);
        }
        let before = memchr::memrchr_iter(b',', &bytes[content.clone()]).nth(count - 1);
        let start = before.map_or(content.start, |comma| content.start + comma + 1);
        scan::ids(bytes, start, out).map_err(|error| Malformed::new(error.at))?;
        Ok(before.is_some())
    }

    /// A member of `meta_info` as JSON text; `None` if it is null.
    fn member<'a>(&self, bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
        self.meta.as_ref()?.get(bytes, name).filter(|text| *text != b"null")
    }

    /// The text of the object: the whole text or only the new text, as the engine sends it.
    #[must_use]
    pub fn text(&self, bytes: &[u8]) -> Option<String> {
        decoded(self.object.get(bytes, "text")?)
    }

    /// The engine's error, if the object is one instead of a result: the member `error`, as JSON text.
    #[must_use]
    pub fn error<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.object.get(bytes, "error").filter(|_| self.meta.is_none())
    }

    /// `output_token_logprobs`: the range of its value.
    #[must_use]
    pub fn token_logprobs(&self, bytes: &[u8]) -> Option<Range<usize>> {
        self.meta.as_ref()?.value_span(bytes, "output_token_logprobs")
    }

    /// `output_top_logprobs`: the range of its value.
    #[must_use]
    pub fn top_logprobs(&self, bytes: &[u8]) -> Option<Range<usize>> {
        self.meta.as_ref()?.value_span(bytes, "output_top_logprobs")
    }

    /// `cached_tokens`: tokens of the prompt.
    #[must_use]
    pub fn cached_tokens(&self, bytes: &[u8]) -> Option<u64> {
        self.member(bytes, "cached_tokens").and_then(integer)
    }

    /// `image_tokens`: tokens of the pictures in the prompt.
    #[must_use]
    pub fn image_tokens(&self, bytes: &[u8]) -> Option<u64> {
        self.member(bytes, "image_tokens").and_then(integer)
    }

    /// `reasoning_tokens`: sampled tokens of thinking.
    #[must_use]
    pub fn reasoning_tokens(&self, bytes: &[u8]) -> Option<u64> {
        self.member(bytes, "reasoning_tokens").and_then(integer)
    }

    /// `routed_experts`, the text of a JSON string.
    #[must_use]
    pub fn routed_experts<'a>(&self, bytes: &'a [u8]) -> Option<&'a str> {
        self.member(bytes, "routed_experts").and_then(|text| std::str::from_utf8(text).ok())
    }

    /// `weight_version`, if it is a string.
    #[must_use]
    pub fn weight_label(&self, bytes: &[u8]) -> Option<String> {
        decoded(self.member(bytes, "weight_version")?)
    }

    /// `weight_version` and `weight_versions`, as JSON text.
    #[must_use]
    pub fn weight_version_texts<'a>(&self, bytes: &'a [u8]) -> [Option<&'a [u8]>; 2] {
        ["weight_version", "weight_versions"].map(|name| self.member(bytes, name))
    }

    /// `weight_versions`: label, first token, end (exclusive). Empty if absent or not in SGLang's format.
    #[must_use]
    pub fn weight_versions(&self, bytes: &[u8]) -> Vec<(Box<str>, u32, u32)> {
        self.member(bytes, "weight_versions").and_then(|text| version_spans(text).ok()).unwrap_or_default()
    }

    fn meta_info(&mut self, cursor: &mut Cursor<'_>, lists: &mut Option<ListContext<'_>>) -> Result<(), Malformed> {
        let meta = Object::read(cursor, |key, cursor| {
            match key.raw {
                b"id" if cursor.peek() == Some(b'"') => {
                    self.rid = Some(cursor.string()?.decode().into_owned());
                    return Ok(());
                }
                b"prompt_tokens" => {
                    self.prompt_tokens = cursor.skip().map(|span| integer(&cursor.bytes()[span]))?;
                    return Ok(());
                }
                b"completion_tokens" => {
                    self.completion_tokens = cursor.skip().map(|span| integer(&cursor.bytes()[span]))?;
                    return Ok(());
                }
                b"finish_reason" => {
                    self.finish = cursor.skip().map(|span| finish(cursor.bytes(), span))?;
                    return Ok(());
                }
                _ => {}
            }
            let Some((known, numbers)) = lists else {
                cursor.skip()?;
                return Ok(());
            };
            match key.raw {
                b"output_token_logprobs" if cursor.peek() == Some(b'[') => {
                    let bytes = cursor.bytes();
                    let most = MOST_RESERVED.min((bytes.len() - cursor.position()) / SHORTEST_TRIPLE);
                    numbers.chosen.reserve(most);
                    numbers.ids.reserve(most);
                    self.chosen = Some(array(
                        cursor,
                        |at| known.chosen(&bytes[at..]),
                        |bytes, at| scan::triples(bytes, at, &mut numbers.chosen, &mut numbers.ids),
                    )?);
                }
                b"output_top_logprobs" if cursor.peek() == Some(b'[') => {
                    let bytes = cursor.bytes();
                    self.top = Some(array(
                        cursor,
                        |at| known.top(&bytes[at..]),
                        |bytes, at| scan::rows(bytes, at, &mut numbers.rows),
                    )?);
                }
                b"output_token_entropy" if cursor.peek() == Some(b'[') => {
                    let bytes = cursor.bytes();
                    // `chosen` counts the tokens, so both lists skip their known prefix or neither does
                    let together = self.chosen.as_ref().is_some_and(|chosen| chosen.known > 0);
                    self.exact = optional(cursor, |cursor| {
                        array(
                            cursor,
                            |at| if together { known.exact(&bytes[at..]) } else { 0 },
                            |bytes, at| scan::numbers(bytes, at, &mut numbers.exact),
                        )
                    })?;
                }
                b"output_token_sampling_logprobs" if cursor.peek() == Some(b'[') => {
                    let read = optional(cursor, |cursor| {
                        array(cursor, |_| 0, |bytes, at| scan::lists(bytes, at, &mut numbers.support))
                    })?;
                    self.has_support = read.is_some();
                }
                _ => {
                    cursor.skip()?;
                }
            }
            Ok(())
        })?;
        self.meta = Some(meta);
        Ok(())
    }
}

/// A finished sequence, to be written as an object of a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FinishedSequence<'a> {
    /// The request id.
    pub(crate) rid: &'a str,
    /// The finish reason; `None` if the sequence was cut off.
    pub(crate) finish: Option<&'a str>,
    /// The number of prompt tokens.
    pub(crate) prompt_tokens: usize,
    /// The sampled ids.
    pub(crate) ids: &'a [u32],
    /// Cached tokens of the prompt, if they are known.
    pub(crate) cached_tokens: Option<u64>,
}

impl FinishedSequence<'_> {
    /// The object, as JSON text.
    #[must_use]
    pub(crate) fn json(&self) -> String {
        let Self { rid, finish, prompt_tokens, ids, cached_tokens } = *self;
        let mut meta_info = serde_json::json!({
            "id": rid,
            "finish_reason": finish.map(|kind| serde_json::json!({"type": kind})),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": ids.len(),
        });
        if let Some(cached) = cached_tokens {
            meta_info["cached_tokens"] = cached.into();
        }
        let mut list = Vec::with_capacity(7 * ids.len());
        write_ids(&mut list, ids);
        let list = String::from_utf8(list).expect("a list of digits and commas is UTF-8");
        format!("{{\"output_ids\":[{list}],\"meta_info\":{meta_info}}}")
    }
}

/// The text of a JSON string; `None` for another value.
fn decoded(text: &[u8]) -> Option<String> {
    let text = Some(text).filter(|text| text.first() == Some(&b'"'))?;
    Some(Cursor::new(text).string().ok()?.decode().into_owned())
}

/// The last `count` entries of a list of logprobs, which is JSON text. Earlier entries are skipped without parsing. Empty if it is not a list.
#[must_use]
pub(crate) fn last_entries(list: &str, count: usize) -> Vec<Value> {
    let mut spans = VecDeque::new();
    let mut cursor = Cursor::new(list.as_bytes());
    let mut read = || {
        cursor.expect(b'[')?;
        while !cursor.take(b']') {
            cursor.take(b',');
            spans.push_back(cursor.skip()?);
            if spans.len() > count {
                spans.pop_front();
            }
        }
        Ok::<_, Malformed>(())
    };
    if read().is_err() {
        return Vec::new();
    }
    spans.into_iter().filter_map(|span| Value::parse(&list.as_bytes()[span]).ok()).collect()
}

/// Reads an entry of a list of logprobs: the id, the logprob as JSON text, and the text if there is one.
#[must_use]
pub(crate) fn entry(value: &Value) -> Option<(u32, String, Option<String>)> {
    let [logprob, id, rest @ ..] = value.as_array()? else { return None };
    let Value::Number(id) = id else { return None };
    let logprob = match logprob {
        Value::Number(text) if text.bytes().all(|byte| !matches!(byte, b'N' | b'I')) => text.to_string(),
        _ => "null".to_owned(),
    };
    let text = rest.first().and_then(Value::as_str).map(str::to_owned);
    Some((id.parse().ok()?, logprob, text))
}

/// Reads a list of objects with `version`, `start` and `end`.
fn version_spans(list: &[u8]) -> Result<Vec<(Box<str>, u32, u32)>, Malformed> {
    let mut spans = Vec::new();
    Cursor::new(list).elements(|cursor| {
        let (mut version, mut start, mut end) = (None, None, None);
        for_each_member(cursor, |key, _, cursor| {
            match &*key.decode() {
                "version" => version = Some(cursor.string()?.decode().into()),
                "start" => start = cursor.small_integer(),
                "end" => end = cursor.small_integer(),
                _ => {
                    cursor.skip()?;
                }
            }
            Ok(())
        })?;
        let index = |index: Option<i64>| index.and_then(|index| u32::try_from(index).ok());
        let (Some(version), Some(start), Some(end)) = (version, index(start), index(end)) else {
            return Err(cursor.malformed());
        };
        spans.push((version, start, end));
        Ok(())
    })?;
    Ok(spans)
}

fn integer(text: &[u8]) -> Option<u64> {
    let digit = |value: u64, byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value.checked_mul(10)?.checked_add(digit.into())
    };
    (!text.is_empty()).then(|| text.iter().try_fold(0, digit))?
}

fn finish(bytes: &[u8], span: Range<usize>) -> Option<Finish> {
    if &bytes[span.clone()] == b"null" {
        return None;
    }
    let mut cursor = Cursor::at(&bytes[..span.end], span.start);
    let (mut kind, mut matched, mut status_code, mut message) = (None, None, None, None);
    let not_null = |span: Range<usize>| Some(span).filter(|span| &bytes[span.clone()] != b"null");
    for_each_member(&mut cursor, |key, _, cursor| {
        let span = cursor.skip()?;
        match key.raw {
            b"type" => kind = Some(span),
            b"matched" => matched = not_null(span),
            b"status_code" => status_code = integer(&bytes[span]).and_then(|status| u16::try_from(status).ok()),
            b"message" => message = not_null(span),
            _ => {}
        }
        Ok(())
    })
    .ok()?;
    let kind = Finish::kind(&Cursor::at(bytes, kind?.start).string().ok()?.decode());
    Some(Finish { kind, matched, status_code, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_versions_in_another_format_are_absent() {
        let spans = |list: &str| version_spans(list.as_bytes()).unwrap_or_default();
        let read = spans(r#"[{"version":"a","start":0,"end":3,"more":[1]}, {"end":5,"\u0076ersion":"b\n","start":3}]"#);
        assert_eq!(read, [("a".into(), 0, 3), ("b\n".into(), 3, 5)]);
        for list in [
            "null",
            "{}",
            r#"[{"version":"a","start":0}]"#,
            r#"[{"version":1,"start":0,"end":1}]"#,
            r#"[{"version":"a","start":0.5,"end":1}]"#,
            r#"[{"version":"a","start":-1,"end":1}]"#,
            r#"[{"version":"a","start":0,"end":4294967296}]"#,
            r#"[{"version":"a","start":0,"end":1}"#,
        ] {
            assert_eq!(spans(list), [], "{list}");
        }
    }
}
