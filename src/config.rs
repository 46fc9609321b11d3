//! Every setting once: flag, environment variable, default and one line of help.
//!
//! Order of precedence: flag, environment (`TOKENTAP_` and the flag's name), the TOML file of `--config`, default.

mod chat;
mod entropy;
mod export;
mod keys;
mod load;
mod logging;
mod provenance;
mod sessions;
mod slice_file;
mod slices;
mod tls;
mod units;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

pub use chat::{ChatConfig, ChatMode, EarlierThinking, SeparateReasoning};
pub use entropy::{EntropyConfig, EntropyDefault};
pub use export::ExportArgs;
pub use keys::KeyConfig;
pub use load::{Invalid, load};
pub use logging::{LogConfig, LogFormat};
pub use provenance::{Setting, Value};
pub use sessions::{FsyncPolicy, MOST_SESSION_TURNS, SessionConfig, SessionSource};
pub use slice_file::EntropyArgs;
pub use slices::{CudaDevice, EntropyBackend, ShmConfig, SliceConfig};
pub use tls::{TlsConfig, TlsFiles};
pub use units::{Secret, bytes, duration};

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "tokentap", version, about, disable_help_subcommand = true, max_term_width = 130)]
#[command(
    after_help = "Examples:\n  tokentap serve --upstream http://127.0.0.1:30000\n  tokentap check --upstream http://127.0.0.1:30000"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// One file each in `cli/`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run beside an SGLang server: agents point at --listen instead of it
    Serve(Box<Config>),
    /// Run with an embedded engine instead of SGLang, and print requests to try
    Demo(Box<Config>),
    /// Connect to the upstream and say what was found and why numbers could be wrong
    Check(Box<CheckArgs>),
    /// Write recorded sessions to a file in the format of a trainer
    Export(Box<ExportArgs>),
    /// Print the settings that serve would run with, and where each comes from
    Config(Box<ConfigArgs>),
    /// Measure the rows of logits in a safetensors file: one line of JSON a row
    Entropy(Box<EntropyArgs>),
}

/// The settings of `tokentap check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// How long a server that is not there yet is waited for
    #[arg(long, env = "TOKENTAP_WAIT", value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub wait: Duration,
    /// The settings of the tokentap that is to run.
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

impl Command {
    /// The settings of the tokentap that runs or is to run; `None` for a command that runs none.
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        match self {
            Self::Serve(config) | Self::Demo(config) => Some(config),
            Self::Check(check) => Some(&check.config),
            Self::Config(args) => Some(&args.config),
            Self::Export(_) | Self::Entropy(_) => None,
        }
    }

    fn config_mut(&mut self) -> Option<&mut Config> {
        match self {
            Self::Serve(config) | Self::Demo(config) => Some(config),
            Self::Check(check) => Some(&mut check.config),
            Self::Config(args) => Some(&mut args.config),
            Self::Export(_) | Self::Entropy(_) => None,
        }
    }

    /// What is logged, whatever the command is.
    #[must_use]
    pub fn logging(&self) -> &LogConfig {
        match self {
            Self::Serve(config) | Self::Demo(config) => &config.logging,
            Self::Check(check) => &check.config.logging,
            Self::Config(args) => &args.config.logging,
            Self::Export(export) => &export.logging,
            Self::Entropy(entropy) => &entropy.logging,
        }
    }
}

/// The settings of a running tokentap.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// The SGLang server
    #[arg(long, env = "TOKENTAP_UPSTREAM", value_name = "URL", default_value = "http://127.0.0.1:30000")]
    pub upstream: String,
    /// An engine behind the upstream, where that is a router that does not name its own: aborts and probes go to each
    #[arg(long, env = "TOKENTAP_ENGINE", value_name = "URL", value_delimiter = ',')]
    pub engine: Vec<String>,
    /// Data port: where agents send what they would send to SGLang
    #[arg(long, env = "TOKENTAP_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:30001")]
    pub listen: SocketAddr,
    /// Control port: probes, metrics, live entropy, and SGLang's control routes
    #[arg(long, env = "TOKENTAP_CONTROL_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:30002")]
    pub control_listen: SocketAddr,
    /// TOML file with these settings, named as the flags are
    #[arg(long, env = "TOKENTAP_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings of what is computed.
    #[command(flatten)]
    pub entropy: EntropyConfig,
    /// Settings of whole rows of logits.
    #[command(flatten)]
    pub slices: SliceConfig,
    /// Settings of slices in files.
    #[command(flatten)]
    pub shm: ShmConfig,
    /// Settings of what is recorded.
    #[command(flatten)]
    pub sessions: SessionConfig,
    /// Settings of chat completions.
    #[command(flatten)]
    pub chat: ChatConfig,
    /// Keys.
    #[command(flatten)]
    pub keys: KeyConfig,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsConfig,
    /// Limits of size, number and time.
    #[command(flatten)]
    pub limits: LimitConfig,
    /// What is logged.
    #[command(flatten)]
    pub logging: LogConfig,
}

/// Connections to the control port at once, where so many are for agents.
#[must_use]
pub fn control_connections(agents: usize) -> usize {
    // trainers, a Prometheus and a page each have a few
    (agents / 8).max(16)
}

/// Limits. Routes that generate have no time limit of their own: a paused engine is silent for as long as it likes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitConfig {
    /// A client's first headers must be complete within this time
    #[arg(long, env = "TOKENTAP_CLIENT_HEADER_TIMEOUT", value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub client_header_timeout: Duration,
    /// A kept connection may be without a request, or slow with its next headers, for this long
    #[arg(long, env = "TOKENTAP_CLIENT_IDLE_TIMEOUT", value_name = "TIME", default_value = "75s", value_parser = duration)]
    pub client_idle_timeout: Duration,
    /// A client's body must not pause longer than this, nor fall that far behind 1 KiB a second
    #[arg(long, env = "TOKENTAP_CLIENT_BODY_TIMEOUT", value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub client_body_timeout: Duration,
    /// Of a reply that waits for a client over HTTP/1 some must be taken within this, else its connection ends
    #[arg(long, env = "TOKENTAP_CLIENT_READ_TIMEOUT", value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub client_read_timeout: Duration,
    /// The largest request body of /generate
    #[arg(long, env = "TOKENTAP_MAX_REQUEST_BYTES", value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    pub max_request_bytes: u64,
    /// A larger reply passes without entropies
    #[arg(long, env = "TOKENTAP_MAX_REPLY_BYTES", value_name = "BYTES", default_value = "256MiB", value_parser = bytes)]
    pub max_reply_bytes: u64,
    /// Bytes of requests and replies held at once: beyond three quarters requests get 503, beyond all replies pass without entropies
    #[arg(long, env = "TOKENTAP_MAX_BYTES_IN_FLIGHT", value_name = "BYTES", default_value = "2GiB", value_parser = bytes)]
    pub max_bytes_in_flight: u64,
    /// Connections of agents; more wait to be accepted. The control port has an eighth of that for itself. Where too few files may be open (`ulimit -Hn`), there are fewer connections and requests
    #[arg(long, env = "TOKENTAP_MAX_CONNECTIONS", value_name = "N", default_value = "8192")]
    pub max_connections: usize,
    /// Requests at once; more get 503 and Retry-After
    #[arg(long, env = "TOKENTAP_MAX_REQUESTS", value_name = "N", default_value = "4096")]
    pub max_requests: usize,
    /// Connecting to the upstream
    #[arg(long, env = "TOKENTAP_CONNECT_TIMEOUT", value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub connect_timeout: Duration,
    /// Connections to the upstream that fail in a row until requests get 503 at once, but for one twice a second; 0 is never
    #[arg(long, env = "TOKENTAP_BREAKER_FAILURES", value_name = "N", default_value = "5")]
    pub breaker_failures: u32,
    /// Idle upstream connections are closed after this time; SGLang closes them after 5 s
    #[arg(long, env = "TOKENTAP_POOL_IDLE_TIMEOUT", value_name = "TIME", default_value = "3s", value_parser = duration)]
    pub pool_idle_timeout: Duration,
    /// Headers of an upstream route that does not generate; 0 is no limit
    #[arg(long, env = "TOKENTAP_UPSTREAM_HEADER_TIMEOUT", value_name = "TIME", default_value = "600s", value_parser = duration)]
    pub upstream_header_timeout: Duration,
    /// Pauses in the body of such a route; 0 is no limit
    #[arg(long, env = "TOKENTAP_UPSTREAM_IDLE_TIMEOUT", value_name = "TIME", default_value = "300s", value_parser = duration)]
    pub upstream_idle_timeout: Duration,
    /// Such a route altogether; 0 is no limit
    #[arg(long, env = "TOKENTAP_UPSTREAM_TOTAL_TIMEOUT", value_name = "TIME", default_value = "3600s", value_parser = duration)]
    pub upstream_total_timeout: Duration,
    /// How long running requests may take to end after SIGTERM
    #[arg(long, env = "TOKENTAP_DRAIN_TIMEOUT", value_name = "TIME", default_value = "300s", value_parser = duration)]
    pub drain_timeout: Duration,
}

impl LimitConfig {
    /// Checks values together, and refuses values with which no client could be served.
    fn check(&self) -> Result<(), String> {
        for (flag, time) in [
            ("--client-header-timeout", self.client_header_timeout),
            ("--client-idle-timeout", self.client_idle_timeout),
            ("--client-body-timeout", self.client_body_timeout),
            ("--client-read-timeout", self.client_read_timeout),
        ] {
            if time.is_zero() {
                return Err(format!("{flag} 0 would end every connection at once; give a time, as long as you like"));
            }
        }
        if self.max_bytes_in_flight / 4 < self.max_request_bytes {
            return Err(format!(
                "--max-bytes-in-flight {} is less than four times --max-request-bytes {}, so that a large request would never be served",
                self.max_bytes_in_flight, self.max_request_bytes
            ));
        }
        Ok(())
    }
}
