//! A chat request as the body of /generate.

use std::sync::Arc;

use bytes::Bytes;

use super::canonical::dumps;
use super::fields::{self, Place};
use super::request::ChatRequest;
use super::{Body, Unserved, is_said, quoted, wrong};
use crate::json::{Malformed, Value, write_ids};
use crate::sglang::request::GenerateRequest;
use crate::tokenizer::SamplingDefaults;

/// What a native request has that the chat has not.
#[derive(Debug, Clone, Copy)]
pub struct Addition<'a> {
    /// The prompt.
    pub ids: &'a Arc<[u32]>,
    /// What is sampled with where the client says nothing.
    pub defaults: &'a SamplingDefaults,
    /// Special tokens are no part of the text.
    pub skip_special: bool,
    /// The engine is to expect a thought before a grammar begins.
    pub thinks: bool,
    /// The name that the model is served under.
    pub served_model: &'a str,
    /// Its streams lose ids where events are merged, and logprobs say all of them.
    pub loses_ids: bool,
}

/// The adapter that a model's name asks for, as SGLang reads it: what follows the served name, or else the first colon.
pub(super) fn adapter<'a>(model: &'a str, served: &str) -> Option<&'a str> {
    if model == served {
        return None;
    }
    let behind = model.strip_prefix(served).and_then(|rest| rest.strip_prefix(':'));
    let adapter = behind.or_else(|| model.split_once(':').map(|(_, adapter)| adapter))?.trim();
    Some(adapter).filter(|adapter| !adapter.is_empty())
}

impl ChatRequest {
    /// The request for /generate. `hold` makes bytes of its body that are counted for as long as they are held.
    ///
    /// # Errors
    /// [`Unserved`].
    pub fn native(
        &self,
        addition: Addition<'_>,
        hold: impl FnOnce(Vec<u8>) -> Bytes,
    ) -> Result<GenerateRequest, Unserved> {
        let Addition { ids, defaults, skip_special, thinks, served_model, loses_ids } = addition;
        let body = Body { bytes: &self.bytes, object: &self.object };
        let mut out = Vec::with_capacity(7 * ids.len() + 512);
        out.extend_from_slice(b"{\"input_ids\":");
        let start = out.len();
        out.push(b'[');
        write_ids(&mut out, ids);
        out.push(b']');
        let written = start..out.len();
        out.extend_from_slice(b",\"sampling_params\":{");
        let mut sampling = Members::new(&mut out);
        let most = ["max_completion_tokens", "max_tokens"]
            .iter()
            .find_map(|name| body.raw(name).filter(|n| *n != b"0" && is_said(n)));
        // absent it would be /generate's own default, which is small
        sampling.put("max_new_tokens", most.unwrap_or(b"null"));
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
        body.sampling(&mut sampling, defaults);
        out.push(b'}');
        let mut members = Members::more(&mut out);
        body.top(&mut members, adapter(&self.model, served_model));
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
        } else if self.stream && loses_ids {
            members.put("return_logprob", b"true");
        }
        out.push(b'}');
        GenerateRequest::made(hold(out), Arc::clone(ids), written).map_err(unreadable)
    }
}

/// A request whose members were copied from the client's, and cannot be read.
pub(super) fn unreadable(error: Malformed) -> Unserved {
    match error.too_deep {
        true => wrong("the body nests deeper than 128 levels"),
        false => Unserved::Foreign(format!("a member of the body cannot be read: {error}")),
    }
}

impl Body<'_> {
    /// Writes the fields that belong to `sampling_params`, and the `defaults` of those that the client leaves out.
    pub(super) fn sampling(&self, sampling: &mut Members<'_>, defaults: &SamplingDefaults) {
        for (name, value) in fields::defaults(defaults) {
            if !self.raw(name).is_some_and(is_said) {
                sampling.put(name, value.as_bytes());
            }
        }
        self.own_sampling(sampling);
    }

    /// Writes those that the client gives, under the names of `sampling_params`.
    pub(super) fn own_sampling(&self, sampling: &mut Members<'_>) {
        for (name, place) in fields::FIELDS {
            if let (Place::Sampling(to), Some(value)) = (place, self.raw(name).filter(|value| is_said(value))) {
                sampling.put(to, value);
            }
        }
    }

    /// Writes the fields that belong to the request itself; an `adapter` that the model's name asks for goes before `lora_path`.
    pub(super) fn top(&self, members: &mut Members<'_>, adapter: Option<&str>) {
        if let Some(adapter) = adapter {
            members.put("lora_path", quoted(adapter).as_bytes());
        }
        for (name, place) in fields::FIELDS {
            let said = self.raw(name).filter(|value| is_said(value) && !(adapter.is_some() && *name == "lora_path"));
            if let (Place::Top(to), Some(value)) = (place, said) {
                members.put(to, value);
            }
        }
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
