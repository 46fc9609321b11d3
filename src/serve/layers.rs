//! The layers of a port, and what they are built from: a check that may reject a request, and an edit of a response.
//! [`crate::serve`] lists the layers in order.

pub(crate) mod admit;
pub(crate) mod authenticate;
pub(crate) mod classify;
pub(crate) mod close;
mod host;
pub(crate) mod observe;
pub(crate) mod validate;

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
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

/// The future of a response that is ready at once.
type Immediate = Ready<Result<Response<ReplyBody>, Infallible>>;

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
            Err(rejection) => Either::Right(ready(Ok(rejection.into_response(RequestInfo::of(&request))))),
        }
    }
}

/// An edit that a layer makes to a response.
pub(crate) trait ResponseEdit: Unpin {
    /// Applies the edit.
    fn apply(self, response: &mut Response<ReplyBody>);
}

/// The future of a layer that edits responses. If it is dropped before the response, it drops the edit too.
#[derive(Debug)]
pub(crate) struct EditedResponse<F, E> {
    future: F,
    edit: Option<E>,
}

impl<F, E> EditedResponse<F, E> {
    fn new(future: F, edit: E) -> Self {
        Self { future, edit: Some(edit) }
    }
}

impl<F, E> Future for EditedResponse<F, E>
where
    F: Future<Output = Result<Response<ReplyBody>, Infallible>> + Unpin,
    E: ResponseEdit,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(mut response) = std::task::ready!(Pin::new(&mut self.future).poll(cx));
        if let Some(edit) = self.edit.take() {
            edit.apply(&mut response);
        }
        Poll::Ready(Ok(response))
    }
}
