//! What the information routes say.

use serde::Deserialize;

use super::{Capabilities, ChatFacts, Dialect, Preferred, Streaming};

/// `/model_info` or `/get_model_info`, and `/server_info` or `/get_server_info`; unknown members are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Facts {
    model_path: Option<String>,
    served_model_name: Option<String>,
    tokenizer_path: Option<String>,
    is_generation: Option<bool>,
    weight_version: Option<String>,
    preferred_sampling_params: Option<serde_json::Value>,
    version: Option<String>,
    context_length: Option<u64>,
    incremental_streaming_output: Option<bool>,
    stream_output: Option<bool>,
    speculative_algorithm: Option<String>,
    disaggregation_mode: Option<String>,
    skip_tokenizer_init: Option<bool>,
    tool_call_parser: Option<String>,
    reasoning_parser: Option<String>,
    sampling_defaults: Option<String>,
    return_input_ids: Option<bool>,
    return_output_ids: Option<bool>,
}

/// `/v1/models`.
#[derive(Debug, Deserialize)]
pub(super) struct Models {
    data: Vec<Model>,
}

#[derive(Debug, Deserialize)]
struct Model {
    id: String,
    max_model_len: Option<u64>,
}

/// Kinds of speculation whose engines refuse logprobs.
const REFUSING: [&str; 2] = ["UNO", "DFLASH"];

impl Facts {
    /// Takes over what /model_info says.
    pub(super) fn model(self, found: &mut Capabilities) {
        found.model_path = self.model_path;
        found.tokenizer_path = self.tokenizer_path;
        found.generates = self.is_generation;
        found.weight_version = self.weight_version;
        if let Some(name) = self.served_model_name {
            found.model = name.into();
        }
        found.preferred = preferred(self.preferred_sampling_params.as_ref());
    }

    /// Takes over what /server_info says.
    pub(super) fn server(self, found: &mut Capabilities) {
        found.streaming = Some(match (self.incremental_streaming_output, self.stream_output) {
            (Some(true), _) => Streaming::Incremental,
            (_, Some(true)) => Streaming::IncrementalIds,
            _ => Streaming::Cumulative,
        });
        found.context_length = found.context_length.or(self.context_length);
        found.refuses_logprobs = self.speculative_algorithm.as_deref().is_some_and(|kind| REFUSING.contains(&kind));
        found.speculative = self.speculative_algorithm;
        found.disaggregated = self.disaggregation_mode.is_some_and(|mode| mode != "null");
        found.skip_tokenizer_init = self.skip_tokenizer_init.unwrap_or(false);
        found.chat = ChatFacts {
            tool_call_parser: self.tool_call_parser,
            reasoning_parser: self.reasoning_parser,
            model_defaults: self.sampling_defaults.as_deref() != Some("openai"),
            input_ids: self.return_input_ids == Some(true),
            output_ids: self.return_output_ids == Some(true),
        };
        found.version = self.version;
    }
}

impl Models {
    /// Takes over what /v1/models says.
    pub(super) fn models(self, found: &mut Capabilities) {
        if let Some(model) = self.data.into_iter().next() {
            if &*found.model == "unknown" {
                found.model = model.id.into();
            }
            found.context_length = model.max_model_len.or(found.context_length);
        }
    }
}

/// The engine's sampling defaults: an object, or the text of one as the launch argument was.
fn preferred(value: Option<&serde_json::Value>) -> Preferred {
    let parsed = value.and_then(|value| match value {
        serde_json::Value::String(text) => serde_json::from_str(text).ok(),
        other => Some(other.clone()),
    });
    let number = |name: &str| parsed.as_ref().and_then(|object| object.get(name)).cloned();
    Preferred {
        temperature: number("temperature").and_then(|value| value.as_f64()),
        top_k: number("top_k").and_then(|value| value.as_i64()),
        custom_params: number("custom_params").is_some_and(|value| !value.is_null()),
    }
}

/// sglang-jax knows neither `/model_info` nor a weight version.
pub(super) fn dialect(has_model_info: bool, found: &Capabilities) -> Dialect {
    if has_model_info || found.weight_version.is_some() { Dialect::Sglang } else { Dialect::Jax }
}
