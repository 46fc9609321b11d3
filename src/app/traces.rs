// SPDX-License-Identifier: Apache-2.0
//! Runs the exporter of spans, and ends it.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::traces::Exporter;

/// How long the end of the process waits for the collector.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// The exporter that runs.
pub(super) struct Exporting {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Exporting {
    pub(super) fn start(exporter: Exporter) -> Self {
        let (stop, stopped) = watch::channel(false);
        Self { stop, task: tokio::spawn(exporter.run(stopped)) }
    }

    /// Sends the spans that are still queued, for a limited time.
    pub(super) async fn finish(self) {
        self.stop.send_replace(true);
        if timeout(FLUSH_TIMEOUT, self.task).await.is_err() {
            tracing::warn!("ended before the collector of --otlp had taken all spans");
        }
    }
}
