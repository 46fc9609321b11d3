//! Builds the shared ledger from its settings.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, LedgerConfig, SessionConfig};
use crate::metrics::Metrics;
use crate::session::ledger::valkey::{TlsFiles, Valkey, ValkeyObserver, ValkeyOptions};
use crate::session::{SharingLimits, Store};

/// Counts what the ledger does.
#[derive(Debug)]
struct LedgerObserver(Arc<Metrics>);

impl ValkeyObserver for LedgerObserver {
    fn append_ended(&self, outcome: &'static str, elapsed: Duration) {
        self.0.ledger.append_seconds.with_label_values(&[outcome]).observe(elapsed.as_secs_f64());
    }

    fn group_sent(&self, appends: usize, bytes: usize) {
        self.0.ledger.grouped.inc_by(appends as u64);
        self.0.ledger.bytes.inc_by(bytes as u64);
    }

    fn connected(&self, is_connected: bool) {
        if is_connected {
            tracing::info!("connected to the shared ledger");
        } else {
            tracing::warn!("the connection to the shared ledger was lost");
        }
    }
}

/// The options of the ledger; `None` if sessions are not shared.
///
/// # Errors
/// A line for the user.
pub(crate) fn options(config: &LedgerConfig, sessions: &SessionConfig) -> Result<Option<ValkeyOptions>, String> {
    let Some(url) = &config.ledger else { return Ok(None) };
    let url = url.expose().parse().map_err(|error| format!("--ledger: {error}"))?;
    if !sessions.record {
        return Err("--ledger shares recorded sessions, and --record is off".to_owned());
    }
    Ok(Some(ValkeyOptions {
        url,
        password_file: config.ledger_password_file.clone(),
        tls: TlsFiles { ca: config.ledger_ca.clone(), client: None },
        replicas: config.ledger_replicas,
        timeout: config.ledger_timeout,
        ttl: sessions.session_ttl,
    }))
}

/// Shares the sessions of `store`. Must be called in a runtime.
///
/// # Errors
/// A line for the user.
pub(super) fn share(store: &Store, config: &Config, metrics: &Arc<Metrics>) -> Result<(), String> {
    let Some(options) = options(&config.ledger, &config.sessions)? else { return Ok(()) };
    if options.replicas == 0 {
        tracing::warn!("--ledger-replicas is 0: a failover of the shared ledger loses turns whose replies have ended");
    }
    let limits = SharingLimits { timeout: options.timeout, idle: config.sessions.session_idle };
    let ledger = Valkey::try_new(options, Arc::new(LedgerObserver(Arc::clone(metrics))));
    store.share(Arc::new(ledger.map_err(|error| format!("--ledger: {error}"))?), limits);
    Ok(())
}
