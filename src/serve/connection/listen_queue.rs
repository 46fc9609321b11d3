//! The kernel's queue of connections that this process has not accepted yet: its length, and a count of handshakes that did not fit.
#![cfg_attr(
    all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(unsafe_code, reason = "no library reads SO_MEMINFO")
)]

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

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

/// Returns how many handshakes the kernel has dropped because the queue of this listener was full; `None` if it is not known.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn dropped(listener: &TcpListener) -> Option<u64> {
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
pub(super) fn dropped(_: &TcpListener) -> Option<u64> {
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
