// SPDX-License-Identifier: Apache-2.0
//! The end of the process, after the last connection of the data port: everything that a client or trainer was promised is completed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::archive::{self, Archiving};
use super::ports::ControlPort;
use crate::serve::connection::Phase;
use crate::serve::proxy::Proxy;

/// The maximum time that the shutdown waits for the aborts of the last generations.
const FINAL_ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that is left of `--drain-timeout`.
pub(super) struct DrainClock {
    /// When the drain ends, once it has begun.
    end: watch::Receiver<Option<Instant>>,
    timeout: Duration,
}

impl DrainClock {
    /// Starts the clock when the drain begins.
    pub(super) fn start(proxy: &Proxy) -> Self {
        let (mut phase, metrics) = (proxy.phase.clone(), Arc::clone(&proxy.metrics));
        let interruptions = proxy.generator.context.interruptions.clone();
        let timeout = proxy.config.limits.drain_timeout;
        let (drain, end) = watch::channel(None);
        tokio::spawn(async move {
            if phase.wait_for(|phase| *phase >= Phase::Draining).await.is_ok() {
                metrics.draining.set(1);
                interruptions.drain();
                drain.send_replace(Some(Instant::now() + timeout));
            }
        });
        Self { end, timeout }
    }

    fn remaining(&self) -> Duration {
        self.end.borrow().map_or(self.timeout, |end| end.saturating_duration_since(Instant::now()))
    }
}

/// Waits for the last aborts, the archive, the control port and the shared ledger, each for a limited time.
pub(super) async fn finish(proxy: &Arc<Proxy>, archiving: Option<Archiving>, control: ControlPort, clock: DrainClock) {
    // the runtime waits for blocking threads when it shuts down
    proxy.sessions.restoration().cancel();
    // the engine must receive the aborts of closed connections before the process ends, but it may not answer any more
    let mut aborting = proxy.generator.context.aborting.subscribe();
    let _ = timeout(FINAL_ABORT_TIMEOUT, aborting.wait_for(|count| *count == 0)).await;
    if let Some(archiving) = archiving {
        archive::finish(proxy, archiving, clock.remaining()).await;
    }
    control.close().await;
    // detached turns of a process without a local log would be lost, and pictures that are not stored yet
    let limit = proxy.config.ledger.ledger_timeout;
    let _ = timeout(limit, proxy.sessions.settle_entries()).await;
    let _ = timeout(clock.remaining().max(limit), proxy.sessions.settle_images()).await;
    report_unsettled(proxy, proxy.sessions.settle_rest().await);
}

/// Reports what the ledger lacks: changes of sessions, and only pictures of others. The local log keeps detached turns for the next start.
fn report_unsettled(proxy: &Proxy, [changes, images]: [usize; 2]) {
    if images > 0 {
        tracing::warn!(sessions = images, "the ledger lacks pictures of sessions; other tokentaps have references");
    }
    if changes == 0 {
        return;
    }
    match &proxy.config.sessions.data_dir {
        Some(folder) => {
            tracing::warn!(
                sessions = changes,
                folder = %folder.display(),
                "the ledger lacks turns; a start with this --data-dir appends them"
            );
        }
        None => {
            tracing::error!(
                sessions = changes,
                "the ledger lacks turns, which end with this process, because it has no --data-dir"
            );
        }
    }
}
