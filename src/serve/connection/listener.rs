//! The listener of a port, with its TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Tls, listen_queue};
use crate::metrics::Metrics;

/// The listener of a port.
#[derive(Debug)]
pub struct Listener {
    /// Accepts the connections.
    pub listener: TcpListener,
    /// The TLS of the connections; `None` for plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Counts the handshakes that the kernel dropped because the listener's queue was full.
    pub drops: Option<ListenDrops>,
}

/// A counter of dropped handshakes.
#[derive(Debug)]
pub struct ListenDrops {
    metrics: Arc<Metrics>,
    /// The kernel's count at the last read.
    counted: AtomicU64,
}

impl ListenDrops {
    /// Creates a counter at zero.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, counted: AtomicU64::new(0) }
    }

    /// Adds the handshakes that were dropped since the last call. The queue is full when the kernel drops a handshake, so an accept
    /// follows, and a call after each accept misses none.
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
    /// Returns its address as a URL.
    ///
    /// # Errors
    /// When the local address cannot be read.
    pub fn url(&self) -> std::io::Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.listener.local_addr()?))
    }

    /// Waits for a permit and accepts the next connection; `None` if accepting fails.
    pub(super) async fn accept(&self, permits: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
        let permit = Arc::clone(permits).acquire_owned().await.ok()?;
        match self.listener.accept().await {
            Ok((stream, _)) => {
                if let Some(drops) = &self.drops {
                    drops.count(&self.listener);
                }
                // small writes of a stream must not wait for the client's delayed acknowledgement
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY");
                }
                Some((stream, permit))
            }
            Err(error) => {
                // the usual cause is a lack of file descriptors: retrying at once would spin
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                None
            }
        }
    }
}
