//! Closes HTTP/1 connections while the server drains.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response, Version, header};
use tokio::sync::watch;
use tower::Service;

use super::{EditedResponse, ResponseEdit};
use crate::serve::ReplyBody;
use crate::serve::connection::Phase;

/// Adds `connection: close` to replies over HTTP/1 while the server drains, and after requests that were not valid.
#[derive(Debug, Clone)]
pub(crate) struct Close<S> {
    /// Serving or draining.
    pub phase: watch::Receiver<Phase>,
    /// The next layer.
    pub inner: S,
}

impl<S, B> Service<Request<B>> for Close<S>
where
    S: Service<Request<B>, Response = Response<ReplyBody>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = EditedResponse<S::Future, CloseConnection>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // an HTTP/2 connection has other requests
        let phase = (request.version() < Version::HTTP_2).then(|| self.phase.clone());
        EditedResponse::new(self.inner.call(request), CloseConnection { phase })
    }
}

/// Adds `connection: close` to a reply if needed; `phase` is `None` over HTTP/2.
#[derive(Debug)]
pub(crate) struct CloseConnection {
    phase: Option<watch::Receiver<Phase>>,
}

impl ResponseEdit for CloseConnection {
    fn apply(self, response: &mut Response<ReplyBody>) {
        let Some(phase) = self.phase else { return };
        if *phase.borrow() != Phase::Serving || response.body().ends_connection() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}
