// SPDX-License-Identifier: Apache-2.0
//! Session settings: what is recorded, where, and for how long; the ledger that several tokentaps share; the archive.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::export::MAX_EXPORT_BYTES;
use super::{MAIN, Secret, bytes, duration};

/// Further sources of a session's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SessionSource {
    /// The bearer token, or `X-Api-Key`.
    Key,
    /// The member `user` of the body.
    User,
    /// The header `X-SMG-Routing-Key`.
    RoutingKey,
    /// Claude Code: the header `X-Claude-Code-Session-Id`, else the session in `metadata.user_id` of the body.
    ClaudeCode,
    /// Codex: the headers `session-id` and `thread-id`.
    Codex,
    /// The header `X-Session-Affinity` of `OpenCode`.
    SessionAffinity,
    /// The member `prompt_cache_key` of the body.
    PromptCacheKey,
}

/// When the log is synced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FsyncPolicy {
    /// The system decides: survives a crash of the process, not of the machine.
    Never,
    /// Once a second.
    Interval,
    /// Before a reply ends.
    Always,
}

/// What is recorded.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sessions")]
pub struct SessionConfig {
    /// Record every generation as a turn of its session
    #[arg(long, env = "TOKENTAP_RECORD", value_name = "BOOL", default_value = "true", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub record: bool,
    /// Further sources of a session's name, besides path, headers, query and body: key, user, routing-key, claude-code, codex, session-affinity, prompt-cache-key
    #[arg(long, env = "TOKENTAP_SESSION_FROM", value_name = "LIST", value_delimiter = ',')]
    pub session_from: Vec<SessionSource>,
    /// Bytes of all sessions in memory; the least recently used are evicted
    #[arg(long, env = "TOKENTAP_SESSION_BYTES", value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    pub session_bytes: u64,
    /// How long an unused session stays in memory
    #[arg(long, env = "TOKENTAP_SESSION_TTL", value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub session_ttl: Duration,
    /// A session that is unused for this time has finished
    #[arg(long, env = "TOKENTAP_SESSION_IDLE", value_name = "TIME", default_value = "300s", value_parser = duration)]
    pub session_idle: Duration,
    /// Turns of a session, and four times its branches; further calls get 403.
    #[arg(skip = 65_536_usize)]
    pub max_session_turns: usize,
    /// Bytes of the largest export file, for formats whose size is known before it is written.
    #[arg(skip = MAX_EXPORT_BYTES)]
    pub max_export_bytes: u64,
    /// Folder of the log from which sessions are restored after a restart; without it they are in memory only
    #[arg(long, env = "TOKENTAP_DATA_DIR", help_heading = MAIN, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Bytes of that log; its oldest segments are removed
    #[arg(long, env = "TOKENTAP_DATA_BYTES", value_name = "BYTES", default_value = "16GiB", value_parser = bytes)]
    pub data_bytes: u64,
    /// When that log is synced: never (survives a crash of the process), interval (each second), always (before a reply ends)
    #[arg(long, env = "TOKENTAP_FSYNC", value_name = "WHEN", default_value = "interval")]
    pub fsync: FsyncPolicy,
    /// Ids of the tokens that open and close thinking, as OPEN,CLOSE; without it those of the tokenizer
    #[arg(long, env = "TOKENTAP_THINK_TOKENS", value_name = "IDS")]
    pub think_tokens: Option<ThinkIds>,
}

/// `--think-tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinkIds {
    /// Opens a span of thought.
    pub start: u32,
    /// Closes it.
    pub end: u32,
}

impl FromStr for ThinkIds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ids =
            text.split_once(',').and_then(|(start, end)| Some((start.trim().parse().ok()?, end.trim().parse().ok()?)));
        match ids {
            Some((start, end)) if start != end => Ok(Self { start, end }),
            Some(_) => Err("both are the same token, so no span could be closed".to_owned()),
            None => Err("it is two token ids, such as 151667,151668".to_owned()),
        }
    }
}

impl SessionConfig {
    /// The most branches of a session, which are turns that no other turn continues: a quarter of its turns, but 16 if it has that many.
    #[must_use]
    pub fn max_session_branches(&self) -> usize {
        (self.max_session_turns / 4).max(self.max_session_turns.min(16))
    }
}

/// Where the shared ledger is, and when it has confirmed a turn.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Shared sessions")]
pub struct LedgerConfig {
    /// Valkey or Redis 7 through which tokentaps share sessions, as redis://USER:PASSWORD@HOST:PORT, or @FILE; also redis-sentinel:// and redis-cluster://, and rediss for TLS
    #[arg(long, env = "TOKENTAP_LEDGER", value_name = "URL", hide_env_values = true, value_parser = Secret::parse)]
    pub ledger: Option<Secret>,
    /// Replicas of Valkey that must confirm a turn before its reply ends; with 0 a failover loses turns
    #[arg(long, env = "TOKENTAP_LEDGER_REPLICAS", value_name = "N", default_value = "1")]
    pub ledger_replicas: u32,
    /// How long a reply waits for the shared ledger; its turn is appended later then
    #[arg(long, env = "TOKENTAP_LEDGER_TIMEOUT", value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub ledger_timeout: Duration,
    /// Bytes of the pictures of all sessions in Valkey; beyond it, other tokentaps have only the digests of further ones
    #[arg(long, env = "TOKENTAP_LEDGER_IMAGE_BYTES", value_name = "BYTES", default_value = "256MiB", value_parser = bytes)]
    pub ledger_image_bytes: u64,
    /// File with the password of Valkey, which is read for each connection
    #[arg(long, env = "TOKENTAP_LEDGER_PASSWORD_FILE", value_name = "FILE")]
    pub ledger_password_file: Option<PathBuf>,
    /// PEM file with the CAs that sign the certificates of Valkey
    #[arg(long, env = "TOKENTAP_LEDGER_CA", value_name = "FILE")]
    pub ledger_ca: Option<PathBuf>,
    /// PEM file with the certificate chain of this client, for a Valkey that asks for one
    #[arg(long, env = "TOKENTAP_LEDGER_CERT", value_name = "FILE")]
    pub ledger_cert: Option<PathBuf>,
    /// PEM file with its private key, not encrypted
    #[arg(long, env = "TOKENTAP_LEDGER_KEY", value_name = "FILE")]
    pub ledger_key: Option<PathBuf>,
}

impl LedgerConfig {
    /// Checks that a certificate has a key.
    pub(super) fn check(&self) -> Result<(), String> {
        let (given, lacking) = match (&self.ledger_cert, &self.ledger_key) {
            (Some(_), None) => ("--ledger-cert", "--ledger-key"),
            (None, Some(_)) => ("--ledger-key", "--ledger-cert"),
            _ => return Ok(()),
        };
        Err(format!("{given} is of no use without {lacking}: give both, or neither"))
    }
}

/// Where finished paths are archived.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Archive")]
pub struct ArchiveConfig {
    /// URI of the archive of finished trajectories: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER
    #[arg(long, env = "TOKENTAP_ARCHIVE", hide_env_values = true, help_heading = MAIN, value_name = "URI")]
    pub archive: Option<String>,
    /// A finished trajectory is archived at most this long after it finished
    #[arg(long, env = "TOKENTAP_ARCHIVE_INTERVAL", value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub archive_interval: Duration,
    /// Bytes of finished trajectories in memory that are archived before that time
    #[arg(long, env = "TOKENTAP_ARCHIVE_BYTES", value_name = "BYTES", default_value = "64MiB", value_parser = bytes)]
    pub archive_bytes: u64,
}

impl ArchiveConfig {
    /// An archive needs recorded sessions.
    pub(super) fn check(&self, record: bool) -> Result<(), String> {
        match &self.archive {
            Some(_) if !record => Err("--archive needs --record true: without it there are no trajectories".to_owned()),
            _ => Ok(()),
        }
    }
}
