// SPDX-License-Identifier: Apache-2.0
//! Entropy settings.

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::MAIN;

/// When entropies are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EntropyDefault {
    /// For every generation without `return_entropy: false`.
    On,
    /// For every generation, whatever the request has: sglang-router adds `return_entropy: false` to each; and on sglang-jax.
    Always,
    /// Only for requests with `return_entropy: true`.
    Request,
    /// Never, even if the request asks for it.
    Off,
}

/// `--strict`: what costs a reply instead of failing open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strict {
    /// Missing entropies: 502.
    pub entropy: bool,
    /// Parts of a request that are not supported: 400.
    pub parts: bool,
    /// A turn that the shared ledger did not confirm in time: 503.
    pub ledger: bool,
}

impl FromStr for Strict {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut strict = Self::default();
        for name in text.split(',').map(str::trim) {
            match name {
                // a boolean is how a TOML file or the Python client writes a flag
                "all" | "true" => strict = Self { entropy: true, parts: true, ledger: true },
                "none" | "false" if !text.contains(',') => {}
                "entropy" => strict.entropy = true,
                "parts" => strict.parts = true,
                "ledger" => strict.ledger = true,
                _ => return Err("it is none, all, or some of entropy,parts,ledger".to_owned()),
            }
        }
        Ok(strict)
    }
}

/// Entropy settings.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Entropy")]
pub struct EntropyConfig {
    /// When to compute entropy: on (unless return_entropy is false), always (behind sglang-router, or on sglang-jax), request (with return_entropy: true), off
    #[arg(long, env = "TOKENTAP_ENTROPY", help_heading = MAIN, value_name = "WHEN", default_value = "on")]
    pub entropy: EntropyDefault,
    /// Top logprobs requested for each token (k)
    #[arg(long, env = "TOKENTAP_TOP_LOGPROBS", help_heading = MAIN, value_name = "K", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub top_logprobs: u32,
    /// Vocabulary size of the model (rows of its output layer); without it the engine is asked
    #[arg(long, env = "TOKENTAP_VOCAB_SIZE", help_heading = MAIN, value_name = "V", value_parser = clap::value_parser!(u32).range(2..))]
    pub vocab_size: Option<u32>,
    /// The largest top_logprobs_num and entropy_options.top_k that a client may ask for; 128 under prefill/decode disaggregation.
    #[arg(skip = 1024_u32)]
    pub max_top_logprobs: u32,
    /// Streams that repeat all tokens in each event get top-k logprobs up to this many tokens.
    #[arg(skip = 512_u64)]
    pub cumulative_stream_tokens: u64,
    /// k is lowered until the expected reply fits this many bytes.
    #[arg(skip = 64_u64 << 20)]
    pub reply_budget: u64,
    /// Refuse instead of failing open: entropy (502 without entropies), parts (400 for unsupported parts of a request), ledger (503 if the shared ledger did not confirm the turn in time), any of them, all (true) or none (false)
    #[arg(long, env = "TOKENTAP_STRICT", value_name = "LIST", default_value = "none", num_args = 0..=1, default_missing_value = "all")]
    pub strict: Strict,
    /// Forward requests that are known to crash a server
    #[arg(long, env = "TOKENTAP_NO_GUARD", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub no_guard: bool,
    /// How long the entropies of an ended request can be read.
    #[arg(skip = Duration::from_secs(300))]
    pub entropy_ttl: Duration,
    /// The number of requests in the entropy store.
    #[arg(skip = 16384_usize)]
    pub entropy_entries: usize,
    /// The bytes of the entropy store.
    #[arg(skip = 16_u64 << 20)]
    pub entropy_bytes: u64,
}
