// SPDX-License-Identifier: Apache-2.0
//! The layers of a port. [`crate::serve::port`] stacks them. A layer sees a request before the layers below it, and either rejects it or
//! returns an edit of its response.

pub(crate) mod admit;
pub(crate) mod authenticate;
pub(crate) mod validate;

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use tokio::sync::watch;
use tower::{Layer, Service};

use crate::api::Apis;
use crate::error::Error;
use crate::serve::access_log::AccessRecord;
use crate::serve::connection::Phase;
use crate::serve::problem::Problem;
use crate::serve::reply_body::ReplyBody;
use crate::serve::request_info::{Port, PortRequest, Protocol, RequestInfo};
use crate::serve::{control, data, grpc};

/// A layer: `Fn(&mut PortRequest) -> Result<impl ResponseEdit, Rejection>`, which must not block.
#[derive(Debug, Clone)]
pub(crate) struct RequestLayer<F>(pub F);

impl<F: Clone, S> Layer<S> for RequestLayer<F> {
    type Service = RequestService<F, S>;

    fn layer(&self, inner: S) -> Self::Service {
        RequestService { before: self.0.clone(), inner }
    }
}

/// The service of a [`RequestLayer`].
#[derive(Debug, Clone)]
pub(crate) struct RequestService<F, S> {
    before: F,
    inner: S,
}

impl<F, E, S> Service<PortRequest> for RequestService<F, S>
where
    F: Fn(&mut PortRequest) -> Result<E, Rejection>,
    E: ResponseEdit,
    S: Service<PortRequest, Response = Response<ReplyBody>, Error = Infallible, Future: Unpin>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Either<EditedResponse<S::Future, E>, Ready<Result<Response<ReplyBody>, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: PortRequest) -> Self::Future {
        match (self.before)(&mut request) {
            Ok(edit) => Either::Left(EditedResponse { future: self.inner.call(request), edit: Some(edit) }),
            Err(rejection) => Either::Right(ready(Ok(rejection.into_response(&request.info)))),
        }
    }
}

/// An edit that a layer makes to a response.
pub(crate) trait ResponseEdit: Unpin {
    /// Applies the edit.
    fn apply(self, response: &mut Response<ReplyBody>);
}

impl ResponseEdit for () {
    fn apply(self, _: &mut Response<ReplyBody>) {}
}

/// A response that is edited once it is ready. If the future is dropped before, it drops the edit too.
#[derive(Debug)]
pub(crate) struct EditedResponse<F, E> {
    future: F,
    edit: Option<E>,
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

/// Why a layer rejects a request.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The request is not valid. An HTTP/1 connection is then closed, because its client may frame the body in another way.
    Invalid(Error),
    /// The request failed authentication.
    Denied(Error),
    /// The request cannot be served now.
    Refused(Error),
}

impl Rejection {
    /// Builds the response in the protocol of the request, and in the error format of its API or port.
    pub(crate) fn into_response(self, info: &RequestInfo) -> Response<ReplyBody> {
        let (error, code, ends_connection) = match self {
            Self::Invalid(error) => (error, "bad_request", true),
            Self::Denied(error) => (error, "denied", false),
            // no request to the control port needs a permit
            Self::Refused(error) => (error, "restoring", false),
        };
        let response = match (info.protocol, info.port, &info.api) {
            (Protocol::Grpc, ..) if code == "denied" => {
                grpc::into_response(Problem::from_error(code, &error).into()).map(ReplyBody::grpc)
            }
            (Protocol::Grpc, ..) => grpc::into_response(error.into()).map(ReplyBody::grpc),
            (Protocol::Http, Port::Control, _) => {
                Problem::from_error(code, &error).into_response().map(ReplyBody::http)
            }
            (Protocol::Http, Port::Data, Some(api)) => error.into_api_response(&**api).map(ReplyBody::http),
            (Protocol::Http, Port::Data, None) => error.into_response().map(ReplyBody::http),
        };
        response.map(|body| if ends_connection { body.ending_connection() } else { body })
    }
}

/// Classifies a request.
pub(crate) fn classify<B>(port: Port, apis: &Apis, request: &mut Request<B>) -> RequestInfo {
    match port {
        port if is_grpc(request) => grpc::classify(port, request.uri().path()),
        Port::Data => data::classify(apis, request),
        Port::Control => control::classify(request),
    }
}

impl ResponseEdit for AccessRecord {
    fn apply(self, response: &mut Response<ReplyBody>) {
        self.set_status(failed_grpc_status(response).unwrap_or_else(|| response.status()));
        response.body_mut().set_record(self);
    }
}

/// Adds `connection: close` to a response over HTTP/1 while the server drains, and after a request that was not valid.
#[derive(Debug)]
pub(crate) struct CloseConnection {
    /// `None` over HTTP/2, whose connection has other requests.
    phase: Option<watch::Receiver<Phase>>,
}

impl CloseConnection {
    pub(crate) fn new<B>(phase: &watch::Receiver<Phase>, request: &Request<B>) -> Self {
        Self { phase: (request.version() < Version::HTTP_2).then(|| phase.clone()) }
    }
}

impl ResponseEdit for CloseConnection {
    fn apply(self, response: &mut Response<ReplyBody>) {
        let Some(phase) = self.phase else { return };
        if *phase.borrow() != Phase::Serving || response.body().ends_connection() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// The status of a gRPC call that fails before its first message, which has its status in the headers.
fn failed_grpc_status(response: &Response<ReplyBody>) -> Option<StatusCode> {
    if response.body().is_grpc() { grpc::failed_status(response.headers()) } else { None }
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
