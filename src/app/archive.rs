//! Starts and ends the archive of finished paths.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::{Parts, restoration};
use crate::archive::{Archiver, LocalSource, Options, RunningArchive, Storage};
use crate::serve::connection::Phase;
use crate::serve::control::v1::sessions::annotate;

/// The archiver, which starts when the sessions are restored.
pub(super) struct Archiving {
    starting: JoinHandle<()>,
    running: oneshot::Receiver<RunningArchive>,
}

/// Archives the finished paths of the sessions from when they are restored.
pub(super) fn start(parts: &Arc<Parts>, storage: Storage, restored: &watch::Receiver<bool>) -> Archiving {
    let (started, running) = oneshot::channel();
    let (parts, config) = (Arc::clone(parts), &parts.config.archive);
    let options = Options { interval: config.archive_interval, bytes: config.archive_bytes };
    let starting = restoration::after(restored, async move {
        let source = LocalSource::new(Arc::clone(&parts.sessions), Arc::clone(&parts.trainers.log_wait));
        let trainers = Arc::clone(&parts.trainers);
        let current = Arc::new(move || annotate(&trainers));
        let archiver = Archiver::new(storage, source, options, current, Arc::clone(&parts.metrics));
        // fails if the process is ending
        let _ = started.send(archiver.spawn());
    });
    Archiving { starting, running }
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
