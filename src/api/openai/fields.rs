// SPDX-License-Identifier: Apache-2.0
//! The mapping from fields of an OpenAI request to fields of a /generate request.

use crate::api::body::{RequestBody, invalid};
use crate::chat::{RequestError, dumps};
use crate::engine::sglang::request::{RequestOption, SamplingParam};
use crate::json::Value;

/// The destination of a field in the /generate request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldTarget {
    /// A sampling parameter.
    Sampling(SamplingParam),
    /// Another member of the request.
    Top(RequestOption),
}

use FieldTarget::{Sampling, Top};

/// Fields whose values are copied unchanged: the name in the OpenAI request, and the destination.
pub(crate) const FIELDS: &[(&str, FieldTarget)] = &[
    ("temperature", Sampling(SamplingParam::Temperature)),
    ("top_p", Sampling(SamplingParam::TopP)),
    ("top_k", Sampling(SamplingParam::TopK)),
    ("min_p", Sampling(SamplingParam::MinP)),
    ("repetition_penalty", Sampling(SamplingParam::RepetitionPenalty)),
    ("presence_penalty", Sampling(SamplingParam::PresencePenalty)),
    ("frequency_penalty", Sampling(SamplingParam::FrequencyPenalty)),
    ("min_tokens", Sampling(SamplingParam::MinNewTokens)),
    ("n", Sampling(SamplingParam::N)),
    ("stop", Sampling(SamplingParam::Stop)),
    ("stop_token_ids", Sampling(SamplingParam::StopTokenIds)),
    ("stop_regex", Sampling(SamplingParam::StopRegex)),
    ("seed", Sampling(SamplingParam::Seed)),
    ("logit_bias", Sampling(SamplingParam::LogitBias)),
    ("regex", Sampling(SamplingParam::Regex)),
    ("ebnf", Sampling(SamplingParam::Ebnf)),
    ("ignore_eos", Sampling(SamplingParam::IgnoreEos)),
    ("no_stop_trim", Sampling(SamplingParam::NoStopTrim)),
    ("custom_params", Sampling(SamplingParam::CustomParams)),
    ("rid", Top(RequestOption::Rid)),
    ("session_id", Top(RequestOption::SessionId)),
    ("_proxy_session_id", Top(RequestOption::ProxySessionId)),
    ("metadata", Top(RequestOption::Metadata)),
    ("user", Top(RequestOption::User)),
    ("lora_path", Top(RequestOption::LoraPath)),
    ("custom_logit_processor", Top(RequestOption::CustomLogitProcessor)),
    ("extra_key", Top(RequestOption::ExtraKey)),
    ("cache_salt", Top(RequestOption::CacheSalt)),
    ("priority", Top(RequestOption::Priority)),
    ("bootstrap_host", Top(RequestOption::BootstrapHost)),
    ("bootstrap_port", Top(RequestOption::BootstrapPort)),
    ("bootstrap_room", Top(RequestOption::BootstrapRoom)),
    ("data_parallel_rank", Top(RequestOption::DataParallelRank)),
    ("routed_dp_rank", Top(RequestOption::RoutedDpRank)),
    ("disagg_prefill_dp_rank", Top(RequestOption::DisaggPrefillDpRank)),
    ("return_routed_experts", Top(RequestOption::ReturnRoutedExperts)),
    ("routed_experts_start_len", Top(RequestOption::RoutedExpertsStartLen)),
    ("return_sampling_mask", Top(RequestOption::ReturnSamplingMask)),
    ("return_entropy", Top(RequestOption::ReturnEntropy)),
    ("entropy_options", Top(RequestOption::EntropyOptions)),
];

/// Fields that only the engine's own endpoint supports.
const UNSUPPORTED: &[&str] = &[
    "return_hidden_states",
    "return_flat_raw_output_top_logprobs",
    "return_cached_tokens_details",
    "return_spec_tokens_details",
    "mm_processor_kwargs",
    "task",
];

impl RequestBody {
    /// The fields that are copied to the /generate request, as JSON text.
    pub(crate) fn fields(&self) -> Vec<(FieldTarget, &[u8])> {
        FIELDS.iter().filter_map(|(name, target)| Some((*target, self.present(name)?))).collect()
    }

    /// Checks that tokentap can serve all fields of the request.
    ///
    /// # Errors
    /// [`RequestError::Unsupported`] with a field that only the engine's own endpoint supports: one of [`UNSUPPORTED`], or of `more`.
    pub(crate) fn check_fields(&self, more: &[&str]) -> Result<(), RequestError> {
        let unsupported = UNSUPPORTED.iter().chain(more).find(|name| self.is_set(name));
        unsupported.map_or(Ok(()), |name| Err(RequestError::Unsupported(format!("the field {name:?}"))))
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
        if let Some(effort) = effort {
            let thinks = Value::Bool(effort.as_str() != Some("none"));
            for (name, value) in
                [("thinking", thinks.clone()), ("enable_thinking", thinks), ("reasoning_effort", effort)]
            {
                if !extra.iter().any(|(known, _)| known == name) {
                    extra.push((name.to_owned(), value));
                }
            }
        }
        Ok(extra)
    }
}

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

/// The sampling parameter that `response_format` becomes, with its value as JSON text. `None` if the format is free text.
///
/// # Errors
/// [`RequestError::Invalid`] for another type, or for a `json_schema` without a schema.
pub(crate) fn output_constraint(body: &RequestBody) -> Result<Option<(SamplingParam, String)>, RequestError> {
    let Some(format) = body.value("response_format")? else { return Ok(None) };
    let kind = format.get_str("type");
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
