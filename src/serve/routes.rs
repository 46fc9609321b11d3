//! The routes of a port, for HTTP and for gRPC.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::Incoming;
use tower::Service;

use crate::serve::ReplyBody;
use crate::serve::control::{self, Control};
use crate::serve::data;
use crate::serve::grpc::Services;
use crate::serve::request_info::{Port, Protocol, RequestInfo};

/// Dispatches gRPC calls to the services of the port, and other requests to its HTTP routes.
#[derive(Debug, Clone)]
pub(super) struct Routes {
    /// The port.
    pub(super) port: Port,
    /// The state of the HTTP routes.
    pub(super) states: Control,
    /// The gRPC services.
    pub(super) grpc: Services,
}

impl Service<Request<Incoming>> for Routes {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let Self { port, states, grpc } = self.clone();
        Box::pin(async move {
            Ok(match (RequestInfo::of(&request).protocol, port) {
                (Protocol::Grpc, _) => grpc.answer(request).await.map(ReplyBody::grpc),
                (Protocol::Http, Port::Data) => data::answer(&states.proxy, request).await.map(ReplyBody::http),
                (Protocol::Http, Port::Control) => control::answer(&states, request).await.map(ReplyBody::http),
            })
        })
    }
}
