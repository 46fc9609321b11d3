//! An open connection to the upstream, and the bytes that were received over it.

use std::io;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{BufMut, BytesMut};
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt, AsyncWrite, Interest};
use tokio::net::TcpStream;

use super::pool::READ_BUFFER;

/// Bytes of the buffer of a connection. A reply of usual size, or the events that have gathered meanwhile, fit in it.
const BUFFER: usize = 16 * 1024;

/// The connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Received bytes that were not taken yet.
    pub received: BytesMut,
    /// The buffer grew beyond the usual size.
    has_grown: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, received: BytesMut::new(), has_grown: false }
    }

    /// Whether an idle connection can be used: it has no EOF, and no bytes, which would be parsed as the next reply. The runtime sees both
    /// only when it next polls the system for events, which on a busy machine may be after the next request. So the socket is asked.
    pub(super) fn is_quiet(&self) -> bool {
        let peeked = recv(&self.stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(rustix::io::Errno::WOULDBLOCK))
    }

    /// Whether an idle connection has EOF or bytes. Otherwise the task is woken then.
    pub(super) fn poll_disturbed(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.stream.poll_read_ready(cx)).ok();
            // after a read of exactly the bytes that were there, the runtime still takes the socket for readable
            let peek = || Ok(recv(&self.stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?);
            match self.stream.try_io(Interest::READABLE, peek) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return Poll::Ready(()),
            }
        }
    }

    /// Frees a buffer of unusual size before the connection becomes idle.
    pub(super) fn shrink(&mut self) {
        if std::mem::take(&mut self.has_grown) {
            self.received = BytesMut::new();
        }
    }

    /// Writes some bytes of the parts. Returns how many.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts))?;
        Poll::Ready(if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) })
    }

    /// Receives bytes once, behind those that were not taken. `expected` is the number of bytes that will come at least. Returns how many
    /// came; zero at the end.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>, expected: usize) -> Poll<io::Result<usize>> {
        ready!(self.stream.poll_read_ready(cx))?;
        let buffer = expected.clamp(BUFFER, READ_BUFFER);
        self.has_grown |= buffer > BUFFER || self.received.len() > BUFFER / 2;
        self.received.reserve(buffer.saturating_sub(self.received.len()).max(BUFFER / 2));
        pin!(self.stream.read_buf(&mut self.received)).poll(cx)
    }

    /// Receives at most `most` bytes once, without the buffer.
    pub(super) fn poll_receive_into(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut impl BufMut,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        pin!(self.stream.read_buf(&mut out.limit(most))).poll(cx)
    }
}
