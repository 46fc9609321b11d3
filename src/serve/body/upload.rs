// SPDX-License-Identifier: Apache-2.0
//! The body of a client's request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::read_timeout::ReadTimeout;
use crate::budget::{BodyBuffer, Share};
use crate::config::LimitConfig;
use crate::engine::transport::failure::{Failure, UploadError, innermost};
use crate::error::Error;

/// The body, with a read timeout.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Incoming,
    timeout: ReadTimeout,
    /// The share of the memory budget that its bytes take, if they are buffered.
    share: Option<Share>,
}

impl Upload {
    /// Creates an upload. It fails once the reader has waited for `limit` in total; received bytes restore a part of that time.
    pub(crate) fn new(body: Incoming, limit: Duration) -> Self {
        Self { body, timeout: ReadTimeout::new(limit), share: None }
    }

    /// Counts the bytes, which the reader buffers, against the memory budget.
    pub(crate) fn with_share(mut self, share: Option<Share>) -> Self {
        self.share = share;
        self
    }

    /// Restarts the read timeout: tokentap, not the client, caused the delay since the last bytes.
    pub(crate) fn reset_timeout(&mut self) {
        self.timeout.reset();
    }

    /// Reads and discards up to `limit` bytes. A client that is still sending would not read the reply.
    pub(crate) async fn discard(&mut self, limit: usize) {
        let mut remaining = limit;
        while let Some(Ok(frame)) = self.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match remaining.checked_sub(length) {
                Some(rest) => remaining = rest,
                None => return,
            }
        }
    }

    /// Reads the upload to its end.
    ///
    /// # Errors
    /// When it is larger than `limit` bytes, arrives too slowly, is cut off, or does not fit into the memory budget.
    async fn read(mut self, limit: u64) -> Result<Bytes, Error> {
        let limit_bytes = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut buffer = BodyBuffer::new(self.share.take(), self.body.size_hint().exact());
        while let Some(frame) = self.frame().await {
            let Ok(data) = frame.map_err(upload_error)?.into_data() else { continue };
            if data.len() > limit_bytes - buffer.len() {
                let message = format!(
                    "the request body is larger than {limit} bytes; --max-request-bytes sets the limit of requests that generate"
                );
                return Err(Error::TooLarge { message });
            }
            if buffer.push(&data).is_err() {
                buffer.shed();
                // a client that is still sending would not read the reply, which asks it to retry
                self.discard(limit_bytes).await;
                return Err(upload_error(UploadError::NoRoom));
            }
        }
        Ok(buffer.into_bytes())
    }

    /// Counts a frame against the memory budget.
    fn count(&mut self, frame: &Frame<Bytes>) -> Result<(), UploadError> {
        let Some(share) = &mut self.share else { return Ok(()) };
        if share.grow(frame.data_ref().map_or(0, Bytes::len)).is_ok() {
            return Ok(());
        }
        self.share.take().into_iter().for_each(Share::shed);
        Err(UploadError::NoRoom)
    }
}

/// Reads a request body of at most `most` bytes. `share` counts its bytes.
///
/// # Errors
/// When it is larger, arrives too slowly, is cut off, or does not fit into the memory budget.
pub(crate) async fn read_body(
    body: Incoming,
    limits: &LimitConfig,
    share: Option<Share>,
    most: u64,
) -> Result<Bytes, Error> {
    Upload::new(body, limits.client_body_timeout).with_share(share).read(most).await
}

/// Returns the error for the client whose upload failed.
pub(crate) fn upload_error(error: UploadError) -> Error {
    Failure::from(error).into()
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let length = |frame: &Frame<Bytes>| frame.data_ref().map_or(0, Bytes::len);
                self.timeout.record(frame.as_ref().and_then(|frame| frame.as_ref().ok()).map_or(0, length));
                let frame = frame.map(|frame| {
                    let frame = frame.map_err(|error| UploadError::Broken(innermost(&error)))?;
                    self.count(&frame)?;
                    Ok(frame)
                });
                Poll::Ready(frame)
            }
            Poll::Pending => {
                ready!(self.timeout.poll(cx));
                Poll::Ready(Some(Err(UploadError::Slow)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
