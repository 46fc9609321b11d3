//! Settings of what is recorded, where it is kept, and for how long.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{bytes, duration};

/// Where else a session's name may stand, besides where it is always looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SessionSource {
    /// The bearer token, or `X-Api-Key`.
    Key,
    /// The member `user` of the body.
    User,
    /// The header `X-SMG-Routing-Key`.
    RoutingKey,
}

/// When the log is forced to the disk itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FsyncPolicy {
    /// The system decides: survives a crash of the process, not of the machine.
    Never,
    /// Once a second.
    Interval,
    /// Before a reply ends.
    Always,
}

/// The largest `--max-session-turns`. Calls that run at once may pass it together.
pub const MOST_SESSION_TURNS: usize = 1_000_000;

fn turns(text: &str) -> Result<usize, String> {
    let turns: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if turns > MOST_SESSION_TURNS { Err(format!("at most {MOST_SESSION_TURNS}")) } else { Ok(turns) }
}

/// What is recorded.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sessions")]
pub struct SessionConfig {
    /// Record every generation as a turn of its session
    #[arg(long, env = "TOKENTAP_RECORD", value_name = "BOOL", default_value = "true", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub record: bool,
    /// Where a session's name may stand besides path, headers, query and body: key, user, routing-key
    #[arg(long, env = "TOKENTAP_SESSION_FROM", value_name = "LIST", value_delimiter = ',')]
    pub session_from: Vec<SessionSource>,
    /// How many bytes the sessions in memory hold; the least recently used leave first
    #[arg(long, env = "TOKENTAP_SESSION_BYTES", value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    pub session_bytes: u64,
    /// How long a session stays that nobody uses
    #[arg(long, env = "TOKENTAP_SESSION_TTL", value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub session_ttl: Duration,
    /// A session that nobody uses for so long has finished
    #[arg(long, env = "TOKENTAP_SESSION_IDLE", value_name = "TIME", default_value = "300s", value_parser = duration)]
    pub session_idle: Duration,
    /// How many turns a session may have, at most 1000000; the next call of a session that has them is answered 403
    #[arg(long, env = "TOKENTAP_MAX_SESSION_TURNS", value_name = "N", default_value = "65536", value_parser = turns)]
    pub max_session_turns: usize,
    /// How many branches a session may have: turns that none continues; the next call is answered 403
    #[arg(long, env = "TOKENTAP_MAX_SESSION_BRANCHES", value_name = "N", default_value = "16384")]
    pub max_session_branches: usize,
    /// The largest file of an export whose rows are padded to the longest, or whose size is known before it is written
    #[arg(long, env = "TOKENTAP_MAX_EXPORT_BYTES", value_name = "BYTES", default_value = "8GiB", value_parser = bytes)]
    pub max_export_bytes: u64,
    /// Folder of the log from which sessions are restored after a restart; without it they live in memory alone
    #[arg(long, env = "TOKENTAP_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// How large that log may become; its oldest segments leave first
    #[arg(long, env = "TOKENTAP_DATA_BYTES", value_name = "BYTES", default_value = "16GiB", value_parser = bytes)]
    pub data_bytes: u64,
    /// When it is forced to the disk itself: never (survives a crash of tokentap), interval (a second), always
    #[arg(long, env = "TOKENTAP_FSYNC", value_name = "WHEN", default_value = "interval")]
    pub fsync: FsyncPolicy,
    /// Id of the token that opens a span of thought; else as the tokenizer names it
    #[arg(long, env = "TOKENTAP_THINK_START", value_name = "ID", requires = "think_end")]
    pub think_start: Option<u32>,
    /// Id of the token that closes it
    #[arg(long, env = "TOKENTAP_THINK_END", value_name = "ID", requires = "think_start")]
    pub think_end: Option<u32>,
}
