//! The body of a stream that has no end of its own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;

use crate::serve::connection::Phase;

/// A body that ends when the server does: whoever watches would hold up the end until it is cut.
pub(super) struct StreamShutdown {
    body: Body,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The server ends.
    ending: bool,
    ended: bool,
}

impl StreamShutdown {
    pub(super) fn new(body: Body, mut end: watch::Receiver<Phase>) -> Self {
        let end = Box::pin(async move {
            // whoever tells has gone when this fails, and so has the server
            let _ = end.wait_for(|phase| *phase >= Phase::Draining).await;
        });
        Self { body, end, ending: false, ended: false }
    }
}

impl http_body::Body for StreamShutdown {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // what is there already goes first, also what came with the end, after the body had been asked
        let mut frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending() && !self.ending && self.end.as_mut().poll(cx).is_ready() {
            self.ending = true;
            frame = Pin::new(&mut self.body).poll_frame(cx);
        }
        if frame.is_pending() && self.ending {
            self.ended = true;
            let mut trailers = HeaderMap::new();
            Status::unavailable("tokentap is stopping").add_header(&mut trailers)?;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }
}
