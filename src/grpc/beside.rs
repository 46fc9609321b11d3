//! gRPC and another service on one port.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response, Version, header};
use http_body_util::Either;
use hyper::body::Incoming;
use tower::Service;

use super::services::{Answering, Services};

/// Answers gRPC calls with the services, and everything else with another service.
#[derive(Debug, Clone)]
pub struct Beside<S> {
    services: Services,
    other: S,
}

impl<S> Beside<S> {
    /// The services beside `other`.
    #[must_use]
    pub fn new(services: Services, other: S) -> Self {
        Self { services, other }
    }
}

/// Whether a request is a gRPC call. Over HTTP/1 there are none, whatever they call themselves.
fn is_call<B>(request: &Request<B>) -> bool {
    if request.version() != Version::HTTP_2 {
        return false;
    }
    let kind = request.headers().get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
    kind.strip_prefix(b"application/grpc").is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

impl<S, B> Service<Request<Incoming>> for Beside<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<Either<B, tonic::body::Body>>;
    type Error = Infallible;
    type Future = Answer<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.other.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        if is_call(&request) {
            return Answer::Call(self.services.answer(request));
        }
        Answer::Other(self.other.call(request))
    }
}

/// The answer to a request of either kind.
pub enum Answer<F> {
    /// Of the other service.
    Other(F),
    /// Of a gRPC service.
    Call(Answering),
}

impl<F> std::fmt::Debug for Answer<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Other(_)) { "Answer::Other" } else { "Answer::Call" })
    }
}

impl<F, B> Future for Answer<F>
where
    F: Future<Output = Result<Response<B>, Infallible>> + Unpin,
{
    type Output = Result<Response<Either<B, tonic::body::Body>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut *self {
            Self::Other(answer) => ready!(Pin::new(answer).poll(cx)).map(|reply| reply.map(Either::Left)),
            Self::Call(answer) => ready!(answer.as_mut().poll(cx)).map(|reply| reply.map(Either::Right)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_says_so_in_http_2() {
        let request = |version, kind: &str| {
            Request::builder().version(version).header(header::CONTENT_TYPE, kind).body(()).unwrap()
        };
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            assert!(is_call(&request(Version::HTTP_2, kind)), "{kind}");
            assert!(!is_call(&request(Version::HTTP_11, kind)), "{kind} over HTTP/1");
        }
        for kind in ["application/json", "application/grpc-web", "application/grpc-web+proto", ""] {
            assert!(!is_call(&request(Version::HTTP_2, kind)), "{kind:?}");
        }
        assert!(!is_call(&Request::builder().version(Version::HTTP_2).body(()).unwrap()));
    }
}
