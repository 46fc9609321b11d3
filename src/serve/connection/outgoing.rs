//! What goes out to a client: it has to be taken in time, and the end of it is not lost.
//!
//! A reply that nobody reads holds memory for as long as its connection lives, so a connection ends of which nothing was taken for a
//! while. And a system that closes a socket with unread bytes in it sends a reset, which destroys what the client has not read yet: who
//! was still sending would see a broken pipe instead of the answer that says why. So what is already there is read first, for nothing.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::last_reply::Replies;

/// How long a connection that has been answered for good may go on sending.
const LINGER: Duration = Duration::from_secs(5);

/// How much.
const LINGER_BYTES: usize = 64 << 20;

/// A stream whose other side has to read.
#[derive(Debug)]
pub(super) struct Outgoing<S> {
    stream: S,
    /// How long nothing may be taken.
    patience: Duration,
    /// Is told when bytes wait to be taken.
    replies: Replies,
    /// Since when nothing was.
    stalled: Option<Pin<Box<Sleep>>>,
    /// The end of lingering, and how many bytes may still come.
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Outgoing<S> {
    /// A stream of which some must be taken within `patience`, whenever there is something to be taken.
    pub(super) fn new(stream: S, patience: Duration, replies: Replies) -> Self {
        Self { stream, patience, replies, stalled: None, lingering: None }
    }

    /// A write that nothing comes of for too long has failed.
    fn watched<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.replies.set_blocked(written.is_pending());
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> Outgoing<S> {
    /// Reads what is there, and what comes while something is there.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; 8 * 1024];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            let read = Pin::new(&mut self.stream).poll_read(cx, &mut buf);
            match (&mut self.lingering, read) {
                // it had sent all it had: nothing that it has been told can be lost
                (None, Poll::Pending) => return Poll::Ready(()),
                (Some((end, _)), Poll::Pending) => return end.as_mut().poll(cx),
                (_, Poll::Ready(Err(_))) => return Poll::Ready(()),
                (_, Poll::Ready(Ok(()))) if buf.filled().is_empty() => return Poll::Ready(()),
                (lingering, Poll::Ready(Ok(()))) => {
                    let begun = || (Box::pin(tokio::time::sleep(LINGER)), LINGER_BYTES);
                    let (end, room) = lingering.get_or_insert_with(begun);
                    *room = room.saturating_sub(buf.filled().len());
                    if *room == 0 || end.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(());
                    }
                }
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Outgoing<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Outgoing<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watched(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watched(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
            ready!(self.watched(cx, shut))?;
        }
        self.poll_linger(cx).map(Ok)
    }
}
