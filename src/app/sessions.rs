// SPDX-License-Identifier: Apache-2.0
//! Opens the sessions: the store, the shared ledger, the log, and the metrics of all three.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, FsyncPolicy, LedgerConfig};
use crate::metrics::{CounterMemo, Metrics};
use crate::session::ledger::SharedLog;
use crate::session::ledger::log::{Directory, Fsync, Options};
use crate::session::ledger::valkey::{TlsFiles, Valkey, ValkeyObserver, ValkeyOptions};
use crate::session::{Fault, Sessions, SharedLedger, SharingLimits, StoreLimits, StoreObserver, Turn};
use crate::tls_client::ClientCertificate;

/// Builds the sessions, and locks the log from which they will be restored, if any.
///
/// # Errors
/// A line for the user.
pub(super) fn open(
    config: &Config,
    log: SharedLog,
    metrics: &Arc<Metrics>,
) -> Result<(Sessions, Option<Directory>), String> {
    let ledger = open_ledger(config, metrics)?;
    let config = &config.sessions;
    let limits = StoreLimits { bytes: config.session_bytes, ttl: config.session_ttl, idle: config.session_idle };
    let observer = Arc::new(StoreCounter::new(Arc::clone(metrics)));
    // with a ledger, the log has the turns that the ledger lacks
    let folder = if ledger.is_some() { "detached" } else { "" };
    let sessions = match ledger {
        Some(ledger) => Sessions::shared(limits, log, observer, ledger),
        None => Sessions::local(limits, log, observer),
    };
    let Some(dir) = config.data_dir.as_ref().filter(|_| config.record) else { return Ok((sessions, None)) };
    let fsync = match config.fsync {
        FsyncPolicy::Never => Fsync::Never,
        FsyncPolicy::Interval => Fsync::Interval(Duration::from_secs(1)),
        FsyncPolicy::Always => Fsync::Always,
    };
    let options = Options { total_bytes: config.data_bytes, fsync, ..Options::new(dir.join(folder)) };
    let directory = Directory::lock(&options).map_err(|error| format!("--data-dir: {error}"))?;
    sessions.restoration().begin(directory.bytes());
    Ok((sessions, Some(directory)))
}

/// Counts the appends to the shared ledger, and logs its connections.
#[derive(Debug)]
struct LedgerCounter(Arc<Metrics>);

impl ValkeyObserver for LedgerCounter {
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
pub(crate) fn ledger_options(connection: &LedgerConfig, ttl: Duration) -> Result<Option<ValkeyOptions>, String> {
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
        image_bytes: connection.ledger_image_bytes,
    }))
}

/// The ledger of these settings; `None` without one. Must be called in a runtime.
///
/// # Errors
/// A line for the user.
fn open_ledger(config: &Config, metrics: &Arc<Metrics>) -> Result<Option<SharedLedger>, String> {
    let Some(options) = ledger_options(&config.ledger, config.sessions.session_ttl)? else {
        return Ok(None);
    };
    if options.replicas == 0 {
        tracing::warn!("--ledger-replicas is 0: a failover of the shared ledger loses turns whose replies have ended");
    }
    let limits = SharingLimits { timeout: options.timeout, idle: config.sessions.session_idle };
    let ledger = Valkey::new(options, Arc::new(LedgerCounter(Arc::clone(metrics))));
    Ok(Some(SharedLedger { ledger: Arc::new(ledger), limits }))
}

/// Counts the changes of the session store.
#[derive(Debug)]
struct StoreCounter {
    metrics: Arc<Metrics>,
    turns: CounterMemo,
    attachments: CounterMemo,
    evicted: CounterMemo,
}

impl StoreCounter {
    fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            turns: CounterMemo::default(),
            attachments: CounterMemo::default(),
            evicted: CounterMemo::default(),
        }
    }

    fn count_turn(&self, outcome: &'static str) {
        self.turns.get(&outcome, || self.metrics.turns.with_label_values(&[outcome])).inc();
    }
}

impl StoreObserver for StoreCounter {
    fn turn_committed(&self, turn: &Turn) {
        self.count_turn(turn.about.fault.map_or("trainable", Fault::name));
        let cause = turn.about.cause.name();
        self.attachments.get(&cause, || self.metrics.session.attachments.with_label_values(&[cause])).inc();
    }

    fn turn_dropped(&self) {
        self.count_turn("deleted");
    }

    fn session_evicted(&self, reason: &'static str) {
        self.evicted.get(&reason, || self.metrics.sessions_evicted.with_label_values(&[reason])).inc();
    }
}
