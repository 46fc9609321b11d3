// SPDX-License-Identifier: Apache-2.0
//! Settings of the commands that do not serve. Those of `tokentap export` are in `export.rs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{Config, ControlToken, LedgerConfig, LogConfig, Secret, Setting, SliceConfig, duration};

/// The settings of `tokentap check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// How long to wait for a server that does not answer yet
    #[arg(long, env = "TOKENTAP_WAIT", value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub wait: Duration,
    /// Print one JSON object with the lines of the report
    #[arg(long)]
    pub json: bool,
    /// The settings of serve.
    #[command(flatten)]
    pub config: Config,
}

/// The settings of `tokentap config`, which are those of `tokentap serve`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The settings.
    #[command(flatten)]
    pub config: Config,
    /// Each of them with its origin, in the order of `--help`.
    #[arg(skip)]
    pub effective: Vec<Setting>,
}

/// The argument of `tokentap completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// The argument of `tokentap man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Existing folder for the pages, such as ~/.local/share/man/man1
    pub folder: PathBuf,
}

/// Settings of `tokentap import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Folder of the log of a tokentap that does not run; it is not changed
    #[arg(long, env = "TOKENTAP_DATA_DIR", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// How long the sessions stay in the ledger unused, as of the tokentaps that share it
    #[arg(long, env = "TOKENTAP_SESSION_TTL", value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub session_ttl: Duration,
    /// The ledger.
    #[command(flatten)]
    pub ledger: LedgerConfig,
    /// What is logged.
    #[command(flatten)]
    pub logging: LogConfig,
}

impl ImportArgs {
    /// Checks that the ledger is given, and its flags fit together.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.ledger.ledger.is_none() {
            return Err("--ledger <URL> must be given".to_owned());
        }
        self.ledger.check()
    }
}

/// Settings of `tokentap archive`.
#[derive(Debug, Args)]
pub struct ArchiveArgs {
    /// What to do
    #[arg(value_name = "OPERATION")]
    pub operation: ArchiveOperation,
    /// URI of the archive, as in --archive of serve
    #[arg(value_name = "URI")]
    pub uri: String,
    /// What is logged.
    #[command(flatten)]
    pub logging: LogConfig,
}

/// An operation on an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArchiveOperation {
    /// List the manifests: their ranges, rows, bytes and gaps
    Ls,
    /// Read every manifest and data file; fails if one is missing or wrong, or a row exists twice
    Verify,
}

/// The address, the CA and the token of a control port.
#[derive(Debug, Clone, Args)]
pub struct ControlPortArgs {
    /// Control port of the running tokentap
    #[arg(
        long,
        env = "TOKENTAP_CONTROL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:30002"
    )]
    pub control: String,
    /// PEM file with the CA of a control port with TLS: --control https://HOST:PORT
    #[arg(long, env = "TOKENTAP_CONTROL_CA", value_name = "FILE")]
    pub control_ca: Option<PathBuf>,
    /// Bearer token of the control port, or @FILE; none if the port is open
    #[arg(long, env = "TOKENTAP_CONTROL_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = ControlToken::parse)]
    pub control_token: Option<ControlToken>,
}

impl ControlPortArgs {
    /// TLS and a CA come together, or not at all: no setting may be ignored in silence.
    pub(super) fn check(&self) -> Result<(), String> {
        match (self.control.starts_with("https://"), &self.control_ca) {
            (false, None) | (true, Some(_)) => Ok(()),
            (true, None) => {
                Err(format!("--control {} needs the CA of its certificate: --control-ca FILE", self.control))
            }
            (false, Some(_)) => {
                Err(format!("--control-ca needs --control https://HOST:PORT, which {} is not", self.control))
            }
        }
    }
}

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

/// Settings of `tokentap score`.
#[derive(Debug, Clone, Args)]
pub struct ScoreArgs {
    /// Teacher: its name in --teacher of the running tokentap, self for the upstream, or the URL of an engine on a host of --teacher-host
    // without an environment variable: TOKENTAP_TEACHER has the teachers of serve
    #[arg(long, value_name = "NAME|URL")]
    pub teacher: String,
    /// Key of the engine at that URL, or @FILE
    #[arg(long, env = "TOKENTAP_TEACHER_KEY", value_name = "KEY", hide_env_values = true, value_parser = Secret::parse)]
    pub teacher_key: Option<Secret>,
    /// Sessions to score; without it all
    #[arg(long, env = "TOKENTAP_SESSION", value_name = "ID", value_delimiter = ',')]
    pub session: Vec<String>,
    /// Version of the sessions; without it the last frozen one, else the open one
    #[arg(long, value_name = "N")]
    pub version: Option<u32>,
    /// Classes of turns to score, as those that an export trains
    #[arg(long, env = "TOKENTAP_CLASSES", value_name = "LIST", value_delimiter = ',')]
    pub classes: Vec<String>,
    /// Also keep this number of the teacher's likeliest tokens at each sampled one
    #[arg(long, value_name = "K", default_value = "0")]
    pub top_logprobs: u32,
    /// Also keep the teacher's logprobs of the student's likeliest tokens, which --columns top_logprobs of the running tokentap records
    #[arg(long)]
    pub logprobs_of_top_ids: bool,
    /// Also score turns that have scores, for example after an update of weights
    #[arg(long)]
    pub again: bool,
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
