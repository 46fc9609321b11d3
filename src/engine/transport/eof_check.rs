//! A stream to the upstream that detects a closed connection before a request is written.
//!
//! The runtime sees an EOF only when it next polls the system for events. On a busy machine that may be after the next request. So the
//! socket itself is checked before a request is written.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Makes a stream check for EOF before the next write. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct EofCheck(Arc<AtomicBool>);

impl EofCheck {
    /// Arms the check, before a request is sent.
    pub(super) fn arm(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The stream. hyper reads from a connection before it accepts a request for it, and returns the request if that read is EOF.
#[derive(Debug)]
pub(super) struct UpstreamStream {
    stream: TcpStream,
    eof_check: EofCheck,
}

impl UpstreamStream {
    pub(super) fn new(stream: TcpStream, eof_check: EofCheck) -> Self {
        Self { stream, eof_check }
    }

    /// Whether the socket has received EOF.
    fn has_ended(&self) -> io::Result<bool> {
        match recv(&self.stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(true),
            // these bytes would be parsed as the reply to the next request
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
            // no bytes read means EOF
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
