//! Settings of the ledger that several tokentaps share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Secret, duration};

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
