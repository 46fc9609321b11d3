//! Settings of `tokentap entropy`.

use std::path::PathBuf;

use clap::Args;

use super::{LogConfig, SliceConfig};

/// Which file of logits is measured.
#[derive(Debug, Clone, Args)]
pub struct EntropyArgs {
    /// Safetensors with logits (rows x vocab, F32, BF16 or F16), and if wanted temperature and token_ids; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What measures the rows.
    #[command(flatten)]
    pub slices: SliceConfig,
    /// What is logged.
    #[command(flatten)]
    pub logging: LogConfig,
}
