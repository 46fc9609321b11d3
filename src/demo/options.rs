// SPDX-License-Identifier: Apache-2.0
//! The start options of a demo engine.

use std::time::Duration;

/// The content of the events of a `/generate` stream. In SGLang it is a setting of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Streaming {
    /// Each event repeats all previous tokens.
    #[default]
    Cumulative,
    /// Each event has only the new tokens (`--incremental-streaming-output`).
    Incremental,
}

/// The SGLang version whose wire format the engine uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// SGLang 0.5.23.
    #[default]
    Sglang0523,
    /// SGLang 0.5.6.post2: no flat logprobs, no spans of weight versions, other errors.
    Sglang056,
}

/// How the engine emulates the plugin `tokentap-sglang`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Plugin {
    /// No plugin: the engine returns no exact entropies.
    #[default]
    Absent,
    /// Entropies over the whole vocabulary.
    Full,
    /// Entropies over the k largest logits, as with `TOKENTAP_ENTROPY_TOP_K`; null if the request asks for the whole vocabulary.
    TopK(usize),
    /// Returns entropies only if the request asks for the whole vocabulary, as a probe does.
    Mute,
    /// As `Full`, but the list of entropies lacks the last one, unless the request asks for the whole vocabulary, as a probe does.
    Short,
}

/// Options of an [`Engine`](super::Engine). The default emulates SGLang 0.5.23 without launch flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Cumulative or incremental streams. SGLang 0.5.6 has only cumulative ones.
    pub streaming: Streaming,
    /// The wire format.
    pub dialect: Dialect,
    /// Return logprobs at temperature 1, independent of the request's temperature, as with `SGLANG_RETURN_ORIGINAL_LOGPROB=1`.
    pub original_logprob: bool,
    /// Do not name the valid range in errors about out-of-range ids, so that no reply reveals the vocabulary size.
    pub hide_vocab: bool,
    /// Timings in `meta_info` and the `/metrics` route, as with `--enable-metrics` (0.5.23 only).
    pub metrics: bool,
    /// The seed for requests without a `sampling_seed`.
    pub seed: u64,
    /// The delay before each token; `None` for no delay.
    pub token_delay: Option<Duration>,
    /// The ids that may be generated; all others are masked. `None` allows all ids.
    pub allowed: Option<Vec<u32>>,
    /// The emulated plugin, which returns exact entropies on request (0.5.23 only).
    pub plugin: Plugin,
    /// Return the experts that processed each token on request, as with `--enable-return-routed-experts` (0.5.23 only).
    pub routed_experts: bool,
    /// Return those of all tokens also for a later start, as SGLang did before it had `routed_experts_start_len`.
    pub ignores_experts_start: bool,
    /// Record every sequence for [`Engine::journal`](super::Engine::journal). The memory of the journal is not bounded.
    pub journal: bool,
    /// The maximum length of prompt and reply together, in tokens.
    pub context_length: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            streaming: Streaming::default(),
            dialect: Dialect::default(),
            original_logprob: false,
            hide_vocab: false,
            metrics: false,
            seed: 0,
            token_delay: None,
            allowed: None,
            plugin: Plugin::Absent,
            routed_experts: false,
            ignores_experts_start: false,
            journal: false,
            context_length: 4096,
        }
    }
}
