// SPDX-License-Identifier: Apache-2.0
//! The body of every reply, with the resources that must live until its last byte.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use crate::error::BoxError;
use crate::serve::access_log::{AccessRecord, Cut};
use crate::serve::body::Body;
use crate::serve::grpc;

/// The body of a reply over HTTP or gRPC. It holds the request's permit and its access record.
#[derive(Debug)]
pub(crate) struct ReplyBody {
    // declared first, so that it is dropped first and reports to the access record
    content: ProtocolBody,
    _permit: Option<OwnedSemaphorePermit>,
    record: Option<AccessRecord>,
    ends_connection: bool,
    /// Whether it has returned its last frame or an error.
    is_over: bool,
}

#[derive(Debug)]
enum ProtocolBody {
    Http(Body),
    Grpc(tonic::body::Body),
}

impl ReplyBody {
    /// Wraps the body of a reply over HTTP.
    pub(crate) fn http(body: Body) -> Self {
        Self::new(ProtocolBody::Http(body))
    }

    /// Wraps the body of a reply over gRPC.
    pub(crate) fn grpc(body: tonic::body::Body) -> Self {
        Self::new(ProtocolBody::Grpc(body))
    }

    fn new(content: ProtocolBody) -> Self {
        Self { content, record: None, _permit: None, ends_connection: false, is_over: false }
    }

    /// Whether the reply is one of a gRPC call.
    pub(crate) fn is_grpc(&self) -> bool {
        matches!(self.content, ProtocolBody::Grpc(_))
    }

    /// Marks the reply as the last one of its connection.
    pub(crate) fn ending_connection(mut self) -> Self {
        self.ends_connection = true;
        self
    }

    /// Whether the connection closes after this reply.
    pub(crate) fn ends_connection(&self) -> bool {
        self.ends_connection
    }

    /// Holds the permit of the request.
    pub(crate) fn set_permit(&mut self, permit: OwnedSemaphorePermit) {
        self._permit = Some(permit);
    }

    /// Holds the access record of the request.
    pub(crate) fn set_record(&mut self, record: AccessRecord) {
        self.record = Some(record);
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        if let Some(record) = self.record.as_ref().filter(|_| !self.is_over && !self.is_end_stream()) {
            record.set_cut(Cut::Client);
        }
    }
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { content, record, is_over, .. } = &mut *self;
        let frame = match content {
            ProtocolBody::Http(body) => ready!(Pin::new(body).poll_frame(cx)),
            ProtocolBody::Grpc(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                let trailers = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.trailers_ref());
                // a call that fails after its first message has its status in the trailers
                if let (Some(failed), Some(record)) = (trailers.and_then(grpc::failed_status), record.as_ref()) {
                    record.set_status(failed);
                }
                *is_over = trailers.is_some();
                frame.map(|frame| frame.map_err(Into::into))
            }
        };
        *is_over |= frame.is_none();
        if let (Some(Err(_)), Some(record)) = (&frame, record) {
            *is_over = true;
            record.set_cut(Cut::Error);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            ProtocolBody::Http(body) => body.is_end_stream(),
            ProtocolBody::Grpc(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            ProtocolBody::Http(body) => body.size_hint(),
            ProtocolBody::Grpc(body) => body.size_hint(),
        }
    }
}
