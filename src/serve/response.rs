// SPDX-License-Identifier: Apache-2.0
//! HTTP responses that tokentap builds, and the engine's replies that it forwards unread.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::api::{Api, ApiError};
use crate::engine::transport::client::Reply;
use crate::engine::transport::forwarded::ForwardedBody;
use crate::engine::transport::headers;
use crate::error::Error;
use crate::serve::body::Body;
use crate::serve::offload::Items;
use crate::serve::proxy::Proxy;

impl Error {
    /// The response in SGLang's error format.
    pub(crate) fn into_response(self) -> Response<Body> {
        Response::from_parts(self.head(), Body::full(self.body()))
    }

    /// The response in the error format of an API.
    pub(crate) fn into_api_response(self, api: &dyn Api) -> Response<Body> {
        let (mut head, error) = (self.head(), api.error(self.status(), self.to_string()));
        head.status = error.status;
        Response::from_parts(head, Body::full(error.body))
    }
}

impl ApiError {
    /// The response.
    pub(crate) fn into_response(self) -> Response<Body> {
        json_response(self.status, self.body)
    }
}

/// A response with a JSON body.
pub(crate) fn json_response(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    response(status, "application/json", Body::full(body))
}

/// A response with a plain-text body.
pub(crate) fn text_response(status: StatusCode, body: String) -> Response<Body> {
    response(status, "text/plain; charset=utf-8", Body::full(body))
}

/// A response with this body.
pub(crate) fn response(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A response that is produced as the client reads it.
pub(crate) fn stream_response(content_type: &'static str, length: Option<u64>, chunks: Items<Bytes>) -> Response<Body> {
    let mut response = response(StatusCode::OK, content_type, Body::offloaded(chunks));
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response
}

/// Forwards a reply of the engine unread.
pub(crate) fn forwarded_response(proxy: &Proxy, reply: Reply) -> Response<Body> {
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    Response::from_parts(head, Body::forwarded(ForwardedBody::unlimited(&proxy.metrics, Bytes::new(), body)))
}
