// SPDX-License-Identifier: Apache-2.0
//! Bodies of replies: one splits large messages into small frames, and one ends an endless stream when the server drains.

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

/// A body that ends when the server drains. Without it, an endless stream would delay the drain until its time limit.
pub(super) struct StreamShutdown {
    body: Body,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The server drains.
    ending: bool,
    ended: bool,
}

impl StreamShutdown {
    pub(super) fn new(body: Body, mut phase: watch::Receiver<Phase>) -> Self {
        let draining = Box::pin(async move {
            // an error means that the server has ended
            let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
        });
        Self { body, draining, ending: false, ended: false }
    }
}

impl http_body::Body for StreamShutdown {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // frames that are ready are sent first. The body is polled again after the drain began, so that no frame is lost.
        let mut frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending() && !self.ending && self.draining.as_mut().poll(cx).is_ready() {
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
