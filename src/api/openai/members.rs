//! Writes the members of a /generate request from the fields of an OpenAI request.

use super::fields::{self, FieldTarget};
use crate::api::body::{RequestBody, invalid, is_present};
use crate::api::generate_request::sampling_defaults;
use crate::chat::{RequestError, dumps, quoted};
use crate::engine::sglang::request::{RequestBuilder, RequestOption, SamplingParam, SamplingWriter};
use crate::json::Value;
use crate::tokenizer::SamplingDefaults;

/// The LoRA adapter in a `model` of the form `MODEL:ADAPTER`. As in SGLang, it is the text after the served name and a colon, or else after
/// the first colon.
pub(crate) fn lora_adapter<'a>(model: &'a str, served: &str) -> Option<&'a str> {
    if model == served {
        return None;
    }
    let after_served = model.strip_prefix(served).and_then(|rest| rest.strip_prefix(':'));
    let adapter = after_served.or_else(|| model.split_once(':').map(|(_, adapter)| adapter))?.trim();
    Some(adapter).filter(|adapter| !adapter.is_empty())
}

impl RequestBody<'_> {
    /// Writes the sampling parameters, with `defaults` for those that the client omits.
    pub(crate) fn write_sampling(&self, sampling: &mut SamplingWriter<'_>, defaults: &SamplingDefaults) {
        for (param, value) in sampling_defaults(defaults) {
            // the five have the same names in the client's request
            if !self.raw(param.name()).is_some_and(is_present) {
                sampling.set(param, value.as_bytes());
            }
        }
        self.write_client_sampling(sampling);
    }

    /// Writes the sampling parameters that the client sent.
    pub(crate) fn write_client_sampling(&self, sampling: &mut SamplingWriter<'_>) {
        for (name, target) in fields::FIELDS {
            let value = self.raw(name).filter(|value| is_present(value));
            if let (FieldTarget::Sampling(to), Some(value)) = (target, value) {
                sampling.set(*to, value);
            }
        }
    }

    /// The variables of the template: `chat_template_kwargs`, and the variables that SGLang derives from the effort of reasoning.
    ///
    /// # Errors
    /// [`RequestError::Invalid`].
    pub(crate) fn template_variables(&self, effort: Option<Value>) -> Result<Vec<(String, Value)>, RequestError> {
        let mut extra = match self.value("chat_template_kwargs")? {
            None => Vec::new(),
            Some(Value::Object(members)) => members,
            Some(_) => return Err(invalid("chat_template_kwargs must be an object")),
        };
        const RESERVED: [&str; 5] = ["messages", "tools", "documents", "add_generation_prompt", "chat_template"];
        let is_reserved = |name: &str| RESERVED.contains(&name) || name.ends_with("_token");
        if let Some((name, _)) = extra.iter().find(|(name, _)| is_reserved(name)) {
            return Err(invalid(format!("chat_template_kwargs.{name} is not allowed, because the name is reserved")));
        }
        let has = |extra: &[(String, Value)], name: &str| extra.iter().any(|(known, _)| known == name);
        if let Some(effort) = effort {
            let thinks = Value::Bool(effort.as_str() != Some("none"));
            for name in ["thinking", "enable_thinking"] {
                if !has(&extra, name) {
                    extra.push((name.to_owned(), thinks.clone()));
                }
            }
            if !has(&extra, "reasoning_effort") {
                extra.push(("reasoning_effort".to_owned(), effort));
            }
        }
        Ok(extra)
    }

    /// Writes the options that the client sent. An `adapter` from `model` takes precedence over the client's.
    pub(crate) fn write_options(&self, request: &mut RequestBuilder, adapter: Option<&str>) {
        if let Some(adapter) = adapter {
            request.option(RequestOption::LoraPath, quoted(adapter).as_bytes());
        }
        for (name, target) in fields::FIELDS {
            let FieldTarget::Top(option) = target else { continue };
            let is_overridden = adapter.is_some() && *option == RequestOption::LoraPath;
            if let Some(value) = self.raw(name).filter(|value| is_present(value) && !is_overridden) {
                request.option(*option, value);
            }
        }
    }
}

/// The sampling parameter that `response_format` becomes, with its value as JSON text. `None` if the format is free text.
///
/// # Errors
/// [`RequestError::Invalid`] for another type, or for a `json_schema` without a schema.
pub(crate) fn output_constraint(body: &RequestBody<'_>) -> Result<Option<(SamplingParam, String)>, RequestError> {
    let Some(format) = body.value("response_format")? else { return Ok(None) };
    let kind = format.get("type").and_then(Value::as_str);
    let text = |text: &str| serde_json::Value::from(text).to_string();
    match kind {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some((SamplingParam::JsonSchema, text(r#"{"type": "object"}"#)))),
        Some("json_schema") => {
            let schema = format.get("json_schema").map_or_else(|| format.get("schema"), |named| named.get("schema"));
            let schema =
                schema.ok_or_else(|| invalid("schema_ is required for json_schema response format request."))?;
            Ok(Some((SamplingParam::JsonSchema, text(&dumps(schema)))))
        }
        Some("structural_tag") => Ok(Some((SamplingParam::StructuralTag, text(&dumps(&format))))),
        _ => Err(invalid("response_format.type must be text, json_object, json_schema or structural_tag")),
    }
}
