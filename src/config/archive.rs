//! Settings of the archive.

use std::time::Duration;

use clap::Args;

use super::{MAIN, bytes, duration};

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
