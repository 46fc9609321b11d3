//! The routes of a port, for HTTP and for gRPC.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::Incoming;
use tower::Service;

use crate::serve::ReplyBody;
use crate::serve::control;
use crate::serve::data;
use crate::serve::discovery;
use crate::serve::grpc::Services;
use crate::serve::proxy::Proxy;
use crate::serve::request_info::{Port, Protocol, RequestInfo};

/// Dispatches gRPC calls to the services of the port, and other requests to its HTTP routes.
#[derive(Debug, Clone)]
pub(super) struct Routes(Arc<PortRoutes>);

#[derive(Debug)]
struct PortRoutes {
    port: Port,
    proxy: Arc<Proxy>,
    grpc: Services,
}

impl Routes {
    /// The routes of a port.
    pub(super) fn new(port: Port, proxy: Arc<Proxy>, grpc: Services) -> Self {
        Self(Arc::new(PortRoutes { port, proxy, grpc }))
    }
}

impl Service<Request<Incoming>> for Routes {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let routes = Arc::clone(&self.0);
        // the future is copied into its box, so rare routes have separate boxes
        Box::pin(async move {
            let PortRoutes { port, proxy, grpc } = &*routes;
            if let Some(need) = RequestInfo::of(&request).need() {
                discovery::wait(&proxy.discovery, need).await;
            }
            Ok(match (RequestInfo::of(&request).protocol, port) {
                (Protocol::Grpc, _) => Box::pin(grpc.handle(request)).await.map(ReplyBody::grpc),
                (Protocol::Http, Port::Data) => data::handle(proxy, request).await.map(ReplyBody::http),
                (Protocol::Http, Port::Control) => Box::pin(control::handle(proxy, request)).await.map(ReplyBody::http),
            })
        })
    }
}
