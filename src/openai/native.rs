//! A chat request as the body of /generate.

use super::fields::{self, Place};
use super::message::dumps;
use super::request::ChatRequest;
use super::{Body, Unserved, is_said, quoted, wrong};
use crate::json::Value;
use crate::tokenizer::SamplingDefaults;

impl ChatRequest {
    /// The body for /generate, with this prompt; `thinks` where the engine is to expect a thought first.
    ///
    /// # Errors
    /// [`Unserved`].
    pub fn native(
        &self,
        ids: &[u32],
        defaults: &SamplingDefaults,
        skip_special: bool,
        thinks: bool,
    ) -> Result<Vec<u8>, Unserved> {
        let body = Body { bytes: &self.bytes, object: &self.object };
        let mut out = Vec::with_capacity(7 * ids.len() + 512);
        out.extend_from_slice(b"{\"input_ids\":[");
        write_ids(&mut out, ids);
        out.extend_from_slice(b"],\"sampling_params\":{");
        let mut sampling = Members::new(&mut out);
        let most = ["max_completion_tokens", "max_tokens"]
            .iter()
            .find_map(|name| body.raw(name).filter(|n| *n != b"0" && is_said(n)));
        // absent it would be /generate's own default, which is small
        sampling.put("max_new_tokens", most.unwrap_or(b"null"));
        for (name, value) in fields::defaults(defaults) {
            if !body.raw(name).is_some_and(is_said) {
                sampling.put(name, value.as_bytes());
            }
        }
        if !skip_special {
            sampling.put("skip_special_tokens", b"false");
        }
        match (constraint(&body)?, self.choice.schema(self.tools.as_deref().unwrap_or_default(), self.parallel_calls)) {
            (Some(_), Some(_)) => {
                return Err(wrong(
                    "tool_choice forces a call and response_format an answer: they cannot both be honored",
                ));
            }
            (Some((name, value)), None) => sampling.put(name, value.as_bytes()),
            (None, Some(schema)) => sampling.put("json_schema", quoted(&dumps(&schema)).as_bytes()),
            (None, None) => {}
        }
        let mut top = Vec::new();
        for (name, place) in fields::FIELDS {
            let Some(value) = body.raw(name).filter(|value| is_said(value)) else { continue };
            match place {
                Place::Sampling(to) => sampling.put(to, value),
                Place::Top(to) => top.push((*to, value)),
            }
        }
        out.push(b'}');
        let mut members = Members::more(&mut out);
        for (name, value) in top {
            members.put(name, value);
        }
        if thinks {
            // a grammar begins behind the thought; the older name is 0.5.6's
            members.put("require_reasoning", b"true");
            members.put("reasoning", b"true");
        }
        if self.stream {
            members.put("stream", b"true");
        }
        if self.logprobs {
            members.put("return_logprob", b"true");
            members.put("top_logprobs_num", body.raw("top_logprobs").filter(|k| is_said(k)).unwrap_or(b"0"));
        }
        out.push(b'}');
        Ok(out)
    }
}

/// The members of an object that is being written.
pub(super) struct Members<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Members<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: true }
    }

    /// Behind members that are there.
    pub(super) fn more(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: false }
    }

    pub(super) fn put(&mut self, name: &str, value: &[u8]) {
        if !std::mem::replace(&mut self.first, false) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out.extend_from_slice(value);
    }
}

/// Numbers with commas between them.
pub(super) fn write_ids(out: &mut Vec<u8>, ids: &[u32]) {
    let mut text = itoa::Buffer::new();
    for (at, id) in ids.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(text.format(*id).as_bytes());
    }
}

/// What `response_format` becomes.
pub(super) fn constraint(body: &Body<'_>) -> Result<Option<(&'static str, String)>, Unserved> {
    let Some(format) = body.value("response_format")? else { return Ok(None) };
    let kind = format.get("type").and_then(Value::as_str);
    let text = |text: &str| serde_json::Value::from(text).to_string();
    match kind {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(("json_schema", text(r#"{"type": "object"}"#)))),
        Some("json_schema") => {
            let schema = format.get("json_schema").map_or_else(|| format.get("schema"), |named| named.get("schema"));
            let schema = schema.ok_or_else(|| wrong("schema_ is required for json_schema response format request."))?;
            Ok(Some(("json_schema", text(&dumps(schema)))))
        }
        Some("structural_tag") => Ok(Some(("structural_tag", text(&dumps(&format))))),
        _ => Err(wrong("response_format.type must be text, json_object, json_schema or structural_tag")),
    }
}
