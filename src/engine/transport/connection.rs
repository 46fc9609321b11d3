// SPDX-License-Identifier: Apache-2.0
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
use super::tls::TlsStream;

/// Bytes of the buffer of a connection. A reply of usual size, or the events that have gathered meanwhile, fit in it.
const BUFFER: usize = 16 * 1024;

/// The connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// Received bytes that were not taken yet.
    pub received: BytesMut,
    /// The buffer grew beyond the usual size.
    has_grown: bool,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Whether data, or the end of the connection, was received that the socket no longer has. Never without TLS.
    fn has_decrypted(&mut self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => {
                let state = stream.get_mut().1.process_new_packets();
                state.map_or(true, |state| state.plaintext_bytes_to_read() > 0 || state.peer_has_closed())
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut impl BufMut) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => pin!(stream.read_buf(out)).poll(cx),
            Self::Tls(stream) => pin!(stream.read_buf(out)).poll(cx),
        }
    }
}

impl Connection {
    pub(super) fn plain(stream: TcpStream) -> Self {
        Self { stream: Stream::Plain(stream), received: BytesMut::new(), has_grown: false }
    }

    pub(super) fn secured(stream: TlsStream) -> Self {
        Self { stream: Stream::Tls(Box::new(stream)), received: BytesMut::new(), has_grown: false }
    }

    /// Whether an idle connection can be used: it has no EOF, and no bytes, which would be parsed as the next reply. The runtime sees both
    /// only when it next polls the system for events, which on a busy machine may be after the next request. So the socket is asked.
    pub(super) fn is_quiet(&mut self) -> bool {
        let peeked = recv(self.stream.socket(), &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(rustix::io::Errno::WOULDBLOCK)) && !self.stream.has_decrypted()
    }

    /// Whether an idle connection has EOF or bytes. Otherwise the task is woken then.
    pub(super) fn poll_disturbed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stream.has_decrypted() {
            return Poll::Ready(());
        }
        let socket = self.stream.socket();
        loop {
            ready!(socket.poll_read_ready(cx)).ok();
            // after a read of exactly the bytes that were there, the runtime still takes the socket for readable
            let peek = || Ok(recv(socket, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?);
            match socket.try_io(Interest::READABLE, peek) {
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
        let written = match &mut self.stream {
            Stream::Plain(stream) => ready!(Pin::new(stream).poll_write_vectored(cx, parts))?,
            Stream::Tls(stream) => ready!(Pin::new(stream).poll_write_vectored(cx, parts))?,
        };
        Poll::Ready(if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) })
    }

    /// Sends what TLS has encrypted of the written bytes and the socket has not taken yet.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    /// Receives bytes once, behind those that were not taken. `expected` is the number of bytes that will come at least. Returns how many
    /// came; zero at the end.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>, expected: usize) -> Poll<io::Result<usize>> {
        if !self.stream.has_decrypted() {
            ready!(self.stream.socket().poll_read_ready(cx))?;
        }
        let buffer = expected.clamp(BUFFER, READ_BUFFER);
        self.has_grown |= buffer > BUFFER || self.received.len() > BUFFER / 2;
        self.received.reserve(buffer.saturating_sub(self.received.len()).max(BUFFER / 2));
        self.stream.poll_read(cx, &mut self.received)
    }

    /// Receives at most `most` bytes once, without the buffer.
    pub(super) fn poll_receive_into(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut impl BufMut,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        self.stream.poll_read(cx, &mut out.limit(most))
    }
}
