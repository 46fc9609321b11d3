//! Settings of the archive, and of `tokentap archive`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{LogConfig, MAIN, bytes, duration};

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
