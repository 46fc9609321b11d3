//! Settings of `tokentap entropy`.

use std::path::PathBuf;

use clap::Args;

use super::{LogConfig, SliceConfig};

/// Settings of `tokentap entropy`.
#[derive(Debug, Clone, Args)]
pub struct EntropyArgs {
    /// Safetensors file with logits (rows x vocab, F32, BF16 or F16), optionally temperature and token_ids; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The backend.
    #[command(flatten)]
    pub slices: SliceConfig,
    /// What is logged.
    #[command(flatten)]
    pub logging: LogConfig,
}
