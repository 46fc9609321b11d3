//! Counts and logs each request when its reply ends.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower::Service;

use super::{EditedResponse, ResponseEdit};
use crate::metrics::Metrics;
use crate::serve::ReplyBody;
use crate::serve::access_log::AccessRecord;
use crate::serve::grpc;
use crate::serve::request_info::RequestInfo;

/// Adds an [`AccessRecord`] to the extensions of each request and to the body of its reply.
#[derive(Debug, Clone)]
pub(crate) struct Observe<S> {
    /// Counts the requests.
    pub metrics: Arc<Metrics>,
    /// True once the server closes the remaining connections.
    pub cutting: Arc<AtomicBool>,
    /// The next layer.
    pub inner: S,
}

impl<S, B> Service<Request<B>> for Observe<S>
where
    S: Service<Request<B>, Response = Response<ReplyBody>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = EditedResponse<S::Future, AccessRecord>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let info = RequestInfo::of(&request);
        let record = AccessRecord::start(&self.metrics, &self.cutting, info, request.method());
        request.extensions_mut().insert(record.clone());
        EditedResponse::new(self.inner.call(request), record)
    }
}

impl ResponseEdit for AccessRecord {
    fn apply(self, response: &mut Response<ReplyBody>) {
        // a gRPC call that fails before its first message has its status in the headers
        let failed = grpc::failed_status(response.headers());
        self.set_status(failed.unwrap_or_else(|| response.status()));
        response.body_mut().set_record(self);
    }
}
