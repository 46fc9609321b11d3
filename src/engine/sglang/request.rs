// SPDX-License-Identifier: Apache-2.0
//! Parses the fields of a /generate request that tokentap uses. The bytes are unchanged.

mod builder;
mod field;
mod images;
mod prompt;
mod sampling;
mod session;
mod session_params;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

pub(crate) use builder::{PromptText, RequestBuilder, RequestOption, SamplingParam, SamplingWriter, sampling_params};
pub use field::PerItem;
pub use images::{ImageData, ImageError, ImageItem};
pub use prompt::{IdShape, Ids, Texts};
pub use sampling::{CustomParams, PLUGIN_SWITCH, SamplingParams};
pub(crate) use session::{LONGEST_TAGS, SESSION_TAGS};
pub use session::{SessionName, SessionNames};
pub use session_params::SessionParams;

use crate::json::{Cursor, Malformed, Object, Text};

/// The member with a custom logit processor.
pub(crate) const CUSTOM_PROCESSOR: &str = "custom_logit_processor";

/// The fields of a request that tokentap uses. Of repeated keys the last counts, as in Python.
#[derive(Debug, Default)]
pub struct GenerateRequest {
    /// The unchanged body.
    pub bytes: Bytes,
    /// Its top-level members.
    pub object: Object,
    /// `text`.
    pub text: Texts,
    /// `input_ids`.
    pub ids: Ids,
    /// `image_data`.
    pub images: ImageData,
    /// `video_data` or `audio_data` is present.
    pub other_media: bool,
    /// The range of `text`.
    pub text_span: Option<Range<usize>>,
    /// Members that name or tag the session.
    pub sessions: SessionNames,
    /// `session_params`, unless it continues nothing.
    pub session_params: Option<SessionParams>,
    /// `return_prompt_token_ids` is true.
    pub return_prompt_token_ids: bool,
    /// `stream`; `None` when it is not a boolean.
    pub stream: Option<bool>,
    /// `rid`.
    pub rid: PerItem<String>,
    /// `sampling_params`.
    pub sampling: PerItem<SamplingParams>,
    /// `lora_path`: the adapter.
    pub lora_path: PerItem<String>,
    /// `return_logprob`.
    pub return_logprob: PerItem<bool>,
    /// `top_logprobs_num`.
    pub top_logprobs_num: PerItem<i64>,
    /// `logprob_start_len`.
    pub logprob_start_len: PerItem<i64>,
    /// `token_ids_logprob`, as the text of each item's value.
    pub token_ids_logprob: PerItem<Range<usize>>,
    /// `return_flat_raw_output_top_logprobs`, `return_flat_raw_top_logprobs`, `return_flat_raw_top_logprobs_b64`: which are true.
    pub flat: [bool; 3],
    /// `return_text_in_logprobs`.
    pub text_in_logprobs: bool,
    /// `custom_logit_processor` is present.
    pub custom_processor: bool,
    /// `return_sampling_mask`.
    pub sampling_mask: PerItem<bool>,
    /// `return_routed_experts` is true.
    pub routed_experts: bool,
    /// `sampling_logprobs_mode`, if it is a string.
    pub sampling_mode: Option<String>,
    /// `return_entropy`; `None` when absent or null.
    pub return_entropy: Option<bool>,
    /// The range of `entropy_options`.
    pub entropy_options: Option<Range<usize>>,
    /// The body is UTF-16 or UTF-32, which Python's JSON parser accepts.
    pub wide: bool,
    /// The index of the first `NaN`, `Infinity` or overflowing number.
    pub non_finite: Option<usize>,
}

/// SGLang's names of the three flat switches, in the order of [`GenerateRequest::flat`].
pub const FLAT: [&str; 3] =
    ["return_flat_raw_output_top_logprobs", "return_flat_raw_top_logprobs", "return_flat_raw_top_logprobs_b64"];

/// The adapter of this name; `None` for an empty one, which SGLang reads as no adapter.
#[must_use]
pub fn adapter(name: &str) -> Option<Arc<str>> {
    Some(name).filter(|name| !name.is_empty()).map(Arc::from)
}

/// The ids of a body that is being parsed.
struct IdSource {
    /// Those that have been read, if they have a span.
    read: Ids,
    keeps_ids: bool,
}

impl IdSource {
    /// The ids of the value at the cursor, which it consumes.
    fn next(&mut self, cursor: &mut Cursor<'_>) -> Result<Ids, Malformed> {
        match self.read.span.as_ref().filter(|span| span.start == cursor.position()) {
            Some(span) => cursor.seek(span.end),
            None => return Ids::read(cursor, self.keeps_ids),
        }
        Ok(std::mem::take(&mut self.read))
    }
}

impl GenerateRequest {
    /// The adapter of prompt `at`.
    #[must_use]
    pub fn adapter(&self, at: usize) -> Option<Arc<str>> {
        adapter(self.lora_path.get(at)?)
    }

    /// The adapter of all prompts; `None` if they have different ones.
    #[must_use]
    pub fn common_adapter(&self) -> Option<Arc<str>> {
        match &self.lora_path {
            PerItem::Many(names) if names.iter().any(|name| *name != names[0]) => None,
            _ => self.adapter(0),
        }
    }

    /// Parses a body.
    ///
    /// # Errors
    /// When it is not one JSON object. The request is then forwarded, so that the engine reports the error.
    pub fn parse(bytes: Bytes) -> Result<Self, Malformed> {
        Self::parse_with(bytes, Ids::default(), true)
    }

    /// Parses a body that tokentap wrote. The list at `span` holds `ids` and is not parsed again.
    ///
    /// # Errors
    /// When it is not one JSON object.
    pub fn parse_with_ids(bytes: Bytes, ids: Arc<[u32]>, span: Range<usize>) -> Result<Self, Malformed> {
        Self::parse_with(bytes, Ids::written(ids, span), true)
    }

    /// Parses a body whose list of ids has been read, if `ids` has a span. Without `keeps_ids` the ids of the prompts are only checked, for a
    /// request that is not recorded.
    ///
    /// # Errors
    /// When it is not one JSON object.
    pub fn parse_with(bytes: Bytes, ids: Ids, keeps_ids: bool) -> Result<Self, Malformed> {
        let mut request = Self { stream: Some(false), ..Self::default() };
        let mut ids = IdSource { read: ids, keeps_ids };
        if is_wide(&bytes) {
            return Ok(Self { wide: true, bytes, ..request });
        }
        let mark = byte_order_mark(&bytes);
        let mut cursor = Cursor::at(&bytes, mark);
        let object = Object::read(&mut cursor, |key, cursor| request.member(key, cursor, &mut ids))?;
        cursor.end()?;
        request.non_finite = cursor.non_finite();
        request.sessions = SessionNames::decode(&bytes, &object);
        request.object = object;
        request.bytes = bytes.clone();
        Ok(request)
    }

    fn member<'a>(&mut self, key: Text<'a>, cursor: &mut Cursor<'a>, ids: &mut IdSource) -> Result<(), Malformed> {
        let decoded;
        let name = if key.escaped {
            decoded = key.decode();
            decoded.as_bytes()
        } else {
            key.raw
        };
        match name {
            b"text" => {
                cursor.peek();
                let start = cursor.position();
                self.text = Texts::read(cursor)?;
                self.text_span = Some(start..cursor.position());
            }
            b"input_ids" => {
                cursor.peek();
                self.ids = ids.next(cursor)?;
            }
            b"image_data" => self.images = ImageData::read(cursor)?,
            b"video_data" | b"audio_data" => self.other_media |= !is_null(value(cursor)?.1),
            b"stream" => {
                self.stream = match value(cursor)?.1 {
                    b"true" => Some(true),
                    b"false" | b"null" => Some(false),
                    _ => None,
                }
            }
            b"rid" => self.rid = PerItem::read(cursor, field::string)?,
            b"sampling_params" => self.sampling = PerItem::read(cursor, SamplingParams::read)?,
            b"lora_path" => self.lora_path = PerItem::read(cursor, field::string)?,
            b"return_logprob" => self.return_logprob = PerItem::read(cursor, field::boolean)?,
            b"top_logprobs_num" => self.top_logprobs_num = PerItem::read(cursor, field::integer)?,
            b"logprob_start_len" => self.logprob_start_len = PerItem::read(cursor, field::integer)?,
            b"token_ids_logprob" => self.token_ids_logprob = field::id_lists(cursor)?,
            b"return_text_in_logprobs" => self.text_in_logprobs = value(cursor)?.1 == b"true",
            b"return_entropy" => {
                self.return_entropy = match value(cursor)?.1 {
                    b"true" => Some(true),
                    b"false" => Some(false),
                    _ => None,
                }
            }
            b"entropy_options" => {
                let (span, text) = value(cursor)?;
                self.entropy_options = (!is_null(text)).then_some(span);
            }
            b"custom_logit_processor" => self.custom_processor = !is_null(value(cursor)?.1),
            b"return_sampling_mask" => self.sampling_mask = PerItem::read(cursor, field::boolean)?,
            b"return_routed_experts" => self.routed_experts = value(cursor)?.1 == b"true",
            b"sampling_logprobs_mode" => self.sampling_mode = field::string(cursor)?,
            b"session_params" => self.session_params = SessionParams::parse(value(cursor)?.1),
            b"return_prompt_token_ids" => self.return_prompt_token_ids = value(cursor)?.1 == b"true",
            _ => match FLAT.iter().position(|flat| flat.as_bytes() == name) {
                Some(at) => self.flat[at] = value(cursor)?.1 == b"true",
                None => {
                    cursor.skip()?;
                }
            },
        }
        Ok(())
    }

    /// The sampling parameters of prompt `at` as its turn records them: unchanged, but for the `defaults` of the engine that change
    /// logprobs, and for `custom_logit_processor: true` if the request has one, which changes the distribution as they do.
    #[must_use]
    pub(crate) fn recorded_sampling(&self, at: usize, defaults: &Map<String, Value>) -> Option<Arc<str>> {
        let text = self.sampling.get(at).map(|sampling| std::str::from_utf8(&self.bytes[sampling.span.clone()]));
        if !self.custom_processor && defaults.is_empty() {
            return text?.ok().map(Arc::from);
        }
        let mut object: Map<_, _> = match text {
            Some(text) => serde_json::from_str(text.ok()?).ok()?,
            None => Map::new(),
        };
        for (name, value) in defaults {
            object.entry(name).or_insert_with(|| value.clone());
        }
        if self.custom_processor {
            object.insert(CUSTOM_PROCESSOR.to_owned(), true.into());
        }
        serde_json::to_string(&object).ok().map(Arc::from)
    }

    /// The ids of prompt `at` from the client; `None` if the prompt is not a list of plain integers, or if ids are not kept. If a request has
    /// both text and ids, the engine uses the ids.
    #[must_use]
    pub fn prompt_ids(&self, at: usize) -> Option<Arc<[u32]>> {
        let alike = match (&self.text, self.ids.shape) {
            (Texts::Absent, _) | (Texts::One { .. }, IdShape::Flat) => true,
            (Texts::Many { count, .. }, IdShape::Nested(lists)) => *count == lists,
            _ => false,
        };
        if !alike {
            return None;
        }
        self.ids.prompts.get(at)?.clone()
    }

    /// The bytes besides the list of ids, if that was read before the body.
    #[must_use]
    pub fn bytes_besides_ids(&self) -> usize {
        self.bytes.len() - self.ids.bytes()
    }

    /// The number of prompts, if it is a batch. If both text and ids are present, the text decides.
    #[must_use]
    pub fn batch(&self) -> Option<usize> {
        match (&self.text, self.ids.shape) {
            (Texts::Many { count, .. }, _) => Some(*count),
            (Texts::Absent, IdShape::Nested(count)) => Some(count),
            _ => None,
        }
    }

    /// `sampling_params.n`, at least 1. Of a list it is the first item's: the engine requires the same `n` for all items.
    #[must_use]
    pub fn n(&self) -> usize {
        let n = self.sampling.get(0).and_then(|sampling| sampling.n).unwrap_or(1);
        usize::try_from(n.max(1)).unwrap_or(1)
    }

    /// The pictures of prompt `at`.
    #[must_use]
    pub fn images(&self, at: usize) -> Vec<&ImageItem> {
        self.images.of_prompt(at, self.batch().is_some() || self.n() > 1)
    }

    /// Whether each prompt has its own item in the list of pictures, if it must.
    #[must_use]
    pub fn assigns_images(&self) -> bool {
        let is_batch = self.batch().is_some() || self.n() > 1;
        !is_batch || self.images.has_items_for(self.batch().unwrap_or(1))
    }

    /// Whether it has pictures, video or audio: the engine then replaces tokens of the prompts.
    #[must_use]
    pub fn has_media(&self) -> bool {
        self.other_media || !self.images.is_absent()
    }

    /// Whether it has `text`.
    #[must_use]
    pub fn has_text(&self) -> bool {
        self.text != Texts::Absent
    }

    /// Whether an echo shows the tokens of the pictures in the prompts: it is compared with the ids that were sent. The engine uses the text of
    /// a request that has both, and continues its own session with an unknown prompt.
    #[must_use]
    pub fn echo_shows_images(&self) -> bool {
        let has_ids = self.ids.shape != IdShape::Absent && !self.has_text();
        has_ids && !self.other_media && self.session_params.is_none()
    }

    /// Whether the pictures of a prompt can be recorded, if the engine echoes it.
    #[must_use]
    pub fn has_recordable_images(&self) -> bool {
        let is_recordable = |at| {
            let images = self.images(at);
            !images.is_empty() && images.into_iter().all(|item| item.is_inline(&self.bytes))
        };
        self.echo_shows_images() && (0..self.batch().unwrap_or(1)).any(is_recordable)
    }

    /// The ids of its sequences, derived from the client's `rid`. Empty if the engine chooses them, as it does for every sample of n > 1.
    #[must_use]
    pub fn rids(&self) -> Vec<String> {
        match &self.rid {
            _ if self.n() > 1 => Vec::new(),
            PerItem::One(rid) => self.rids_named(rid),
            PerItem::Many(rids) => rids.iter().flatten().cloned().collect(),
            PerItem::Absent | PerItem::Unreadable => Vec::new(),
        }
    }

    /// The ids of its sequences if `rid` is this string. The items of a batch are named `R_0`, `R_1` and so on.
    #[must_use]
    pub fn rids_named(&self, rid: &str) -> Vec<String> {
        match self.batch() {
            None => vec![rid.to_owned()],
            Some(count) => (0..count).map(|at| format!("{rid}_{at}")).collect(),
        }
    }

    /// Whether every field that tokentap may edit is unambiguous.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let sampling = match &self.sampling {
            PerItem::Absent => true,
            PerItem::One(sampling) => sampling.readable,
            PerItem::Many(list) => list.iter().flatten().all(|sampling| sampling.readable),
            PerItem::Unreadable => false,
        };
        let shape = self.text != Texts::Other && !matches!(self.ids.shape, IdShape::Other | IdShape::TooDeep);
        !self.wide
            && sampling
            && shape
            && self.stream.is_some()
            && self.rid.is_readable()
            && self.return_logprob.is_readable()
            && self.top_logprobs_num.is_readable()
            && self.logprob_start_len.is_readable()
            && self.token_ids_logprob.is_readable()
            && self.sampling_mask.is_readable()
    }
}

/// The length of the UTF-8 byte order mark at the start of a body, which Python's parser skips.
pub(super) fn byte_order_mark(body: &[u8]) -> usize {
    let mark = b"\xef\xbb\xbf";
    if body.starts_with(mark) { mark.len() } else { 0 }
}

/// Whether the body is UTF-16 or UTF-32: it then begins with a byte order mark, or has a zero among the first four bytes.
fn is_wide(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") || bytes.iter().take(4).any(|byte| *byte == 0)
}

/// Skips a value and returns its range and text.
fn value<'a>(cursor: &mut Cursor<'a>) -> Result<(Range<usize>, &'a [u8]), Malformed> {
    let span = cursor.skip()?;
    Ok((span.clone(), &cursor.bytes()[span]))
}

fn is_null(text: &[u8]) -> bool {
    text == b"null"
}

/// `entropy_options`: tokentap's own member of a request, which is removed before forwarding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EntropyOptions {
    /// `estimate`, `renormalized`, `lower`, `upper` or `sampled`.
    pub estimator: Option<String>,
    /// k for this request.
    pub top_k: Option<u32>,
    /// Add the certified interval.
    pub bounds: bool,
    /// Add the statistics of each token.
    pub stats: bool,
}

impl EntropyOptions {
    /// Parses the value of `entropy_options`.
    ///
    /// # Errors
    /// An error message for the client that names the member.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        // serde would fill the members from a list in order
        if text.first() != Some(&b'{') {
            return Err("entropy_options: must be an object".to_owned());
        }
        serde_json::from_slice(text).map_err(|error| format!("entropy_options: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> GenerateRequest {
        GenerateRequest::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[test]
    fn last_of_repeated_keys_counts() {
        let request = parsed(r#"{"text":"a","text":["a","b"],"return_logprob":true,"return_logprob":false}"#);
        assert_eq!(request.batch(), Some(2));
        assert_eq!(request.return_logprob, PerItem::One(false));
        for last in ["{}", "5", "null"] {
            let request = parsed(&format!(r#"{{"metadata":{{"session_id":"s"}},"metadata":{last}}}"#));
            assert_eq!(request.sessions.metadata, None, "{last}");
        }
    }

    #[test]
    fn common_adapter_is_that_of_all_prompts() {
        for (adapters, expected) in [
            (r#""a""#, Some("a")),
            (r#"["a","a"]"#, Some("a")),
            (r#"["a","b"]"#, None),
            (r#"["a",null]"#, None),
            (r#"[null,"a"]"#, None),
            ("[]", None),
            ("null", None),
            (r#""""#, None),
        ] {
            let request = parsed(&format!(r#"{{"text":["x","y"],"lora_path":{adapters}}}"#));
            assert_eq!(request.common_adapter().as_deref(), expected, "{adapters}");
        }
    }

    #[test]
    fn recorded_sampling_has_the_parameters_that_change_logprobs() {
        let recorded = |text: &str| parsed(text).recorded_sampling(0, &Map::new());
        assert_eq!(recorded(r#"{"text":"a","sampling_params":{ "top_k": 4}}"#).as_deref(), Some(r#"{ "top_k": 4}"#));
        assert_eq!(recorded(r#"{"text":"a","custom_logit_processor":null}"#), None);
        for (text, expected) in [
            (r#"{"text":"a","custom_logit_processor":"x"}"#, r#"{"custom_logit_processor":true}"#),
            (
                r#"{"text":"a","sampling_params":{"top_k":4},"custom_logit_processor":"x"}"#,
                r#"{"top_k":4,"custom_logit_processor":true}"#,
            ),
        ] {
            let found = recorded(text).unwrap();
            let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(parsed(&found), parsed(expected), "{text}");
            assert_eq!(crate::engine::sglang::score::changing_parameter(&found), Some(CUSTOM_PROCESSOR));
        }
        // SGLang puts the request's parameters over its own, also where they are null
        let defaults = serde_json::json!({"repetition_penalty": 1.1, "top_k": 4});
        let added = |text: &str| parsed(text).recorded_sampling(0, defaults.as_object().unwrap()).unwrap();
        for (text, expected) in [
            (r#"{"text":"a"}"#, r#"{"repetition_penalty":1.1,"top_k":4}"#),
            (
                r#"{"text":"a","sampling_params":{"top_k":null,"n":1}}"#,
                r#"{"repetition_penalty":1.1,"top_k":null,"n":1}"#,
            ),
        ] {
            let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(parsed(&added(text)), parsed(expected), "{text}");
            assert_eq!(crate::engine::sglang::score::changing_parameter(&added(text)), Some("repetition_penalty"));
        }
    }

    #[test]
    fn ids_that_tokentap_wrote_are_not_parsed_again() {
        let body = br#"{"input_ids":[7,5,300],"sampling_params":{"max_new_tokens":null},"stream":true}"#;
        let ids: Arc<[u32]> = [7, 5, 300].into();
        let made = GenerateRequest::parse_with_ids(Bytes::from_static(body), Arc::clone(&ids), 13..22).unwrap();
        let read = GenerateRequest::parse(Bytes::from_static(body)).unwrap();
        assert_eq!((made.prompt_ids(0), read.prompt_ids(0), made.prompt_ids(1)), (Some(ids.clone()), Some(ids), None));
        assert_eq!(Ids { span: None, ..made.ids.clone() }, read.ids);
        assert_eq!((made.stream, made.object.span.clone()), (read.stream, read.object.span.clone()));
        // the list at the span is not parsed
        let other = Bytes::from_static(br#"{"input_ids":[,,,,,,,],"stream":true}"#);
        assert!(GenerateRequest::parse_with_ids(other, [1].into(), 13..22).is_ok_and(|made| made.stream == Some(true)));
    }

    #[test]
    fn list_that_was_read_ahead_is_used_only_where_it_is_the_value() {
        for (body, is_used) in [
            (r#"{"rid":"a","input_ids": [ 7, 5,300 ] ,"stream":true}"#, true),
            (r#"{"a":{"input_ids":[1,2]},"input_ids":[7,5,300],"stream":true}"#, false),
            (r#"{"input_ids":[1,2],"input_ids":[7,5,300],"stream":true}"#, false),
            (r#"{"text":"\"input_ids\": [1,2]","input_ids":[7,5,300],"stream":true}"#, true),
        ] {
            for keeps_ids in [true, false] {
                let ahead = Ids::read_ahead(body.as_bytes(), keeps_ids).unwrap();
                let bytes = Bytes::copy_from_slice(body.as_bytes());
                let request = GenerateRequest::parse_with(bytes, ahead, keeps_ids).unwrap();
                let kept = Some([7, 5, 300].into()).filter(|_| keeps_ids);
                assert_eq!(
                    (request.ids.prompts.first().cloned().flatten(), request.stream),
                    (kept, Some(true)),
                    "{body}"
                );
                assert_eq!((request.ids.shape, request.ids.extremes), (IdShape::Flat, Some((5, 300))), "{body}");
                assert_eq!(request.bytes_besides_ids() < body.len(), is_used, "{body}");
            }
        }
        for body in
            [r#"{"text":"a"}"#, r#"{"input_ids":[[1],[2]]}"#, r#"{"input_ids":[1,2.5]}"#, r#"{"input_ids":[1,2"#]
        {
            assert_eq!(Ids::read_ahead(body.as_bytes(), true), None, "{body}");
        }
    }

    #[test]
    fn text_determines_the_batch() {
        assert_eq!(parsed(r#"{"text":"a","input_ids":[[1],[2]]}"#).batch(), None);
        assert_eq!(parsed(r#"{"input_ids":[[1],[2],[3]]}"#).batch(), Some(3));
        assert_eq!(parsed(r#"{"input_ids":[1,2]}"#).batch(), None);
        assert_eq!(parsed(r#"{"text":["a"]}"#).batch(), Some(1));
    }

    #[test]
    fn coerced_values_are_unreadable() {
        for text in [
            r#"{"text":"a","return_logprob":1}"#,
            r#"{"text":"a","top_logprobs_num":5.0}"#,
            r#"{"text":"a","stream":"yes"}"#,
            r#"{"text":5}"#,
            r#"{"text":"a","sampling_params":"x"}"#,
            r#"{"text":"a","sampling_params":{"n":"2"}}"#,
        ] {
            assert!(!parsed(text).is_readable(), "{text} is ambiguous");
        }
        assert!(parsed(r#"{"text":"a","rid":null,"sampling_params":null,"return_logprob":null}"#).is_readable());
    }

    #[test]
    fn non_finite_numbers_are_detected_at_any_depth() {
        assert!(parsed(r#"{"text":"a","sampling_params":{"temperature":NaN}}"#).non_finite.is_some());
        assert!(parsed(r#"{"text":"a","x":[{"y":1e999}]}"#).non_finite.is_some());
        assert!(parsed(r#"{"text":"NaN 1e999","sampling_params":{"temperature":1e-999}}"#).non_finite.is_none());
    }
}
