//! Where connections come in: a listener, and the TLS that it speaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Tls, listen_queue};
use crate::metrics::Metrics;

/// A port.
#[derive(Debug)]
pub struct Listener {
    /// Accepts its connections.
    pub listener: TcpListener,
    /// What they begin with; `None` is plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Counts the handshakes that the system dropped because the listener's queue was full.
    pub drops: Option<ListenDrops>,
}

/// A counter of dropped handshakes.
#[derive(Debug)]
pub struct ListenDrops {
    metrics: Arc<Metrics>,
    /// Those that were counted.
    counted: AtomicU64,
}

impl ListenDrops {
    /// None yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, counted: AtomicU64::new(0) }
    }

    /// Counts what was dropped since the last look. Connections are waiting when some are dropped, so a look behind each accept misses none.
    fn count(&self, listener: &TcpListener) {
        let Some(dropped) = listen_queue::dropped(listener) else { return };
        let before = self.counted.swap(dropped, Ordering::Relaxed);
        let dropped = dropped.saturating_sub(before);
        if dropped > 0 {
            self.metrics.shed.with_label_values(&["listen_queue"]).inc_by(dropped);
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self { listener, tls: None, drops: None }
    }
}

impl Listener {
    /// Its address as a URL.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn url(&self) -> std::io::Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.listener.local_addr()?))
    }

    /// The next connection, once it may be one of those at once; `None` where there was none after all.
    pub(super) async fn accept(&self, permits: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
        let permit = Arc::clone(permits).acquire_owned().await.ok()?;
        match self.listener.accept().await {
            Ok((stream, _)) => {
                if let Some(drops) = &self.drops {
                    drops.count(&self.listener);
                }
                // small writes of a stream must not wait for the reader's delayed acknowledgement
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY");
                }
                Some((stream, permit))
            }
            Err(error) => {
                // the usual cause is a lack of file descriptors: trying again at once would spin
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                None
            }
        }
    }
}
