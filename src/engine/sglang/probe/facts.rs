// SPDX-License-Identifier: Apache-2.0
//! Parses the answers of the information routes.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::engine::capabilities::{Capabilities, ChatFacts, ImageFacts, Preferred, ProductTraits, StreamMode};
use crate::engine::sglang::resume::STATELESS;
use crate::engine::sglang::score::changes_logprobs;
use crate::engine::{sgl_jax, sglang};

/// The JSON object of an information route. A member that is absent, or has another type than in SGLang, is unknown: other products use the
/// same paths.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct InfoObject {
    members: serde_json::Map<String, Value>,
}

/// `/v1/models`.
#[derive(Debug, Deserialize)]
pub(super) struct Models {
    data: Vec<ServedModel>,
}

#[derive(Debug, Deserialize)]
struct ServedModel {
    id: String,
    max_model_len: Option<u64>,
}

/// Kinds of speculative decoding that refuse logprobs.
const REFUSING: [&str; 2] = ["UNO", "DFLASH"];

impl InfoObject {
    fn text(&self, name: &str) -> Option<String> {
        self.members.get(name)?.as_str().map(str::to_owned)
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.members.get(name)?.as_bool()
    }

    /// Applies the answer of `/model_info` or `/get_model_info`.
    pub(super) fn model(self, found: &mut Capabilities) {
        found.model_path = self.text("model_path");
        found.tokenizer_path = self.text("tokenizer_path");
        found.generates = self.flag("is_generation");
        found.weight_version = self.text("weight_version");
        if let Some(name) = self.text("served_model_name") {
            found.model = name.into();
        }
        found.preferred = self.members.get("preferred_sampling_params").and_then(preferred);
    }

    /// How pictures are processed. An image processor that is not fast is PIL's.
    fn images(&self) -> ImageFacts {
        let none = Map::new();
        let overrides = match self.members.get("mm_process_config") {
            // the engine has the setting
            Some(Value::Null) => Some(&none),
            Some(Value::Object(config)) => config.get("image").map_or(Some(&none), Value::as_object),
            _ => None,
        };
        let is_pil = self.flag("disable_fast_image_processor") == Some(true);
        ImageFacts {
            overrides: overrides.map(|members| json!(members).to_string()),
            backend: if is_pil { Some("pil".to_owned()) } else { self.text("image_processor_backend") },
        }
    }

    /// Applies the answer of `/server_info` or `/get_server_info`.
    pub(super) fn server(self, found: &mut Capabilities) {
        if found.product.is_none() && sgl_jax::has_settings(&self.members) {
            found.product = Some(&sgl_jax::TRAITS);
        }
        let incremental = self.flag("incremental_streaming_output");
        let ids = self.flag("stream_output");
        found.streaming = match (incremental, ids) {
            (Some(true), _) => Some(StreamMode::Incremental),
            (_, Some(true)) => Some(StreamMode::IncrementalIds),
            (Some(false), _) | (_, Some(false)) => Some(StreamMode::Cumulative),
            (None, None) => found.streaming,
        };
        found.context_length =
            found.context_length.or_else(|| self.members.get("context_length").and_then(Value::as_u64));
        found.truncates = self.flag("allow_auto_truncate") == Some(true);
        found.speculative = self.text("speculative_algorithm");
        found.refuses_logprobs = found.speculative.as_deref().is_some_and(|kind| REFUSING.contains(&kind));
        found.disaggregated = self.text("disaggregation_mode").is_some_and(|mode| mode != "null");
        let is_multimodal = self.flag("multimodal") == Some(true);
        let is_disabled = self.flag("disable_overlap_schedule");
        found.overlap_schedule = sgl_jax::overlap_schedule(is_disabled, is_multimodal, found.disaggregated);
        found.skip_tokenizer_init = self.flag("skip_tokenizer_init").unwrap_or(false);
        found.chat = ChatFacts {
            tool_call_parser: self.text("tool_call_parser"),
            reasoning_parser: self.text("reasoning_parser"),
            model_defaults: self.text("sampling_defaults").as_deref() != Some("openai"),
            // an engine has both settings if it can report ids on request
            reports_ids: ["return_input_ids", "return_output_ids"].iter().all(|name| self.flag(name).is_some()),
            input_ids: self.flag("return_input_ids") == Some(true),
            output_ids: self.flag("return_output_ids") == Some(true),
        };
        found.images = self.images();
        found.routed_experts = self.flag("enable_return_routed_experts");
        found.hierarchical_cache = self.flag("enable_hierarchical_cache") == Some(true);
        found.version = self.text("version");
    }
}

impl Models {
    /// Applies the answer of /v1/models.
    pub(super) fn models(self, found: &mut Capabilities) {
        if let Some(model) = self.data.into_iter().next() {
            if &*found.model == "unknown" {
                found.model = model.id.into();
            }
            found.context_length = model.max_model_len.or(found.context_length);
        }
    }
}

/// Parses the engine's sampling defaults: an object, its JSON text from a launch argument, or null for none. `None` for any other value.
fn preferred(value: &Value) -> Option<Preferred> {
    let parsed = match value {
        Value::Null => return Some(Preferred::default()),
        Value::String(text) => serde_json::from_str::<Value>(text).ok()?,
        other => other.clone(),
    };
    let Value::Object(members) = parsed else { return None };
    Some(Preferred {
        temperature: members.get("temperature").and_then(Value::as_f64),
        top_k: members.get("top_k").and_then(Value::as_i64),
        custom_params: members.get("custom_params").is_some_and(|value| !value.is_null()),
        count_tokens: members.iter().any(|(name, value)| !value.is_null() && !STATELESS.contains(&&**name)),
        changing: Arc::new(members.into_iter().filter(|(name, value)| changes_logprobs(name, value)).collect()),
    })
}

/// Detects the product from the model information: SGLang reports a weight version; sglang-jax has only the older route and
/// reports none.
pub(super) fn product(has_model_info: bool, found: &Capabilities) -> Option<&'static ProductTraits> {
    if found.weight_version.is_some() {
        return Some(&sglang::TRAITS);
    }
    let names_model = found.tokenizer_path.is_some() && found.generates.is_some();
    match (has_model_info, names_model) {
        (true, true) => Some(&sglang::TRAITS),
        (false, true) => Some(&sgl_jax::TRAITS),
        (_, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(answer: &Value) -> Capabilities {
        let mut found = Capabilities::unknown(None);
        serde_json::from_value::<InfoObject>(answer.clone()).unwrap().server(&mut found);
        found
    }

    fn model(answer: &Value, has_model_info: bool) -> Capabilities {
        let mut found = Capabilities::unknown(None);
        serde_json::from_value::<InfoObject>(answer.clone()).unwrap().model(&mut found);
        found.product = product(has_model_info, &found);
        found
    }

    #[test]
    fn streaming_mode_is_unknown_where_no_member_names_it() {
        let streaming = |answer: &Value| server(answer).streaming;
        assert_eq!(streaming(&json!({"router_manager": true, "workers_count": 2})), None);
        assert_eq!(streaming(&json!({})), None);
        assert_eq!(streaming(&json!({"incremental_streaming_output": "yes", "stream_output": 1})), None);
        assert_eq!(streaming(&json!({"incremental_streaming_output": false})), Some(StreamMode::Cumulative));
        assert_eq!(streaming(&json!({"stream_output": false})), Some(StreamMode::Cumulative));
        assert_eq!(streaming(&json!({"stream_output": true})), Some(StreamMode::IncrementalIds));
        assert_eq!(
            streaming(&json!({"incremental_streaming_output": true, "stream_output": false})),
            Some(StreamMode::Incremental)
        );
    }

    #[test]
    fn hierarchical_cache_is_known_where_the_engine_names_it() {
        assert!(server(&json!({"enable_hierarchical_cache": true})).hierarchical_cache);
        assert!(!server(&json!({"enable_hierarchical_cache": false})).hierarchical_cache);
        assert!(!server(&json!({})).hierarchical_cache);
    }

    #[test]
    fn settings_of_pictures_are_those_of_the_command_line() {
        let images = |answer: &Value| {
            let ImageFacts { overrides, backend } = server(answer).images;
            (overrides, backend)
        };
        let auto = Some("auto".to_owned());
        let config = json!({"image": {"max_pixels": 5}, "video": {"fps": 1}});
        let set = json!({"mm_process_config": config, "image_processor_backend": "auto", "disable_fast_image_processor": false});
        assert_eq!(images(&set), (Some(r#"{"max_pixels":5}"#.to_owned()), auto.clone()));
        let none = || Some("{}".to_owned());
        for config in [json!({}), json!(null), json!({"video": {"fps": 1}})] {
            let answer = json!({"mm_process_config": config, "image_processor_backend": "auto"});
            assert_eq!(images(&answer), (none(), auto.clone()));
        }
        let slow = json!({"mm_process_config": {"image": {}}, "image_processor_backend": "auto", "disable_fast_image_processor": true});
        assert_eq!(images(&slow), (none(), Some("pil".to_owned())));
        for unknown in [json!({}), json!({"mm_process_config": 1}), json!({"mm_process_config": {"image": 1}})] {
            assert_eq!(images(&unknown), (None, None));
        }
    }

    #[test]
    fn one_member_of_another_type_leaves_the_others() {
        let found = server(&json!({"version": 7, "context_length": "long", "stream_output": true}));
        assert_eq!((found.version, found.context_length), (None, None));
        assert_eq!(found.streaming, Some(StreamMode::IncrementalIds));
    }

    #[test]
    fn chat_endpoint_reports_ids_where_the_engine_has_the_settings() {
        let reports_ids = |answer: &Value| server(answer).chat.reports_ids;
        assert!(reports_ids(&json!({"return_input_ids": false, "return_output_ids": true})));
        assert!(!reports_ids(&json!({"return_input_ids": true})));
        assert!(!reports_ids(&json!({"return_input_ids": null, "return_output_ids": null})));
    }

    #[test]
    fn product_is_unknown_where_another_product_answers() {
        let jax =
            json!({"model_path": "m", "tokenizer_path": "m", "is_generation": true, "preferred_sampling_params": null});
        assert_eq!(model(&jax, false).product, Some(&sgl_jax::TRAITS));
        assert_eq!(model(&jax, true).product, Some(&sglang::TRAITS));
        let sglang = json!({"model_path": "m", "weight_version": "default"});
        assert_eq!(model(&sglang, false).product, Some(&sglang::TRAITS));
        for other in [json!({}), json!({"object": "list", "data": []}), json!({"model_path": "m"})] {
            assert_eq!(model(&other, true).product, None, "{other}");
            assert_eq!(model(&other, false).product, None, "{other}");
        }
        let mut found = Capabilities::unknown(None);
        let settings = json!({"precompile_token_paddings": null, "stream_output": false});
        serde_json::from_value::<InfoObject>(settings).unwrap().server(&mut found);
        assert_eq!(found.product, Some(&sgl_jax::TRAITS), "a setting that only sglang-jax has");
    }

    #[test]
    fn sampling_defaults_are_unknown_where_the_member_is_absent() {
        let preferred = |answer: &Value| model(answer, true).preferred;
        assert_eq!(preferred(&json!({})), None);
        assert_eq!(preferred(&json!({"preferred_sampling_params": "not JSON"})), None);
        assert_eq!(preferred(&json!({"preferred_sampling_params": null})), Some(Preferred::default()));
        let half = Some(Preferred { temperature: Some(0.5), ..Preferred::default() });
        assert_eq!(preferred(&json!({"preferred_sampling_params": {"temperature": 0.5, "top_k": null}})), half);
        let changing = json!({"repetition_penalty": 1.1, "presence_penalty": 0, "stop": ["."], "regex": null});
        let found = preferred(&json!({"preferred_sampling_params": changing})).unwrap();
        assert_eq!(Value::Object((*found.changing).clone()), json!({"repetition_penalty": 1.1}));
        assert_eq!(preferred(&json!({"preferred_sampling_params": "{\"temperature\":0.5}"})), half);
    }
}
