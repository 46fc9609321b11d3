//! Members of a request for /generate, copied from a request of OpenAI's.

use super::body::{RequestBody, is_present, wrong};
use super::fields::{self, FieldTarget};
use crate::chat::{RequestError, dumps, quoted};
use crate::json::{Malformed, Value};
use crate::tokenizer::SamplingDefaults;

/// The adapter that a model's name asks for, as SGLang reads it: what follows the served name, or else the first colon.
pub(crate) fn adapter<'a>(model: &'a str, served: &str) -> Option<&'a str> {
    if model == served {
        return None;
    }
    let behind = model.strip_prefix(served).and_then(|rest| rest.strip_prefix(':'));
    let adapter = behind.or_else(|| model.split_once(':').map(|(_, adapter)| adapter))?.trim();
    Some(adapter).filter(|adapter| !adapter.is_empty())
}

/// A request whose members were copied from the client's, and cannot be read.
pub(crate) fn unreadable(error: Malformed) -> RequestError {
    match error.too_deep {
        true => wrong("the body nests deeper than 128 levels"),
        false => RequestError::Unsupported(format!("a member of the body cannot be read: {error}")),
    }
}

impl RequestBody<'_> {
    /// Writes the fields that belong to `sampling_params`, and the `defaults` of those that the client leaves out.
    pub(crate) fn sampling(&self, sampling: &mut Members<'_>, defaults: &SamplingDefaults) {
        for (name, value) in fields::defaults(defaults) {
            if !self.raw(name).is_some_and(is_present) {
                sampling.put(name, value.as_bytes());
            }
        }
        self.own_sampling(sampling);
    }

    /// Writes those that the client gives, under the names of `sampling_params`.
    pub(crate) fn own_sampling(&self, sampling: &mut Members<'_>) {
        for (name, place) in fields::FIELDS {
            if let (FieldTarget::Sampling(to), Some(value)) = (place, self.raw(name).filter(|value| is_present(value)))
            {
                sampling.put(to, value);
            }
        }
    }

    /// Writes the fields that belong to the request itself; an `adapter` that the model's name asks for goes before `lora_path`.
    pub(crate) fn top(&self, members: &mut Members<'_>, adapter: Option<&str>) {
        if let Some(adapter) = adapter {
            members.put("lora_path", quoted(adapter).as_bytes());
        }
        for (name, place) in fields::FIELDS {
            let said = self.raw(name).filter(|value| is_present(value) && !(adapter.is_some() && *name == "lora_path"));
            if let (FieldTarget::Top(to), Some(value)) = (place, said) {
                members.put(to, value);
            }
        }
    }
}

/// The members of an object that is being written.
pub(crate) struct Members<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Members<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: true }
    }

    /// Behind members that are there.
    pub(crate) fn more(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: false }
    }

    pub(crate) fn put(&mut self, name: &str, value: &[u8]) {
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
pub(crate) fn constraint(body: &RequestBody<'_>) -> Result<Option<(&'static str, String)>, RequestError> {
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
