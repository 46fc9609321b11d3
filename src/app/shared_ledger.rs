//! Builds the shared ledger from its settings.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, LedgerConfig};
use crate::metrics::Metrics;
use crate::session::ledger::valkey::{TlsFiles, Valkey, ValkeyObserver, ValkeyOptions};
use crate::session::{SharedLedger, SharingLimits};
use crate::tls_client::ClientCertificate;

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

/// The options of a ledger whose sessions expire after `ttl`; `None` without a ledger.
///
/// # Errors
/// A line for the user.
pub(crate) fn options(connection: &LedgerConfig, ttl: Duration) -> Result<Option<ValkeyOptions>, String> {
    let Some(url) = &connection.ledger else { return Ok(None) };
    let url = url.expose().parse().map_err(|error| format!("--ledger: {error}"))?;
    let client = connection.ledger_cert.as_ref().zip(connection.ledger_key.as_ref());
    let client =
        client.map(|(certificate, key)| ClientCertificate { certificate: certificate.clone(), key: key.clone() });
    Ok(Some(ValkeyOptions {
        url,
        password_file: connection.ledger_password_file.clone(),
        tls: TlsFiles { ca: connection.ledger_ca.clone(), client },
        replicas: connection.ledger_replicas,
        timeout: connection.ledger_timeout,
        ttl,
    }))
}

/// The ledger of these settings; `None` without one. Must be called in a runtime.
///
/// # Errors
/// A line for the user.
pub(super) fn open(config: &Config, metrics: &Arc<Metrics>) -> Result<Option<SharedLedger>, String> {
    let Some(options) = options(&config.ledger, config.sessions.session_ttl)? else { return Ok(None) };
    if options.replicas == 0 {
        tracing::warn!("--ledger-replicas is 0: a failover of the shared ledger loses turns whose replies have ended");
    }
    let limits = SharingLimits { timeout: options.timeout, idle: config.sessions.session_idle };
    let ledger = Valkey::try_new(options, Arc::new(LedgerObserver(Arc::clone(metrics))));
    Ok(Some(SharedLedger { ledger: Arc::new(ledger.map_err(|error| format!("--ledger: {error}"))?), limits }))
}
