// SPDX-License-Identifier: Apache-2.0
//! Writes to a client: a write timeout, and a close that does not lose the end of the reply.
//!
//! A reply that the client does not read holds memory while its connection lives, so a connection whose client reads nothing for some time
//! is closed. A kernel that closes a socket with unread bytes sends a reset, which discards data that the client has not read yet. A client
//! that is still sending would then get a broken pipe instead of the error reply. So unread bytes are read and discarded before the close.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::last_reply::Replies;

/// How long a client may send after its last reply.
const LINGER: Duration = Duration::from_secs(5);

/// Bytes that a client may send after its last reply.
const LINGER_BYTES: usize = 64 << 20;

/// A stream with a write timeout and a lingering close.
#[derive(Debug)]
pub(super) struct OutgoingStream<S> {
    stream: S,
    /// The time in which the client must read some of the data that waits for it.
    timeout: Duration,
    /// Learns whether bytes wait until the client reads.
    replies: Replies,
    /// The timer of a write that is pending.
    stalled: Option<Pin<Box<Sleep>>>,
    /// The end of lingering, and how many bytes the client may still send.
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> OutgoingStream<S> {
    /// Wraps `stream`. A write that is pending for `timeout` fails.
    pub(super) fn new(stream: S, timeout: Duration, replies: Replies) -> Self {
        Self { stream, timeout, replies, stalled: None, lingering: None }
    }

    /// Applies the timeout to the result of a write.
    fn with_timeout<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.replies.set_blocked(written.is_pending());
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> OutgoingStream<S> {
    /// Reads and discards until the client stops sending or a limit is reached.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; 8 * 1024];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            let read = Pin::new(&mut self.stream).poll_read(cx, &mut buf);
            match (&mut self.lingering, read) {
                // the client is not sending, so the close loses nothing
                (None, Poll::Pending) => return Poll::Ready(()),
                (Some((end, _)), Poll::Pending) => return end.as_mut().poll(cx),
                (_, Poll::Ready(Err(_))) => return Poll::Ready(()),
                (_, Poll::Ready(Ok(()))) if buf.filled().is_empty() => return Poll::Ready(()),
                (lingering, Poll::Ready(Ok(()))) => {
                    let limits = || (Box::pin(tokio::time::sleep(LINGER)), LINGER_BYTES);
                    let (end, room) = lingering.get_or_insert_with(limits);
                    *room = room.saturating_sub(buf.filled().len());
                    if *room == 0 || end.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(());
                    }
                }
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for OutgoingStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for OutgoingStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.with_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.with_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.with_timeout(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
            ready!(self.with_timeout(cx, shut))?;
        }
        self.poll_linger(cx).map(Ok)
    }
}
