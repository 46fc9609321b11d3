// SPDX-License-Identifier: Apache-2.0
//! Starts and ends the archive of finished paths.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::restoration;
use crate::archive::{Archiver, Options, RunningArchive, SessionSource, Storage};
use crate::serve::connection::Phase;
use crate::serve::control::v1::sessions::annotate;
use crate::serve::proxy::Proxy;

/// The archiver, which starts when the sessions are restored.
pub(super) struct Archiving {
    starting: JoinHandle<()>,
    running: oneshot::Receiver<RunningArchive>,
}

/// The time between two attempts to reach the ledger.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Archives the finished paths of the sessions from when they are restored.
pub(super) fn start(proxy: &Arc<Proxy>, storage: Storage, restored: &watch::Receiver<bool>) -> Archiving {
    let (started, running) = oneshot::channel();
    let proxy = Arc::clone(proxy);
    let starting = restoration::after(restored, async move {
        let archive = RunningArchive::spawn(|stop| archive(proxy, storage, stop));
        // fails if the process is ending
        let _ = started.send(archive);
    });
    Archiving { starting, running }
}

/// Archives the finished paths. A ledger that has lost all data begins another fleet, with other chains. Returns whether all paths that have
/// finished are archived.
async fn archive(proxy: Arc<Proxy>, storage: Storage, mut stop: watch::Receiver<bool>) -> bool {
    let config = &proxy.config.archive;
    let options = Options { interval: config.archive_interval, bytes: config.archive_bytes };
    loop {
        let source = match SessionSource::open(&proxy.sessions, &proxy.generator.context.log_wait).await {
            Ok(source) => source,
            // the log has a line for a ledger that fails
            Err(_) => tokio::select! {
                () = tokio::time::sleep(ATTEMPT) => continue,
                _ = stop.wait_for(|stop| *stop) => return false,
            },
        };
        let trainers = Arc::clone(&proxy);
        let current = Arc::new(move || annotate(&trainers));
        let archiver = Archiver::new(storage.clone(), source, options, current, Arc::clone(&proxy.metrics));
        tokio::select! {
            is_complete = archiver.run(stop.clone()) => return is_complete,
            () = archiver.source().lost() => {}
        }
    }
}

/// Archives the paths that have finished by now. Ends after `within`, or at a second signal.
pub(super) async fn finish(proxy: &Arc<Proxy>, archiving: Archiving, within: Duration) {
    let Archiving { starting, mut running } = archiving;
    starting.abort();
    let Ok(running) = running.try_recv() else { return };
    let mut phase = proxy.phase.clone();
    let is_complete = tokio::select! {
        is_complete = running.finish(within) => is_complete,
        _ = phase.wait_for(|phase| *phase == Phase::Ending) => false,
    };
    if !is_complete {
        tracing::warn!("ended before all finished paths were archived");
    }
}
