//! A reply body that splits large messages into small frames.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tonic::Status;
use tonic::body::Body;

/// The maximum bytes of a frame, as in a reply over HTTP.
const FRAME: usize = 64 * 1024;

/// A body in small frames. The connection polls for the next frame once it has sent the last one. So it polls for the data after a message
/// only when the client has received nearly all of the message.
pub(super) struct ChunkedMessages {
    body: Body,
    rest: Bytes,
}

impl ChunkedMessages {
    pub(super) fn new(body: Body) -> Self {
        Self { body, rest: Bytes::new() }
    }
}

impl http_body::Body for ChunkedMessages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let length = self.rest.len().min(FRAME);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}
