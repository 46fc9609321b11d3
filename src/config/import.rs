//! Settings of `tokentap import`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{LedgerConnection, LogConfig, duration};

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
    pub connection: LedgerConnection,
    /// What is logged.
    #[command(flatten)]
    pub logging: LogConfig,
}

impl ImportArgs {
    /// Checks that the ledger is given, and its flags fit together.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.connection.ledger.is_none() {
            return Err("--ledger <URL> must be given".to_owned());
        }
        self.connection.check()
    }
}
