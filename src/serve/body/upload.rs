//! A client's body on its way upstream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::read_timeout::ReadTimeout;
use crate::budget::BodyBuffer;
use crate::budget::Share;
use crate::engine::client::{Failure, UploadError, innermost};
use crate::error::BoxError;
use crate::error::Error;

/// The body; it must not come too slowly.
#[derive(Debug)]
pub struct Upload {
    body: Incoming,
    patience: ReadTimeout,
    /// What its bytes take of the budget, where they are held.
    share: Option<Share>,
}

impl Upload {
    /// An upload that may keep whoever waits for it waiting for `limit`, which waiting uses up and bytes give back.
    #[must_use]
    pub fn new(body: Incoming, limit: Duration) -> Self {
        Self { body, patience: ReadTimeout::new(limit), share: None }
    }

    /// An upload whose bytes are held, and take that of the budget.
    #[must_use]
    pub fn counted(mut self, share: Option<Share>) -> Self {
        self.share = share;
        self
    }

    /// What has passed since the last bytes was not the client's doing.
    pub fn forgive(&mut self) {
        self.patience.renew();
    }

    /// Reads on, up to `limit` bytes, for nothing: a client that is still sending would not see the answer.
    pub async fn discard(&mut self, limit: usize) {
        let mut left = limit;
        while let Some(Ok(frame)) = self.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }

    /// Reads the upload to its end.
    ///
    /// # Errors
    /// When it is larger than `limit` bytes, comes too slowly, breaks off, or there is no room for it.
    pub async fn read(mut self, limit: u64) -> Result<Bytes, Error> {
        let limit_bytes = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut gathered = BodyBuffer::new(self.share.take(), self.body.size_hint().exact());
        while let Some(frame) = self.frame().await {
            let Ok(piece) = frame.map_err(|error| broken(&error))?.into_data() else { continue };
            if piece.len() > limit_bytes - gathered.len() {
                let message =
                    format!("the request body is larger than {limit} bytes; that of /generate is --max-request-bytes");
                return Err(Error::Client { status: http::StatusCode::PAYLOAD_TOO_LARGE, message });
            }
            if gathered.push(&piece).is_err() {
                gathered.shed();
                // a client that is still sending would not read an answer that says to try again
                self.discard(limit_bytes).await;
                return Err(Failure::from(UploadError::NoRoom).into());
            }
        }
        Ok(gathered.into_bytes())
    }

    /// Counts what has come.
    fn count(&mut self, frame: &Frame<Bytes>) -> Result<(), UploadError> {
        let Some(share) = &mut self.share else { return Ok(()) };
        if share.grow(frame.data_ref().map_or(0, Bytes::len)).is_ok() {
            return Ok(());
        }
        self.share.take().into_iter().for_each(Share::shed);
        Err(UploadError::NoRoom)
    }
}

/// The error for the sender of an upload that is not complete.
#[must_use]
pub fn broken(error: &BoxError) -> Error {
    match error.downcast_ref::<UploadError>() {
        Some(upload) => Failure::from(upload.clone()).into(),
        None => Error::bad_request(error.to_string()),
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let length = |frame: &Frame<Bytes>| frame.data_ref().map_or(0, Bytes::len);
                self.patience.came(frame.as_ref().and_then(|frame| frame.as_ref().ok()).map_or(0, length));
                let frame = frame.map(|frame| {
                    let frame = frame.map_err(|error| UploadError::Broken(innermost(&error)))?;
                    self.count(&frame)?;
                    Ok(frame)
                });
                Poll::Ready(frame)
            }
            Poll::Pending => {
                ready!(self.patience.poll(cx));
                Poll::Ready(Some(Err(UploadError::Slow.into())))
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
