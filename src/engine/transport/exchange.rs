// SPDX-License-Identifier: Apache-2.0
//! A request and the head of its reply over one connection, driven by the task that waits for the reply.

use std::future::poll_fn;
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Method, Response, header};
use http_body::Body as _;

use super::client::CallBody;
use super::connection::Connection;
use super::failure::UploadError;
use super::head::{self, MalformedHead, ReplyHead, RequestFraming};
use super::pool::{Origin, Pool};
use super::reply_body::ReplyBody;
use crate::error::BoxError;

/// Why no reply head arrived.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// No connection could be made.
    #[error("cannot connect")]
    Connect(#[source] BoxError),
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The connection ended before the reply.
    #[error("connection closed before message completed")]
    Closed,
    /// The reply is not HTTP.
    #[error(transparent)]
    Malformed(#[from] MalformedHead),
    /// The client's body failed, which is not the upstream's fault.
    #[error(transparent)]
    Upload(#[from] UploadError),
}

/// A request that is being written.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// What is written next: the head or the size of a chunk, data, and the end of a chunk.
    parts: [Bytes; 3],
    body: CallBody,
    framing: RequestFraming,
    /// The body was read to its end.
    is_read: bool,
    /// A byte was written, so the upstream may have seen the request.
    pub has_begun: bool,
}

impl Outgoing {
    pub(super) fn new(method: &Method, target: &str, headers: &HeaderMap, origin: &Origin, body: CallBody) -> Self {
        let framing = if headers.contains_key(header::TRANSFER_ENCODING) {
            RequestFraming::Chunked
        } else if body.is_end_stream() {
            RequestFraming::Empty
        } else {
            // a body of unknown length has a header that makes it chunked
            RequestFraming::Length(body.size_hint().exact().unwrap_or(0))
        };
        let head = head::request(method, target, headers, origin, framing).into();
        let is_read = framing == RequestFraming::Empty;
        let mut outgoing = Self { parts: [head, Bytes::new(), Bytes::new()], body, framing, is_read, has_begun: false };
        if let (CallBody::Whole(body), RequestFraming::Length(_)) = (&mut outgoing.body, framing) {
            // with the head in one write
            outgoing.parts[1] = std::mem::take(body);
            outgoing.is_read = true;
        }
        outgoing
    }

    /// A request that is written.
    fn written() -> Self {
        let body = CallBody::empty();
        Self { parts: Default::default(), body, framing: RequestFraming::Empty, is_read: true, has_begun: true }
    }

    /// Writes the request to its end.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Connection,
    ) -> Poll<Result<(), SendError>> {
        loop {
            while self.parts.iter().any(|part| !part.is_empty()) {
                let slices = [0, 1, 2].map(|at| IoSlice::new(&self.parts[at]));
                let mut written = ready!(connection.poll_write(cx, &slices))?;
                self.has_begun = true;
                for part in &mut self.parts {
                    let length = written.min(part.len());
                    part.advance(length);
                    written -= length;
                }
            }
            ready!(connection.poll_flush(cx))?;
            if self.is_read {
                return Poll::Ready(Ok(()));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()? {
                Some(frame) => {
                    // trailers are for this hop only
                    if let Ok(data) = frame.into_data() {
                        self.add(data)?;
                    }
                }
                None => self.end()?,
            }
        }
    }

    /// Prepares data of the body for writing.
    fn add(&mut self, data: Bytes) -> Result<(), UploadError> {
        match &mut self.framing {
            RequestFraming::Chunked if data.is_empty() => {}
            RequestFraming::Chunked => {
                self.parts = [format!("{:x}\r\n", data.len()).into(), data, Bytes::from_static(b"\r\n")];
            }
            RequestFraming::Empty => {}
            RequestFraming::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or_else(|| broken("longer"))?;
                self.is_read = *left == 0;
                self.parts[0] = data;
            }
        }
        Ok(())
    }

    /// Ends the body.
    fn end(&mut self) -> Result<(), UploadError> {
        self.is_read = true;
        match self.framing {
            RequestFraming::Chunked => self.parts[0] = Bytes::from_static(b"0\r\n\r\n"),
            RequestFraming::Length(1..) => return Err(broken("shorter")),
            RequestFraming::Length(0) | RequestFraming::Empty => {}
        }
        Ok(())
    }
}

/// The error of a body that has not the length that it announced.
fn broken(how: &str) -> UploadError {
    UploadError::Broken(format!("it is {how} than its length"))
}

/// Writes a request and reads the head of its reply. A reply may begin before the request is written.
pub(super) async fn exchange(
    pool: &Arc<Pool>,
    mut connection: Box<Connection>,
    method: &Method,
    outgoing: &mut Outgoing,
) -> Result<Response<ReplyBody>, SendError> {
    let (mut is_written, mut failed) = (false, None);
    let head = poll_fn(|cx| {
        if !is_written {
            match outgoing.poll_write(cx, &mut connection) {
                Poll::Ready(Ok(())) => is_written = true,
                // the upstream may have replied before it closed the connection; a connection that failed ends the read, too
                Poll::Ready(Err(error)) if outgoing.has_begun && !matches!(error, SendError::Upload(_)) => {
                    (is_written, failed) = (true, Some(error));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        poll_head(cx, &mut connection, method)
    })
    .await;
    let ReplyHead { parts, framing, keeps_alive } = match (head, failed.is_some()) {
        (Ok(head), has_failed) => ReplyHead { keeps_alive: head.keeps_alive && !has_failed, ..head },
        (Err(error), _) => return Err(failed.unwrap_or(error)),
    };
    let upload = (!is_written).then(|| Box::new(std::mem::replace(outgoing, Outgoing::written())));
    Ok(Response::from_parts(parts, ReplyBody::new(pool, connection, framing, keeps_alive, upload)))
}

fn poll_head(cx: &mut Context<'_>, connection: &mut Connection, method: &Method) -> Poll<Result<ReplyHead, SendError>> {
    loop {
        if let Some(head) = head::reply(&mut connection.received, method)? {
            return Poll::Ready(Ok(head));
        }
        if ready!(connection.poll_receive(cx, 0))? == 0 {
            return Poll::Ready(Err(SendError::Closed));
        }
    }
}
