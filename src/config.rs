// SPDX-License-Identifier: Apache-2.0
//! Every setting once: flag, environment variable, default and one line of help.
//!
//! Order of precedence: flag, environment (`TOKENTAP_` and the flag's name), the TOML file of `--config`, default.

mod chat;
mod columns;
mod commands;
mod description;
mod entropy;
mod export;
mod interruptions;
mod keys;
mod load;
mod provenance;
mod sessions;
mod slices;
mod teachers;
mod tls;
mod units;
mod unknown;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use chat::{ChatConfig, ChatLimits, ChatMode, EarlierThinking, SeparateReasoning};
pub use columns::{ColumnConfig, ColumnName, MoeShape};
pub use commands::{
    ArchiveArgs, ArchiveOperation, CheckArgs, CompletionsArgs, ConfigArgs, ControlPortArgs, EntropyArgs, ImportArgs,
    ManArgs, ScoreArgs, ShowArgs, TopArgs,
};
pub use description::{completions, write_man_pages};
pub use entropy::{EntropyConfig, EntropyDefault, Strict};
pub use export::{ExportArgs, ExportImages, Format};
pub use interruptions::{InterruptionConfig, OnAbort};
pub use keys::{ControlToken, KeyConfig};
pub use load::{Invalid, load};
pub use provenance::{Setting, Value};
pub use sessions::{ArchiveConfig, FsyncPolicy, LedgerConfig, SessionConfig, SessionSource, ThinkIds};
pub use slices::{CudaDevice, EntropyBackend, ShmConfig, SliceConfig};
pub use teachers::{SELF as TEACHER_SELF, Teacher, host_and_port as teacher_host_and_port};
pub use tls::{TlsConfig, TlsFiles};
pub use units::{Secret, bytes, duration, server_url, without_credentials};

/// The heading of the settings that most users need, which come first in `--help`.
const MAIN: &str = "Main options";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "tokentap", version, about, max_term_width = 130)]
#[command(
    after_help = "Examples:\n  tokentap serve --upstream http://127.0.0.1:30000\n  tokentap check --upstream http://127.0.0.1:30000"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Those that run have one file each in `cli/`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run beside an SGLang server: agents send their requests to --listen instead
    Serve(Box<Config>),
    /// Run with an embedded engine instead of SGLang, and print requests to try
    Demo(Box<Config>),
    /// Connect to the upstream, and report what it is and why numbers could be wrong or expensive
    Check(Box<CheckArgs>),
    /// Write recorded sessions to a file in the format of a trainer
    Export(Box<ExportArgs>),
    /// Append the sessions in a folder of --data-dir to the shared ledger of several tokentaps
    Import(Box<ImportArgs>),
    /// List or verify an archive of finished trajectories
    Archive(Box<ArchiveArgs>),
    /// Watch the running requests of a tokentap: tokens per second, entropy now, session
    Top(Box<TopArgs>),
    /// Have a teacher score recorded sessions, and print how far it is from the policy that sampled them
    Score(Box<ScoreArgs>),
    /// Print a path of a session as text, coloured by entropy
    Show(Box<ShowArgs>),
    /// Print the settings that serve would use, and the origin of each
    Config(Box<ConfigArgs>),
    /// Measure the rows of logits in a safetensors file: one line of JSON per row
    Entropy(Box<EntropyArgs>),
    /// Print a script with which a shell completes commands and flags
    Completions(CompletionsArgs),
    /// Write man pages, one for each command
    Man(ManArgs),
}

impl Command {
    /// The settings of the tokentap that runs or is to run; `None` for a command that runs none.
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        match self {
            Self::Serve(config) | Self::Demo(config) => Some(config),
            Self::Check(check) => Some(&check.config),
            Self::Config(args) => Some(&args.config),
            Self::Export(_)
            | Self::Import(_)
            | Self::Archive(_)
            | Self::Top(_)
            | Self::Score(_)
            | Self::Show(_)
            | Self::Entropy(_)
            | Self::Completions(_)
            | Self::Man(_) => None,
        }
    }

    fn config_mut(&mut self) -> Option<&mut Config> {
        match self {
            Self::Serve(config) | Self::Demo(config) => Some(config),
            Self::Check(check) => Some(&mut check.config),
            Self::Config(args) => Some(&mut args.config),
            Self::Export(_)
            | Self::Import(_)
            | Self::Archive(_)
            | Self::Top(_)
            | Self::Score(_)
            | Self::Show(_)
            | Self::Entropy(_)
            | Self::Completions(_)
            | Self::Man(_) => None,
        }
    }

    /// The control port of a command that shows a running tokentap.
    fn control_port_mut(&mut self) -> Option<&mut ControlPortArgs> {
        match self {
            Self::Top(top) => Some(&mut top.port),
            Self::Score(score) => Some(&mut score.port),
            Self::Show(show) => Some(&mut show.port),
            _ => None,
        }
    }

    /// The log settings of the command; `None` if it logs nothing.
    #[must_use]
    pub fn logging(&self) -> Option<&LogConfig> {
        Some(match self {
            Self::Serve(config) | Self::Demo(config) => &config.logging,
            Self::Check(check) => &check.config.logging,
            Self::Config(args) => &args.config.logging,
            Self::Export(export) => &export.logging,
            Self::Import(import) => &import.logging,
            Self::Archive(archive) => &archive.logging,
            Self::Top(top) => &top.logging,
            Self::Score(score) => &score.logging,
            Self::Show(show) => &show.logging,
            Self::Entropy(entropy) => &entropy.logging,
            Self::Completions(_) | Self::Man(_) => return None,
        })
    }
}

/// The settings of a running tokentap.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Upstream")]
pub struct Config {
    /// URL of the SGLang server: http:// or https://, HOST:PORT, and the path below which it serves, if any
    #[arg(long, env = "TOKENTAP_UPSTREAM", hide_env_values = true, help_heading = MAIN, value_name = "URL", default_value = "http://127.0.0.1:30000")]
    pub upstream: String,
    /// URL of an engine behind a router that does not list its workers; aborts and probes go to each
    #[arg(long, env = "TOKENTAP_ENGINE", hide_env_values = true, value_name = "URL", value_delimiter = ',')]
    pub engine: Vec<String>,
    /// PEM file with the CAs that issue the certificates of engines with https://; those of the system are not used
    #[arg(long, env = "TOKENTAP_UPSTREAM_CA", value_name = "FILE")]
    pub upstream_ca: Option<PathBuf>,
    /// When a call of a named session gets the header x-smg-routing-key, a hash of the name, by which a router sends it to the engine of the session: auto (the upstream is a router), always, off
    #[arg(long, env = "TOKENTAP_ROUTING_KEY", value_name = "WHEN", default_value = "auto")]
    pub routing_key: RoutingKey,
    /// A teacher, an SGLang server that scores recorded tokens: NAME=URL, and after it key=@FILE if it wants a key
    #[arg(long, env = "TOKENTAP_TEACHER", hide_env_values = true, value_name = "NAME=URL", value_delimiter = ',')]
    pub(crate) teacher: Vec<String>,
    /// Hosts whose engines a request of the control port may name as a teacher by a URL: names or addresses, with every port, or as HOST:PORT with this one; .example.com allows every subdomain
    #[arg(long, env = "TOKENTAP_TEACHER_HOST", value_name = "HOST", value_delimiter = ',')]
    pub teacher_host: Vec<String>,
    /// The teachers of that setting.
    #[arg(skip)]
    pub teachers: Vec<Teacher>,
    /// Address of the data port, to which agents send their requests
    #[arg(long, env = "TOKENTAP_LISTEN", help_heading = MAIN, value_name = "ADDR", default_value = "127.0.0.1:30001")]
    pub listen: SocketAddr,
    /// Address of the control port: sessions, metrics, probes, and SGLang's control routes
    #[arg(long, env = "TOKENTAP_CONTROL_LISTEN", help_heading = MAIN, value_name = "ADDR", default_value = "127.0.0.1:30002")]
    pub control_listen: SocketAddr,
    /// TOML file with settings, named as the flags
    #[arg(long, env = "TOKENTAP_CONFIG", help_heading = MAIN, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Entropy settings.
    #[command(flatten)]
    pub entropy: EntropyConfig,
    /// Settings of whole rows of logits.
    #[command(flatten)]
    pub slices: SliceConfig,
    /// Settings of slices in files.
    #[command(flatten)]
    pub shm: ShmConfig,
    /// Settings of token columns.
    #[command(flatten)]
    pub columns: ColumnConfig,
    /// Session settings.
    #[command(flatten)]
    pub sessions: SessionConfig,
    /// Settings of the shared ledger.
    #[command(flatten)]
    pub ledger: LedgerConfig,
    /// Settings of the archive.
    #[command(flatten)]
    pub archive: ArchiveConfig,
    /// URL of an OpenTelemetry collector, which gets one span for each generation, as OTLP over HTTP; without a path, its /v1/traces
    #[arg(long, env = "TOKENTAP_OTLP", hide_env_values = true, help_heading = "Traces", value_name = "URL", value_parser = server_url)]
    pub otlp: Option<String>,
    /// Settings of chat completions.
    #[command(flatten)]
    pub chat: ChatConfig,
    /// Settings for trainers that pause the engine or abort its generations.
    #[command(flatten)]
    pub interruptions: InterruptionConfig,
    /// Keys.
    #[command(flatten)]
    pub keys: KeyConfig,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsConfig,
    /// Limits of size, number and time.
    #[command(flatten)]
    pub limits: LimitConfig,
    /// Log settings.
    #[command(flatten)]
    pub logging: LogConfig,
}

/// `--routing-key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoutingKey {
    /// If the upstream is a router.
    Auto,
    /// Also if the upstream looks like an engine, as a load balancer does.
    Always,
    /// Never.
    Off,
}

/// The limit of connections to the control port, where `agents` is that of the data port.
#[must_use]
pub fn control_connections(agents: usize) -> usize {
    // trainers, a Prometheus and a page each have a few
    (agents / 8).max(16)
}

/// Limits. Routes that generate have no time limit of their own: a paused engine is silent for as long as it likes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitConfig {
    /// A client's first headers must be complete within this time.
    #[arg(skip = Duration::from_secs(10))]
    pub client_header_timeout: Duration,
    /// A kept connection of a client may be idle, or slow with its next headers, for this time.
    #[arg(skip = Duration::from_secs(75))]
    pub client_idle_timeout: Duration,
    /// A client's body must not pause longer than this, nor fall that far behind 1 KiB a second.
    #[arg(skip = Duration::from_secs(30))]
    pub client_body_timeout: Duration,
    /// A client must take some bytes of a reply that waits for it within this time; otherwise its HTTP/1 connection ends.
    #[arg(skip = Duration::from_secs(60))]
    pub client_read_timeout: Duration,
    /// Largest request body
    #[arg(long, env = "TOKENTAP_MAX_REQUEST_BYTES", value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    pub max_request_bytes: u64,
    /// Largest picture of `/generate`, or of a chat that is built from tokens; a larger one is refused with 400
    #[arg(long, env = "TOKENTAP_MAX_IMAGE_BYTES", value_name = "BYTES", default_value = "20MiB", value_parser = bytes)]
    pub max_image_bytes: u64,
    /// Bytes of buffered requests and replies together, and of what reading, rendering and encoding the requests takes: above three quarters requests get 503, or 413 if one alone takes more; above all of it replies are forwarded without entropies, as is a reply that alone is larger than an eighth of it, at least 64MiB
    #[arg(long, env = "TOKENTAP_MAX_BYTES_IN_FLIGHT", value_name = "BYTES", default_value = "2GiB", value_parser = bytes)]
    pub max_bytes_in_flight: u64,
    /// Larger replies, and larger events of a stream, are forwarded without entropies. Derived from [`Self::max_bytes_in_flight`].
    #[arg(skip)]
    pub max_reply_bytes: u64,
    /// Connections of agents; more wait to be accepted. The control port has an eighth as many. The limit of open files (`ulimit -Hn`) lowers connections and requests
    #[arg(long, env = "TOKENTAP_MAX_CONNECTIONS", value_name = "N", default_value = "8192")]
    pub max_connections: usize,
    /// Concurrent requests; more get 503 with Retry-After
    #[arg(long, env = "TOKENTAP_MAX_REQUESTS", value_name = "N", default_value = "4096")]
    pub max_requests: usize,
    /// Connecting to the upstream.
    #[arg(skip = Duration::from_secs(1))]
    pub connect_timeout: Duration,
    /// Failed connections to the upstream in a row after which requests get 503 at once, except one twice a second; 0 is never.
    #[arg(skip = 5_u32)]
    pub breaker_failures: u32,
    /// Idle upstream connections are closed after this time; SGLang closes them after 5 s.
    #[arg(skip = Duration::from_secs(3))]
    pub pool_idle_timeout: Duration,
    /// Longest pause of an upstream reply that is not a generation; such a reply may take six times as long in total; 0 is no limit
    #[arg(long, env = "TOKENTAP_UPSTREAM_TIMEOUT", value_name = "TIME", default_value = "600s", value_parser = duration)]
    pub upstream_timeout: Duration,
    /// How long the engine may take to begin the reply to a /generate request with pictures, audio or video, and to a chat with pictures that is built from tokens; then it is aborted and refused with 504, because some processors never answer a malformed one. A reply that does not stream begins when it is complete; 0 is no limit
    #[arg(long, env = "TOKENTAP_IMAGE_TIMEOUT", value_name = "TIME", default_value = "1800s", value_parser = duration)]
    pub image_timeout: Duration,
    /// How long running requests may take after SIGTERM
    #[arg(long, env = "TOKENTAP_DRAIN_TIMEOUT", value_name = "TIME", default_value = "300s", value_parser = duration)]
    pub drain_timeout: Duration,
}

/// Bytes of a reply that are measured if the memory for all replies has room: as many as a planned reply may be expected to have.
const MIN_REPLY_BYTES: u64 = 64 << 20;

impl LimitConfig {
    /// Derives the limits that have no flag.
    fn derive(&mut self) {
        self.max_reply_bytes = (self.max_bytes_in_flight / 8).max(MIN_REPLY_BYTES);
    }

    /// Refuses limits with which a large request would never be served. The cheapest one is counted twice, and its buffer may be larger by
    /// a quarter.
    fn check(&self) -> Result<(), String> {
        if self.max_bytes_in_flight / 4 < self.max_request_bytes {
            return Err(format!(
                "--max-bytes-in-flight {} is less than four times --max-request-bytes {}: a request of this size would never be served",
                self.max_bytes_in_flight, self.max_request_bytes
            ));
        }
        Ok(())
    }
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Log settings, the same for every command.
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
