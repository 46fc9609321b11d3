//! Restores sessions from the log while the ports are open.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Parts;
use crate::session::Store;
use crate::session::ledger::log::{Directory, Replayed};

/// Restores on a thread that may block and says when that has ended; resolves only when it fails, with a line for the user.
pub(super) async fn restore(parts: Arc<Parts>, directory: Option<Directory>, restored: watch::Sender<bool>) -> String {
    if let Some(directory) = directory {
        let sessions = Arc::clone(&parts.sessions);
        let restoring = move || {
            let replayed = sessions.restore_from(directory);
            if let Ok(Some(replayed)) = &replayed {
                report(&sessions, replayed);
            }
            replayed
        };
        let outcome = tokio::task::spawn_blocking(restoring).await;
        match outcome {
            Ok(Ok(Some(_))) => {
                restored.send_replace(true);
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return format!("--data-dir: {error}"),
            Err(error) => return format!("--data-dir: {error}"),
        }
    }
    std::future::pending().await
}

/// Runs `task` once sessions are restored.
pub(super) fn after(
    restored: &watch::Receiver<bool>,
    task: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let mut restored = restored.clone();
    tokio::spawn(async move {
        if restored.wait_for(|restored| *restored).await.is_ok() {
            task.await;
        }
    })
}

fn report(store: &Store, replayed: &Replayed) {
    replayed.torn.iter().for_each(|torn| tracing::warn!(%torn, "a segment of the log ends early"));
    replayed.damaged.iter().for_each(|damaged| tracing::warn!(%damaged, "a segment of the log is damaged"));
    if replayed.damaged_regions() > 0 {
        let missing = store.missing_turns();
        tracing::warn!(sessions = missing.sessions, names = ?missing.names, "turns of these sessions are missing");
    }
    let (sessions, _) = store.size();
    tracing::info!(sessions, records = replayed.records, segments = replayed.segments, "sessions restored");
}
