//! Settings of the commands that show a running tokentap in the terminal: `tokentap top` and `tokentap show`.

use clap::Args;

use super::{ControlPortArgs, LogConfig};

/// Settings of `tokentap top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Print one table and exit, as if standard output were no terminal
    #[arg(long)]
    pub once: bool,
    /// The running tokentap.
    #[command(flatten)]
    pub port: ControlPortArgs,
    /// What is logged.
    #[command(flatten)]
    pub logging: LogConfig,
}

/// Settings of `tokentap show`.
#[derive(Debug, Clone, Args)]
pub struct ShowArgs {
    /// Session to show
    #[arg(value_name = "SESSION")]
    pub session: String,
    /// Turn in which the path ends; without it the last turn
    #[arg(long, value_name = "N")]
    pub leaf: Option<u32>,
    /// First token of the path that is shown
    #[arg(long, value_name = "TOKEN", default_value = "0")]
    pub from: usize,
    /// Number of tokens that are shown; without it all
    #[arg(long, value_name = "TOKENS")]
    pub limit: Option<usize>,
    /// The running tokentap.
    #[command(flatten)]
    pub port: ControlPortArgs,
    /// What is logged.
    #[command(flatten)]
    pub logging: LogConfig,
}
