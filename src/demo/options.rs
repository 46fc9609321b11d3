//! The options of a demo engine at start.

use std::time::Duration;

/// How `/generate` streams, which SGLang decides per server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Streaming {
    /// Each event repeats everything so far.
    #[default]
    Cumulative,
    /// Each event holds only the new tokens (`--incremental-streaming-output`).
    Incremental,
}

/// Whose wire format is spoken.
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
    /// No plugin: a request for exact entropies gets none.
    #[default]
    Absent,
    /// Entropies over the whole vocabulary.
    Full,
    /// Over the k largest logits, as with `TOKENTAP_ENTROPY_TOP_K`; null for a request for the whole vocabulary.
    TopK(usize),
    /// Answers only requests for the whole vocabulary, such as a probe.
    Mute,
    /// As `Full`, but each answer, except to a probe, is one number short.
    Short,
}

/// Options of an [`Engine`](super::Engine); the default is SGLang 0.5.23 as launched plainly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Cumulative or incremental streams. SGLang 0.5.6 has only the first.
    pub streaming: Streaming,
    /// Wire format.
    pub dialect: Dialect,
    /// Logprobs at temperature 1 whatever the request's, as with
    /// `SGLANG_RETURN_ORIGINAL_LOGPROB=1`.
    pub original_logprob: bool,
    /// Refuse out-of-range ids without naming the range, so that nothing on the
    /// wire tells the size of the vocabulary.
    pub hide_vocab: bool,
    /// Timings in `meta_info` and a `/metrics` page, as with `--enable-metrics` (0.5.23 only).
    pub metrics: bool,
    /// What requests without a `sampling_seed` are drawn from.
    pub seed: u64,
    /// Pause before each token; without it tokens come as fast as they can.
    pub token_delay: Option<Duration>,
    /// The only ids that may be generated; the others are masked exactly.
    pub allowed: Option<Vec<u32>>,
    /// Exact entropies on request (0.5.23 only).
    pub plugin: Plugin,
    /// Keep a log of every sequence for [`Engine::journal`](super::Engine::journal); it grows for as long as the engine lives.
    pub journal: bool,
    /// Prompt and reply together, tokens.
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
            journal: false,
            context_length: 4096,
        }
    }
}
