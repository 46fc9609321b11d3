// SPDX-License-Identifier: Apache-2.0
//! The listener of a port, with its TLS, and the kernel's queue of connections that are not accepted yet.
#![cfg_attr(
    all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(unsafe_code, reason = "no library reads SO_MEMINFO")
)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Tls;
use crate::metrics::Metrics;

/// Connections that may wait to be accepted. The kernel's limit (`net.core.somaxconn`) may be lower. The standard library uses 128, which
/// a burst of clients overflows: a client whose handshake is dropped retries a second later.
const BACKLOG: u32 = 4096;

/// Binds a listener whose queue is long enough for a burst.
///
/// # Errors
/// When a system call fails.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // as the standard library does: a port can be bound again as soon as its process has ended
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

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
        let Some(dropped) = dropped(listener) else { return };
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
    pub fn url(&self) -> io::Result<String> {
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

/// Returns how many handshakes the kernel has dropped because the queue of this listener was full; `None` if it is not known.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn dropped(listener: &TcpListener) -> Option<u64> {
    use std::os::fd::AsRawFd;

    /// From asm-generic/socket.h; libc does not define it.
    const SO_MEMINFO: libc::c_int = 55;
    /// `SK_MEMINFO_DROPS` and `SK_MEMINFO_VARS` from linux/sock_diag.h.
    const DROPS: usize = 8;
    const COUNTERS: usize = 9;

    let mut counters = [0_u32; COUNTERS];
    let mut length = libc::socklen_t::try_from(size_of_val(&counters)).ok()?;
    // SAFETY: the descriptor is open while `listener` is borrowed. The kernel writes at most `length` bytes, which is the size of
    // `counters`. Every bit pattern is a valid u32.
    let result = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            counters.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    (result == 0 && length as usize == size_of_val(&counters)).then(|| u64::from(counters[DROPS]))
}

/// Returns how many handshakes the kernel has dropped because the queue of this listener was full; `None` if it is not known.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn dropped(_: &TcpListener) -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn burst_of_connections_fits_into_the_queue() {
        // more than the 128 of the standard library, and fewer than the descriptors that a process may open
        const BURST: usize = 500;
        let max = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse::<usize>().unwrap();
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..BURST.min(max) {
            clients.push(tokio::net::TcpStream::connect(addr).await.unwrap());
        }
        assert_eq!(dropped(&listener), Some(0), "all clients are connected, and none is accepted yet");
    }

    #[tokio::test]
    async fn dropped_handshakes_are_counted() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let addr = listener.local_addr().unwrap();
        assert_eq!(dropped(&listener), Some(0));
        let clients: Vec<_> = (0..8).map(|_| tokio::spawn(tokio::net::TcpStream::connect(addr))).collect();
        while dropped(&listener) == Some(0) {
            tokio::task::yield_now().await;
        }
        assert!(dropped(&listener).is_some_and(|dropped| dropped > 0));
        clients.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
