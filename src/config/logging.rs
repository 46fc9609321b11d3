//! Log settings, the same for every command.

use clap::{Args, ValueEnum};

use super::MAIN;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Log settings.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Log")]
pub struct LogConfig {
    /// Format of log lines
    #[arg(long, env = "TOKENTAP_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log filter, in the syntax of RUST_LOG
    #[arg(long, env = "TOKENTAP_LOG", help_heading = MAIN, value_name = "FILTER", default_value = "info")]
    pub log: String,
}
