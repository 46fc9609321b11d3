// SPDX-License-Identifier: Apache-2.0
//! What an engine can do, as its probe found it. Capabilities are never derived from a version.

pub(crate) mod common;

use std::fmt;
use std::sync::Arc;

use crate::columns::ExpertShape;

/// The served model before the engine has answered, as a label in metrics.
pub const UNKNOWN_MODEL: &str = "unknown";

/// A product that serves as an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// SGLang. The differences between 0.5.6, 0.5.12 and 0.5.23 are capabilities.
    Sglang,
    /// sglang-jax. It has SGLang's format; [`sgl_jax`](crate::engine::sgl_jax) has what differs.
    SglJax,
}

/// What all versions of a product have in common, with any settings. The probe finds out the rest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ProductTraits {
    /// The product.
    pub product: Product,
    /// Its name.
    pub name: &'static str,
    /// It ignores unknown members of a request, so that the probe can ask for features by trying them.
    pub ignores_unknown_members: bool,
    /// Its lists of ids are the sampled tokens.
    pub lists_sampled_ids: bool,
    /// It omits sampled tokens from every list of a reply, so that no chat can be continued token by token.
    pub omits_sampled_ids: bool,
    /// Logprobs make it compile the model for each batch shape, so that forcing them is expensive.
    pub compiles_for_logprobs: bool,
    /// It decodes the text of each top-k entry unless the request says not to.
    pub decodes_top_logprobs: bool,
    /// It sends a placeholder for the prompt's logprobs only if the request has a k.
    pub placeholder_needs_k: bool,
    /// Its streams can have logprobs only with the overlap schedule; without it they break off.
    pub streams_need_overlap: bool,
    /// Some version or setting streams incrementally.
    pub can_stream_increments: bool,
    /// Some version loads the plugin for exact entropies.
    pub has_plugins: bool,
}

/// The traits of a product that is not known yet.
static UNKNOWN: ProductTraits = ProductTraits {
    product: Product::Sglang,
    name: "the engine",
    ignores_unknown_members: false,
    lists_sampled_ids: false,
    omits_sampled_ids: false,
    compiles_for_logprobs: false,
    decodes_top_logprobs: false,
    placeholder_needs_k: false,
    streams_need_overlap: false,
    can_stream_increments: true,
    has_plugins: true,
};

impl std::fmt::Debug for ProductTraits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // the others follow from it
        self.product.fmt(f)
    }
}

/// Whether streams can have logprobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamLogprobs {
    /// They can.
    Supported,
    /// A stream with logprobs breaks off.
    Broken,
    /// The engine is not known.
    Unknown,
}

/// What the events of a stream hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamMode {
    /// All tokens so far, in each event.
    Cumulative,
    /// Only the new tokens.
    Incremental,
    /// Only the new ids, but everything else for all tokens so far (0.5.6 with `--stream-output`).
    IncrementalIds,
}

impl fmt::Display for StreamMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cumulative => "cumulative",
            Self::Incremental => "incremental",
            Self::IncrementalIds => "incremental ids",
        })
    }
}

/// The plugin `tokentap-sglang`, which reports exact entropies from inside the engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PluginState {
    /// The engine has none, or was not probed yet.
    #[default]
    Absent,
    /// It answered for the full vocabulary, and its values were within the certified intervals.
    Exact,
    /// The engine has it, but it cannot be used; the reason.
    Unusable(String),
}

impl fmt::Display for PluginState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("absent"),
            Self::Exact => f.write_str("exact"),
            Self::Unusable(reason) => write!(f, "unusable: {reason}"),
        }
    }
}

/// The source of the vocabulary size, the most reliable first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VocabSource {
    /// `--vocab-size`.
    Flag,
    /// The engine reported its range.
    Engine,
    /// The model's config.json.
    ConfigFile,
}

/// The engine's sampling defaults, for parameters that a request does not set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Preferred {
    /// `temperature`.
    pub temperature: Option<f64>,
    /// `top_k`.
    pub top_k: Option<i64>,
    /// They include `custom_params`.
    pub custom_params: bool,
    /// They include other parameters than those that act on each token alone.
    pub count_tokens: bool,
    /// Those that change the distribution of recorded logprobs.
    pub changing: Arc<serde_json::Map<String, serde_json::Value>>,
}

/// The behaviour of the engine's own chat endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatFacts {
    /// `tool_call_parser`, which parses tool calls.
    pub tool_call_parser: Option<String>,
    /// `reasoning_parser`, which separates reasoning from the answer.
    pub reasoning_parser: Option<String>,
    /// It uses the sampling defaults of the model's `generation_config.json`.
    pub model_defaults: bool,
    /// A request may ask it for the ids of the prompt and the sampled ids.
    pub reports_ids: bool,
    /// It returns the ids of prompts without a request to do so.
    pub input_ids: bool,
    /// It returns the sampled ids without a request to do so.
    pub output_ids: bool,
}

/// How the engine processes pictures, beyond the files of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFacts {
    /// What its command line sets for each picture, such as the maximum number of pixels: a JSON object, empty if it sets nothing; `None` if
    /// that is not known.
    pub overrides: Option<String>,
    /// The implementation of the image processor: `auto`, `pil` or another name.
    pub backend: Option<String>,
}

/// The known capabilities of the upstream. `None` and `false` mean "not known yet" until the probe has finished.
#[derive(Debug, Clone, PartialEq)]
pub struct Capabilities {
    /// The served model name, a label in metrics.
    pub model: Arc<str>,
    /// The model's path.
    pub model_path: Option<String>,
    /// The tokenizer's path.
    pub tokenizer_path: Option<String>,
    /// The product.
    pub product: Option<&'static ProductTraits>,
    /// Whether it generates. An embedding model does not.
    pub generates: Option<bool>,
    /// The context length, in tokens of prompt and reply together.
    pub context_length: Option<u64>,
    /// It cuts a prompt that is longer than the context, in place of refusing it.
    pub truncates: bool,
    /// Rows of the output layer.
    pub vocab_size: Option<u32>,
    /// The source of `vocab_size`.
    pub vocab_source: Option<VocabSource>,
    /// The mode of its streams.
    pub streaming: Option<StreamMode>,
    /// It supports top logprobs in flat base64 in replies that do not stream.
    pub flat: bool,
    /// It echoes the ids of a prompt on request.
    pub echoes_prompt: bool,
    /// Its plugin for exact entropies.
    pub plugin: PluginState,
    /// The largest support that its sampling mask reports, in tokens; `None` without sampling masks.
    pub sampling_mask: Option<u32>,
    /// It returns the experts that processed each token, if the request asks for them; `None` if no route reports it.
    pub routed_experts: Option<bool>,
    /// It has a hierarchical cache (HiCache), which moves tokens between places of the device's cache.
    pub hierarchical_cache: bool,
    /// Members of a request that its engines know and the router before them drops.
    pub dropped: Vec<&'static str>,
    /// The routing of the model; `None` for a model without experts, or if it is not known.
    pub experts: Option<ExpertShape>,
    /// The kind of speculative decoding.
    pub speculative: Option<String>,
    /// That kind of speculative decoding refuses logprobs.
    pub refuses_logprobs: bool,
    /// Prefill and decode are disaggregated.
    pub disaggregated: bool,
    /// How the engine's chat endpoint behaves.
    pub chat: ChatFacts,
    /// How it processes pictures.
    pub images: ImageFacts,
    /// The overlap scheduler is on. sglang-jax streams logprobs only with it.
    pub overlap_schedule: Option<bool>,
    /// It accepts ids only, not text.
    pub skip_tokenizer_init: bool,
    /// `weight_version`.
    pub weight_version: Option<String>,
    /// The generating part of the probe has run. What is unknown after it could not be determined.
    pub probed: bool,
    /// Whether a request for logprobs returned them; `None` if none was answered.
    pub gives_logprobs: Option<bool>,
    /// Logprobs are at temperature 1 for any request; `false`: at the request's temperature.
    pub original_logprobs: Option<bool>,
    /// Logprobs are rounded to bfloat16.
    pub bf16: bool,
    /// The engine's sampling defaults; `None` if unknown.
    pub preferred: Option<Preferred>,
    /// `version`, for display only.
    pub version: Option<String>,
    /// What the probe could not determine, and why.
    pub notes: Vec<String>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            model: UNKNOWN_MODEL.into(),
            model_path: None,
            tokenizer_path: None,
            product: None,
            generates: None,
            context_length: None,
            truncates: false,
            vocab_size: None,
            vocab_source: None,
            streaming: None,
            flat: false,
            echoes_prompt: false,
            plugin: PluginState::Absent,
            sampling_mask: None,
            routed_experts: None,
            hierarchical_cache: false,
            dropped: Vec::new(),
            experts: None,
            speculative: None,
            refuses_logprobs: false,
            disaggregated: false,
            chat: ChatFacts::default(),
            images: ImageFacts::default(),
            overlap_schedule: None,
            skip_tokenizer_init: false,
            weight_version: None,
            probed: false,
            gives_logprobs: None,
            original_logprobs: None,
            bf16: false,
            preferred: None,
            version: None,
            notes: Vec::new(),
        }
    }
}

impl Capabilities {
    /// The capabilities before the first probe.
    #[must_use]
    pub fn unknown(vocab_size: Option<u32>) -> Self {
        Self { vocab_size, vocab_source: vocab_size.map(|_| VocabSource::Flag), ..Self::default() }
    }

    /// Tokens at the end of the context that a prompt and its reply must leave free. The engine's scheduler reserves six. Speculative
    /// decoding reserves a number that the engine does not report; 128 is more than usual settings need.
    #[must_use]
    pub fn reserved_tokens(&self) -> u64 {
        if self.speculative.is_some() { 128 } else { 6 }
    }

    /// The length of the context in tokens, if it refuses longer prompts. `None` if it cuts them, or if the length is not known.
    #[must_use]
    pub fn longest_prompt(&self) -> Option<u64> {
        self.context_length.filter(|_| !self.truncates)
    }

    /// Whether its streams lose ids when events are merged, so that only logprobs list all of them.
    #[must_use]
    pub fn loses_ids(&self) -> bool {
        self.streaming == Some(StreamMode::IncrementalIds)
    }

    /// What all versions of the product have in common. Until the product is known, it is SGLang's format, and no feature is relied on.
    #[must_use]
    pub fn traits(&self) -> &'static ProductTraits {
        self.product.unwrap_or(&UNKNOWN)
    }

    /// Whether its lists of ids are the sampled tokens.
    #[must_use]
    pub fn lists_sampled_ids(&self) -> bool {
        self.skip_tokenizer_init || self.traits().lists_sampled_ids
    }

    /// Whether its streams can have logprobs.
    #[must_use]
    pub fn stream_logprobs(&self) -> StreamLogprobs {
        match self.product {
            None => StreamLogprobs::Unknown,
            Some(product) if product.streams_need_overlap && self.overlap_schedule != Some(true) => {
                StreamLogprobs::Broken
            }
            Some(_) => StreamLogprobs::Supported,
        }
    }

    /// The largest k of a request: the setting, limited by what disaggregation can transfer.
    #[must_use]
    pub fn max_top_logprobs(&self, setting: u32) -> u32 {
        if self.disaggregated { setting.min(128) } else { setting }
    }
}
