//! A layer that runs a check and rejects the requests that fail it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::{Request, Response};
use tower::{Layer, Service};

use crate::serve::ReplyBody;
use crate::serve::rejection::Rejection;
use crate::serve::request_info::RequestInfo;

/// The layer of a check: `Fn(&mut Request) -> Result<(), Rejection>`, which must not block.
#[derive(Debug, Clone)]
pub(crate) struct CheckLayer<C>(pub C);

impl<C: Clone, S> Layer<S> for CheckLayer<C> {
    type Service = Check<C, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Check { check: self.0.clone(), inner }
    }
}

/// The service of [`CheckLayer`].
#[derive(Debug, Clone)]
pub(crate) struct Check<C, S> {
    check: C,
    inner: S,
}

/// The future of a reply that is ready at once.
pub(crate) type Immediate = Ready<Result<Response<ReplyBody>, Infallible>>;

impl<C, S, B> Service<Request<B>> for Check<C, S>
where
    C: Fn(&mut Request<B>) -> Result<(), Rejection>,
    S: Service<Request<B>, Response = Response<ReplyBody>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Either<S::Future, Immediate>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match (self.check)(&mut request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(rejection) => Either::Right(ready(Ok(rejection.reply(RequestInfo::of(&request))))),
        }
    }
}
