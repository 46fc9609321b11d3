//! Starts and ends the archive of finished paths.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::{Parts, restoration};
use crate::archive::{Archiver, FinishedSource, LocalSource, Options, RunningArchive, SharedSource, Storage};
use crate::serve::connection::Phase;
use crate::serve::control::v1::sessions::annotate;
use crate::session::Sharing;

/// The archiver, which starts when the sessions are restored.
pub(super) struct Archiving {
    starting: JoinHandle<()>,
    running: oneshot::Receiver<RunningArchive>,
}

/// The time between two attempts to reach the ledger.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Archives the finished paths of the sessions from when they are restored: those of this process, or of the fleet if sessions are shared.
pub(super) fn start(parts: &Arc<Parts>, storage: Storage, restored: &watch::Receiver<bool>) -> Archiving {
    let (started, running) = oneshot::channel();
    let parts = Arc::clone(parts);
    let starting = restoration::after(restored, async move {
        let archive = match parts.sessions.sharing().map(Arc::clone) {
            Some(sharing) => RunningArchive::spawn(|stop| archive_fleet(parts, sharing, storage, stop)),
            None => {
                let source = LocalSource::new(Arc::clone(&parts.sessions), Arc::clone(&parts.trainers.log_wait));
                archiver(&parts, storage, source).spawn()
            }
        };
        // fails if the process is ending
        let _ = started.send(archive);
    });
    Archiving { starting, running }
}

fn archiver<S: FinishedSource>(parts: &Parts, storage: Storage, source: S) -> Archiver<S> {
    let config = &parts.config.archive;
    let options = Options { interval: config.archive_interval, bytes: config.archive_bytes };
    let trainers = Arc::clone(&parts.trainers);
    let current = Arc::new(move || annotate(&trainers));
    Archiver::new(storage, source, options, current, Arc::clone(&parts.metrics))
}

/// Archives the finished paths of a fleet. A ledger that has lost all data begins another fleet, with other chains. Returns whether all paths
/// that have finished are archived.
async fn archive_fleet(
    parts: Arc<Parts>,
    sharing: Arc<Sharing>,
    storage: Storage,
    mut stop: watch::Receiver<bool>,
) -> bool {
    loop {
        let source = match SharedSource::open(&parts.sessions, &sharing).await {
            Ok(source) => source,
            // the log has a line for a ledger that fails
            Err(_) => tokio::select! {
                () = tokio::time::sleep(ATTEMPT) => continue,
                _ = stop.wait_for(|stop| *stop) => return false,
            },
        };
        let archiver = archiver(&parts, storage.clone(), source);
        tokio::select! {
            is_complete = archiver.run(stop.clone()) => return is_complete,
            () = archiver.source().lost() => {}
        }
    }
}

/// Archives the paths that have finished by now. Ends after `within`, or at a second signal.
pub(super) async fn finish(parts: &Arc<Parts>, archiving: Archiving, within: Duration) {
    let Archiving { starting, mut running } = archiving;
    starting.abort();
    let Ok(running) = running.try_recv() else { return };
    let mut phase = parts.phase.clone();
    let is_complete = tokio::select! {
        is_complete = running.finish(within) => is_complete,
        _ = phase.wait_for(|phase| *phase == Phase::Ending) => false,
    };
    if !is_complete {
        tracing::warn!("ended before all finished paths were archived");
    }
}
