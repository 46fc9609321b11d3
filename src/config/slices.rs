//! Whole rows of logits: how much room they have, and what measures them.

use clap::Args;

use super::units::bytes;

/// What measures rows of logits, and in how much memory.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Rows of logits")]
pub struct SliceConfig {
    /// Threads that measure whole rows; 0 is half of the cores, at most 4
    #[arg(long, env = "TOKENTAP_ENTROPY_THREADS", value_name = "N", default_value = "0")]
    pub entropy_threads: usize,
    /// Memory for rows that are coming in or being measured; more wait
    #[arg(long, env = "TOKENTAP_SLICE_MEMORY", value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    pub slice_memory: u64,
    /// The largest slice of /v1/entropy
    #[arg(long, env = "TOKENTAP_MAX_SLICE_BYTES", value_name = "BYTES", default_value = "8GiB", value_parser = bytes)]
    pub max_slice_bytes: u64,
}

impl SliceConfig {
    /// How many threads measure rows.
    #[must_use]
    pub fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if self.entropy_threads > 0 { self.entropy_threads.min(1024) } else { (cores / 2).clamp(1, 4) }
    }
}
