//! A client's body on its way upstream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

use super::{BoxError, Idle};
use crate::error::Error;
use crate::sglang::client::{Failure, UploadError, innermost};

/// The body; it must not pause for longer than a limit.
#[derive(Debug)]
pub struct Upload {
    body: Incoming,
    idle: Idle,
}

impl Upload {
    /// An upload that may pause for `limit`.
    #[must_use]
    pub fn new(body: Incoming, limit: Duration) -> Self {
        Self { body, idle: Idle::new(limit) }
    }

    /// What has passed since the last bytes was not the client's doing.
    pub fn forgive(&mut self) {
        self.idle.reset();
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
    /// When it is larger than `limit` bytes, pauses, or breaks off.
    pub async fn read(self, limit: u64) -> Result<Bytes, Error> {
        let limit_bytes = usize::try_from(limit).unwrap_or(usize::MAX);
        match Limited::new(self, limit_bytes).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Error::Client {
                status: http::StatusCode::PAYLOAD_TOO_LARGE,
                message: format!("the request body is larger than {limit} bytes; see --max-request-bytes of tokentap"),
            }),
            Err(error) => Err(broken(&error)),
        }
    }
}

/// What the sender of an upload is told that did not come whole.
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
                self.idle.reset();
                let broken = |error: hyper::Error| UploadError::Broken(innermost(&error)).into();
                Poll::Ready(frame.map(|frame| frame.map_err(broken)))
            }
            Poll::Pending => {
                ready!(self.idle.poll(cx));
                Poll::Ready(Some(Err(UploadError::Paused.into())))
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
