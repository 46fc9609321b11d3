//! A stream to the upstream on which a request is written only if the other side has not closed it.
//!
//! The runtime learns of the end of a connection when it next asks the system for events, which on a busy machine is later than the
//! next request. So before a request is written the socket itself is asked.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Asks a stream to look for the end of its connection before it is next written to. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct EofCheck(Arc<AtomicBool>);

impl EofCheck {
    /// A request is about to be sent.
    pub(super) fn arm(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The stream. hyper reads a connection before it takes a request for it, and returns the request if that read has ended.
#[derive(Debug)]
pub(super) struct UpstreamStream {
    stream: TcpStream,
    eof_check: EofCheck,
}

impl UpstreamStream {
    pub(super) fn new(stream: TcpStream, eof_check: EofCheck) -> Self {
        Self { stream, eof_check }
    }

    /// Whether the socket has received the end of the connection.
    fn has_ended(&self) -> io::Result<bool> {
        match recv(&self.stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(true),
            // it would be taken for the reply to the next request
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "the upstream sent a reply to no request")),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() && self.eof_check.0.load(Ordering::Acquire) && self.has_ended()? {
            // nothing was read: the end
            return Poll::Ready(Ok(()));
        }
        read
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.eof_check.0.store(false, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.eof_check.0.store(false, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
