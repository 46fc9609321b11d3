// SPDX-License-Identifier: Apache-2.0
//! The body of a reply, read from its connection by the task that needs it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::connection::Connection;
use super::exchange::{Outgoing, SendError};
use super::failure::{Failure, UploadError, innermost};
use super::framing::{Framing, MalformedBody};
use super::pool::Pool;

/// Data of this size, in bytes, is handed out in the buffer that received it. Less is copied, because it would keep the whole buffer in use.
const LARGE_DATA: usize = 8 * 1024;

/// A buffer that grows.
pub(crate) trait GrowingBuffer: BufMut {
    /// Grows once for this many bytes, which are then added in pieces.
    fn reserve(&mut self, bytes: usize);
}

impl GrowingBuffer for Vec<u8> {
    fn reserve(&mut self, bytes: usize) {
        Vec::reserve(self, bytes);
    }
}

impl GrowingBuffer for BytesMut {
    fn reserve(&mut self, bytes: usize) {
        BytesMut::reserve(self, bytes);
    }
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The connection ended.
    #[error("end of file before message length reached")]
    Closed,
    /// The framing of the body is invalid.
    #[error("{0}")]
    Malformed(&'static str),
    /// The client's body, which was still being sent, failed.
    #[error(transparent)]
    Upload(#[from] UploadError),
}

impl From<ReplyError> for Failure {
    fn from(error: ReplyError) -> Self {
        match error {
            ReplyError::Upload(error) => error.into(),
            error => Self::Broken(innermost(&error)),
        }
    }
}

/// The body. Its connection returns to the pool as soon as its last byte was read. Dropping it before that closes the connection.
#[derive(Debug)]
pub struct ReplyBody {
    /// `None` once the body has ended or failed.
    connection: Option<Box<Connection>>,
    framing: Framing,
    keeps_alive: bool,
    pool: Arc<Pool>,
    /// The rest of the request, if the reply began before it was written.
    upload: Option<Box<Outgoing>>,
    trailers: Option<Box<HeaderMap>>,
    /// Why the rest of the body cannot be read.
    malformed: Option<&'static str>,
}

impl ReplyBody {
    pub(super) fn new(
        pool: &Arc<Pool>,
        connection: Box<Connection>,
        framing: Framing,
        keeps_alive: bool,
        upload: Option<Box<Outgoing>>,
    ) -> Self {
        let connection = Some(connection);
        let pool = Arc::clone(pool);
        let mut body = Self { connection, framing, keeps_alive, pool, upload, trailers: None, malformed: None };
        if body.framing.has_ended() {
            body.end();
        }
        body
    }

    /// Appends the data that arrived, as far as it fits into `out` where it is read without a copy, or waits for some. `None` at the end.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut impl GrowingBuffer,
    ) -> Poll<Option<Result<(), ReplyError>>> {
        let read = ready!(self.poll_data(cx, out));
        if read.is_err() {
            self.connection = None;
        }
        Poll::Ready(read.map(|has_data| has_data.then_some(())).transpose())
    }

    /// Appends data; false at the end.
    fn poll_data(&mut self, cx: &mut Context<'_>, out: &mut impl GrowingBuffer) -> Poll<Result<bool, ReplyError>> {
        loop {
            if self.take_received(out) {
                return Poll::Ready(Ok(true));
            }
            self.check()?;
            let left = self.framing.data();
            let is_buffered = self.upload.is_some() || matches!(self.framing, Framing::Chunked(_));
            let Some(connection) = &mut self.connection else { return Poll::Ready(Ok(false)) };
            if is_buffered || out.chunk_mut().len() < left.min(LARGE_DATA) {
                ready!(self.poll_receive(cx))?;
                continue;
            }
            // nothing is buffered, so the data needs no second copy
            let length = ready!(connection.poll_receive_into(cx, out, left))?;
            if length == 0 {
                self.end_of_connection()?;
                continue;
            }
            self.framing.take(length);
            if self.framing.has_ended() {
                self.end();
            }
            return Poll::Ready(Ok(true));
        }
    }

    /// Appends the buffered data. Returns whether there was any.
    fn take_received(&mut self, out: &mut impl GrowingBuffer) -> bool {
        let mut is_read = false;
        while let Some(length) = self.buffered()
            && let Some(connection) = &mut self.connection
        {
            if !is_read {
                // the framing of chunks takes little of what follows
                let is_chunked = matches!(self.framing, Framing::Chunked(_));
                out.reserve(if is_chunked { connection.received.len() } else { length });
            }
            out.put_slice(&connection.received[..length]);
            connection.received.advance(length);
            self.framing.take(length);
            is_read = true;
        }
        is_read
    }

    /// The length of the data at the start of the buffer, after the framing before it. `None` if more must be received, and at the end.
    fn buffered(&mut self) -> Option<usize> {
        // the framing cannot be read again from where it failed
        if self.malformed.is_some() {
            return None;
        }
        let connection = self.connection.as_mut()?;
        match self.framing.skip(&connection.received) {
            Ok(skipped) => connection.received.advance(skipped),
            Err(MalformedBody(what)) => {
                self.malformed = Some(what);
                return None;
            }
        }
        if self.framing.has_ended() {
            self.end();
            return None;
        }
        Some(self.framing.data().min(connection.received.len())).filter(|length| *length > 0)
    }

    /// Fails if the next bytes are malformed.
    fn check(&mut self) -> Result<(), ReplyError> {
        self.malformed.take().map_or(Ok(()), |what| Err(ReplyError::Malformed(what)))
    }

    /// Receives more bytes, and sends more of the request.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ReplyError>> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(Ok(())) };
        if let Some(upload) = &mut self.upload {
            match upload.poll_write(cx, connection) {
                Poll::Ready(Err(SendError::Upload(error))) => return Poll::Ready(Err(error.into())),
                // the upstream may have closed its receiving side
                Poll::Ready(Err(_)) => (self.upload, self.keeps_alive) = (None, false),
                Poll::Ready(Ok(())) => self.upload = None,
                Poll::Pending => {}
            }
        }
        let expected = if let Framing::UntilClose = self.framing { 0 } else { self.framing.data() };
        if ready!(connection.poll_receive(cx, expected))? == 0 {
            self.end_of_connection()?;
        }
        Poll::Ready(Ok(()))
    }

    /// The upstream has closed the connection.
    fn end_of_connection(&mut self) -> Result<(), ReplyError> {
        self.connection = None;
        if let Framing::UntilClose = self.framing { Ok(()) } else { Err(ReplyError::Closed) }
    }

    /// Ends the body. The connection returns to the pool if it can be used again.
    fn end(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        match self.framing.trailers() {
            Ok(trailers) => self.trailers = trailers.map(Box::new),
            Err(MalformedBody(what)) => {
                self.malformed = Some(what);
                return;
            }
        }
        // what follows the reply would be parsed as the next one
        if self.keeps_alive && self.upload.is_none() && connection.received.is_empty() {
            self.pool.put(connection);
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ReplyError>>> {
        loop {
            if let Some(length) = self.buffered()
                && let Some(connection) = &mut self.connection
            {
                let data = if length >= LARGE_DATA {
                    let data = connection.received.split_to(length).freeze();
                    self.framing.take(length);
                    // the end of the body may be there, too
                    self.buffered();
                    data
                } else {
                    let mut data = Vec::new();
                    self.take_received(&mut data);
                    data.into()
                };
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            self.check()?;
            if self.connection.is_none() {
                let trailers = self.trailers.take().map(|trailers| Ok(Frame::trailers(*trailers)));
                return Poll::Ready(trailers);
            }
            ready!(self.poll_receive(cx))?;
        }
    }
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = ReplyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ReplyError>>> {
        let frame = ready!(self.poll_next(cx));
        if matches!(frame, Some(Err(_))) {
            self.connection = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.connection.is_none() && self.trailers.is_none() && self.malformed.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.framing {
            Framing::Length(left) => SizeHint::with_exact(left),
            Framing::Chunked(_) | Framing::UntilClose => SizeHint::default(),
        }
    }
}
