// SPDX-License-Identifier: Apache-2.0
//! Restores sessions from the log while the ports are open.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::serve::proxy::Proxy;
use crate::session::Sessions;
use crate::session::ledger::log::{Directory, ReplaySummary};

/// Restores the sessions on a blocking thread, and sets `restored` at the end. Resolves only on failure, with a line for the user.
pub(super) async fn restore(proxy: Arc<Proxy>, directory: Option<Directory>, restored: watch::Sender<bool>) -> String {
    if let Some(directory) = directory {
        let restoring = move || {
            let (sessions, metrics) = (&proxy.sessions, &proxy.metrics);
            let begin = Instant::now();
            metrics.log_restoring.set(1);
            let replayed = sessions.restore_from(directory, &proxy.generator.policy, |read| {
                metrics.log_restored_bytes.set(i64::try_from(read).unwrap_or(i64::MAX));
            });
            if let Ok(Some(replayed)) = &replayed {
                metrics.log_damaged.inc_by(replayed.damaged_regions());
                metrics.log_restore_seconds.set(begin.elapsed().as_secs_f64());
                metrics.log_restoring.set(0);
                report(sessions, replayed);
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

/// Spawns `task`, which starts once the sessions are restored.
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

/// Logs the result of the restoration.
fn report(sessions: &Sessions, replayed: &ReplaySummary) {
    replayed.torn.iter().for_each(|torn| tracing::warn!(%torn, "a segment of the log ends early"));
    replayed.damaged.iter().for_each(|damaged| tracing::warn!(%damaged, "a segment of the log is damaged"));
    if replayed.damaged_regions() > 0 {
        let missing = sessions.missing_turns();
        tracing::warn!(
            sessions = missing.sessions,
            names = missing.names.join(", "),
            "turns of these sessions are missing"
        );
    }
    let (sessions, _) = sessions.size();
    tracing::info!(sessions, records = replayed.records, segments = replayed.segments, "sessions restored");
}
