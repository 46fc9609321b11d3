//! What is computed, and from what.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::units::{bytes, duration};

/// When entropies are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EntropyDefault {
    /// For every generation, unless it says `return_entropy: false`.
    On,
    /// For every generation, whatever a request says: sglang-router adds `return_entropy: false` to each.
    Always,
    /// Only for generations that say `return_entropy: true`.
    Request,
    /// Never, whatever a request says.
    Off,
}

/// What is asked of the engine, and what is made of it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Entropy")]
pub struct EntropyConfig {
    /// Compute entropy: on (unless return_entropy is false), always (behind a router that adds a false), request (only with return_entropy), off
    #[arg(long, env = "TOKENTAP_ENTROPY", value_name = "WHEN", default_value = "on")]
    pub entropy: EntropyDefault,
    /// k: how many top logprobs are asked for each token
    #[arg(long, env = "TOKENTAP_TOP_LOGPROBS", value_name = "K", default_value = "20", value_parser = clap::value_parser!(u32).range(1..))]
    pub top_logprobs: u32,
    /// Vocabulary size of the model (rows of its output layer); else asked from the engine
    #[arg(long, env = "TOKENTAP_VOCAB_SIZE", value_name = "V", value_parser = clap::value_parser!(u32).range(2..))]
    pub vocab_size: Option<u32>,
    /// The largest top_logprobs_num and entropy_options.top_k a client may ask
    #[arg(long, env = "TOKENTAP_MAX_TOP_LOGPROBS", value_name = "K", default_value = "1024")]
    pub max_top_logprobs: u32,
    /// Streams that repeat everything in each event: top-k up to this many tokens
    #[arg(long, env = "TOKENTAP_CUMULATIVE_STREAM_TOKENS", value_name = "N", default_value = "512")]
    pub cumulative_stream_tokens: u64,
    /// k is lowered until the expected reply fits this size
    #[arg(long, env = "TOKENTAP_REPLY_BUDGET", value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    pub reply_budget: u64,
    /// Force logprobs on sglang-jax too, where each new batch shape compiles the model anew
    #[arg(long, env = "TOKENTAP_JAX_FORCE", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub jax_force: bool,
    /// Answer 502 where an entropy is missing, instead of the reply without it
    #[arg(long, env = "TOKENTAP_STRICT", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub strict: bool,
    /// Let requests pass that are known to kill a server
    #[arg(long, env = "TOKENTAP_NO_GUARD", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub no_guard: bool,
    /// How long the entropies of an ended request can be read
    #[arg(long, env = "TOKENTAP_ENTROPY_TTL", value_name = "TIME", default_value = "300s", value_parser = duration)]
    pub entropy_ttl: Duration,
    /// How many requests the entropy store holds
    #[arg(long, env = "TOKENTAP_ENTROPY_ENTRIES", value_name = "N", default_value = "16384")]
    pub entropy_entries: usize,
    /// How many bytes the entropy store holds
    #[arg(long, env = "TOKENTAP_ENTROPY_BYTES", value_name = "BYTES", default_value = "16MiB", value_parser = bytes)]
    pub entropy_bytes: u64,
}
