//! The queue of connections that the system has accepted and this process has not: its length, and what did not fit in.
#![cfg_attr(
    all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(unsafe_code, reason = "no library reads SO_MEMINFO")
)]

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Connections that may wait to be accepted; the system's own limit (`net.core.somaxconn`) may be lower. The standard library asks for
/// 128, which a burst of clients overflows: each client whose handshake is dropped tries again a second later.
const BACKLOG: u32 = 4096;

/// Binds a listener whose queue is long enough for a burst.
///
/// # Errors
/// When the system refuses.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // as the standard library does: a port is free again as soon as its process has ended
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// How many handshakes the system has dropped because the queue of this listener was full; `None` where it does not say.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn dropped(listener: &TcpListener) -> Option<u64> {
    use std::os::fd::AsRawFd;

    /// Of asm-generic/socket.h; libc does not have it.
    const SO_MEMINFO: libc::c_int = 55;
    /// `SK_MEMINFO_DROPS` of linux/sock_diag.h, and how many counters there are.
    const DROPS: usize = 8;
    const COUNTERS: usize = 9;

    let mut counters = [0_u32; COUNTERS];
    let mut length = libc::socklen_t::try_from(size_of_val(&counters)).ok()?;
    // SAFETY: the descriptor is open for as long as `listener` is borrowed; the kernel writes at most `length` bytes, the size of
    // `counters`, and all bit patterns are numbers.
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

/// How many handshakes the system has dropped because the queue of this listener was full; `None` where it does not say.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) fn dropped(_: &TcpListener) -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_burst_fits_into_the_queue() {
        // the hundreds that a process may open everywhere are more than the 128 of the standard library
        const BURST: usize = 500;
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse::<usize>().unwrap();
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..BURST.min(most) {
            clients.push(tokio::net::TcpStream::connect(addr).await.unwrap());
        }
        assert_eq!(dropped(&listener), Some(0), "none of them is accepted yet, and all are connected");
    }

    #[tokio::test]
    async fn handshakes_that_do_not_fit_into_the_queue_are_counted() {
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
