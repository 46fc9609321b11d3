//! What is logged, and how: the same for every command.

use clap::{Args, ValueEnum};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One readable line each.
    Text,
    /// One JSON object each.
    Json,
}

/// Settings of the log that people read.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Log")]
pub struct LogConfig {
    /// How log lines look
    #[arg(long, env = "TOKENTAP_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged, in the syntax of RUST_LOG
    #[arg(long, env = "TOKENTAP_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,
}
