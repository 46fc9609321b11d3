// SPDX-License-Identifier: Apache-2.0
//! The timeout of the first head of a connection.
//!
//! hyper waits without a timer until it knows the version, and its only header timeout is also the idle timeout. So the first head has a
//! separate timeout here. A connection that sends nothing, or sends byte by byte, does not hold its permit forever.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::activity::Streams;

/// The HTTP/2 connection preface. Its first half ends like an HTTP/1 head.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The position in an HTTP/1 head. Lines end in CRLF or in bare LF, because hyper accepts both (RFC 9112, 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeadLine {
    /// Before the request line, where empty lines are skipped.
    Before,
    /// In a line, after its first character.
    Within,
    /// At the start of a line after the request line, or after a CR there.
    Start,
}

/// A stream whose first head must be complete before a deadline.
#[derive(Debug)]
pub(super) struct HeadTimeout<S> {
    stream: S,
    /// The length of the HTTP/2 preface received so far; `None` if the connection began with something else.
    preface: Option<usize>,
    line: HeadLine,
    /// `None` once the first head is complete.
    deadline: Option<Pin<Box<Sleep>>>,
    streams: Streams,
}

impl<S> HeadTimeout<S> {
    /// Wraps `stream`. Reports the HTTP/2 preface to `streams`.
    pub(super) fn new(stream: S, deadline: Instant, streams: Streams) -> Self {
        let deadline = Some(Box::pin(tokio::time::sleep_until(deadline)));
        Self { stream, preface: Some(0), line: HeadLine::Before, deadline, streams }
    }

    /// Whether the first head ends within these bytes.
    fn ends_in(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.preface = self.preface.filter(|at| PREFACE[*at] == *byte).map(|at| at + 1);
            if let Some(at) = self.preface {
                if at == PREFACE.len() {
                    self.streams.preface_received();
                    return true;
                }
                continue;
            }
            self.line = match (self.line, *byte) {
                (HeadLine::Start, b'\n') => return true,
                (HeadLine::Within, b'\n') => HeadLine::Start,
                (line @ (HeadLine::Before | HeadLine::Start), b'\r') => line,
                (HeadLine::Before, b'\n') => HeadLine::Before,
                _ => HeadLine::Within,
            };
        }
        false
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(deadline) = &mut self.deadline else { return read };
        if read.is_pending() {
            return deadline.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        if self.ends_in(&buf.filled()[before..]) {
            self.deadline = None;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
