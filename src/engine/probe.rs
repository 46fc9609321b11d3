//! What the upstream is and can do, found by asking it: never by its version.

mod ask;
mod common;
mod facts;
mod identity;
mod logprobs;
mod plugin;
mod refusal;
mod stream;
mod survey;

use std::sync::Arc;

use ask::Probe;
pub use ask::ProbeError;
pub use facts::Facts;
pub use identity::{EngineIdentity, Identities, IdentityTracker, Observation};
pub use survey::{Pulse, Survey};

/// Whose wire dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// SGLang; 0.5.6 and 0.5.23 differ in single abilities, which have members of their own.
    Sglang,
    /// sglang-jax.
    Jax,
}

/// What the events of a stream hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// Everything so far, again and again.
    Cumulative,
    /// Only what is new.
    Incremental,
    /// New ids, but everything else so far (0.5.6 with `--stream-output`).
    IncrementalIds,
}

/// The plugin `tokentap-sglang`, which reports exact entropies from inside the engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Plugin {
    /// The engine has none, or has not been asked yet.
    #[default]
    Absent,
    /// It answered for the full vocabulary, and what it said lay within the certified intervals.
    Exact,
    /// It is there and cannot be used; the reason.
    Unusable(String),
}

/// Where the vocabulary size is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabSource {
    /// `--vocab-size`.
    Flag,
    /// The engine named its range.
    Engine,
    /// The model's config.json.
    ConfigFile,
}

/// The engine's own sampling defaults, which lie beneath a request's.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Preferred {
    /// `temperature`.
    pub temperature: Option<f64>,
    /// `top_k`.
    pub top_k: Option<i64>,
    /// There are `custom_params` among them.
    pub custom_params: bool,
}

/// How the engine's own chat endpoint works.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatFacts {
    /// `tool_call_parser`: how it reads tool calls.
    pub tool_call_parser: Option<String>,
    /// `reasoning_parser`: how it tells thinking apart.
    pub reasoning_parser: Option<String>,
    /// It samples with the defaults of the model's `generation_config.json`.
    pub model_defaults: bool,
    /// It gives the ids of prompts without being asked.
    pub input_ids: bool,
    /// It gives the sampled ids without being asked.
    pub output_ids: bool,
}

/// What is known of the upstream. `None` and `false` are "not known yet" until the probe has answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Capabilities {
    /// The served name; a label of metrics.
    pub model: Arc<str>,
    /// Its path.
    pub model_path: Option<String>,
    /// The tokenizer's path.
    pub tokenizer_path: Option<String>,
    /// Whose dialect.
    pub dialect: Option<Dialect>,
    /// Whether it generates; an embedding model does not.
    pub generates: Option<bool>,
    /// Tokens of prompt and reply together.
    pub context_length: Option<u64>,
    /// Rows of the output layer.
    pub vocab_size: Option<u32>,
    /// Where that is from.
    pub vocab_source: Option<VocabSource>,
    /// What its streams hold.
    pub streaming: Option<Streaming>,
    /// Offers top logprobs in flat base64 on replies that do not stream.
    pub flat: bool,
    /// Repeats the ids of a prompt when it is asked to.
    pub echoes_prompt: bool,
    /// Its plugin for exact entropies.
    pub plugin: Plugin,
    /// Names the tokens each token was sampled from, up to so many; `None`: it does not.
    pub sampling_mask: Option<u32>,
    /// The kind of speculative decoding.
    pub speculative: Option<String>,
    /// That kind refuses logprobs.
    pub refuses_logprobs: bool,
    /// Prefill and decode run apart.
    pub disaggregated: bool,
    /// How its own chat endpoint works.
    pub chat: ChatFacts,
    /// The scheduler overlaps with the device; sglang-jax streams logprobs only then.
    pub overlap_schedule: Option<bool>,
    /// Takes ids only.
    pub skip_tokenizer_init: bool,
    /// `weight_version`.
    pub weight_version: Option<String>,
    /// The questions that generate have been asked; what is not known now could not be told.
    pub probed: bool,
    /// A request with logprobs was answered with them; `None`: none was answered.
    pub gives_logprobs: Option<bool>,
    /// Logprobs are at temperature 1 whatever the request says; `false`: at the request's.
    pub original_logprobs: Option<bool>,
    /// Logprobs are rounded to bfloat16.
    pub bf16: bool,
    /// The sampling defaults that the engine puts under a request's; `None`: not known.
    pub preferred: Option<Preferred>,
    /// `version`, only to be shown.
    pub version: Option<String>,
    /// What could not be found out, and why.
    pub notes: Vec<String>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            model: "unknown".into(),
            model_path: None,
            tokenizer_path: None,
            dialect: None,
            generates: None,
            context_length: None,
            vocab_size: None,
            vocab_source: None,
            streaming: None,
            flat: false,
            echoes_prompt: false,
            plugin: Plugin::Absent,
            sampling_mask: None,
            speculative: None,
            refuses_logprobs: false,
            disaggregated: false,
            chat: ChatFacts::default(),
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
    /// What is known before anything was asked.
    #[must_use]
    pub fn unknown(vocab_size: Option<u32>) -> Self {
        Self { vocab_size, vocab_source: vocab_size.map(|_| VocabSource::Flag), ..Self::default() }
    }

    /// Whether its streams lose ids where events are merged, and only logprobs say all of them.
    #[must_use]
    pub fn loses_ids(&self) -> bool {
        self.streaming == Some(Streaming::IncrementalIds)
    }

    /// Whether its `output_ids` are the sampled tokens. Those of sglang-jax are not: it leaves out special ids and the stop token, and
    /// repeats ids whose text is not complete.
    #[must_use]
    pub fn lists_sampled_ids(&self) -> bool {
        self.dialect == Some(Dialect::Sglang) || self.skip_tokenizer_init
    }

    /// The largest k that a request may ask: the setting, or what disaggregation can hand over.
    #[must_use]
    pub fn max_top_logprobs(&self, setting: u32) -> u32 {
        if self.disaggregated { setting.min(128) } else { setting }
    }
}
