//! Classifies requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, Version, header};
use tower::Service;

use crate::api::Apis;
use crate::serve::ReplyBody;
use crate::serve::grpc;
use crate::serve::request_info::Port;
use crate::serve::{control, data};

/// Adds a [`RequestInfo`](crate::serve::request_info::RequestInfo) to the extensions of each request.
#[derive(Debug, Clone)]
pub(crate) struct Classify<S> {
    /// The port that receives the requests.
    pub port: Port,
    /// The APIs of the data port.
    pub apis: Arc<Apis>,
    /// The next layer.
    pub inner: S,
}

impl<S, B> Service<Request<B>> for Classify<S>
where
    S: Service<Request<B>, Response = Response<ReplyBody>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let info = match self.port {
            port if is_grpc(&request) => grpc::classify(port, request.uri().path()),
            Port::Data => data::classify(&self.apis, &mut request),
            Port::Control => control::classify(&request),
        };
        request.extensions_mut().insert(info);
        self.inner.call(request)
    }
}

/// Whether a request is a gRPC call. Over HTTP/1 it never is, whatever its content type.
fn is_grpc<B>(request: &Request<B>) -> bool {
    if request.version() != Version::HTTP_2 {
        return false;
    }
    let kind = request.headers().get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
    kind.strip_prefix(b"application/grpc").is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_content_type_over_http_2_is_a_grpc_call() {
        let request = |version, kind: &str| {
            Request::builder().version(version).header(header::CONTENT_TYPE, kind).body(()).unwrap()
        };
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            assert!(is_grpc(&request(Version::HTTP_2, kind)), "{kind}");
            assert!(!is_grpc(&request(Version::HTTP_11, kind)), "{kind} over HTTP/1");
        }
        for kind in ["application/json", "application/grpc-web", "application/grpc-web+proto", ""] {
            assert!(!is_grpc(&request(Version::HTTP_2, kind)), "{kind:?}");
        }
        assert!(!is_grpc(&Request::builder().version(Version::HTTP_2).body(()).unwrap()));
    }
}
