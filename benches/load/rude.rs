// SPDX-License-Identifier: Apache-2.0
//! The demo engine with faults: the request header `x-fault` makes it answer with a status, or reset the connection after some events.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokentap::demo::{Engine, EngineOptions, ReplyBody, Streaming};
use tokentap::serve::connection::{Phase, ServerLimits, serve};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The request header: a status, or a number of events.
pub const FAULT: &str = "x-fault";

/// Serves until this process ends.
pub async fn start(token_delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("a bound port has an address");
    let token_delay = Some(token_delay);
    let engine =
        Engine::new(EngineOptions { streaming: Streaming::Incremental, token_delay, ..EngineOptions::default() });
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let engine = Arc::clone(&engine);
        async move { Ok::<_, Infallible>(answer(engine, request).await) }
    });
    let limits = ServerLimits {
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        read_timeout: Duration::from_secs(75),
        connections: 4096,
        drain: Duration::from_secs(1),
        cutting: Arc::default(),
    };
    tokio::spawn(async move {
        let (_stop, phase) = watch::channel(Phase::Serving);
        serve(listener, service, limits, phase).await
    });
    addr
}

async fn answer(engine: Arc<Engine>, request: Request<Incoming>) -> Response<FaultyBody> {
    let fault = request.headers().get(FAULT).and_then(|value| value.to_str().ok()?.parse::<u16>().ok());
    // a number that is no valid status is a number of events
    let status = fault.and_then(|fault| StatusCode::from_u16(fault).ok());
    let left = fault.filter(|_| status.is_none()).unwrap_or(u16::MAX);
    let mut reply = engine.handle(request).await.map(|inner| FaultyBody { inner: Some(inner), left });
    if let Some(status) = status {
        *reply.status_mut() = status;
        reply.headers_mut().clear();
        *reply.body_mut() = FaultyBody { inner: None, left };
    }
    reply
}

/// A body that may end with an error.
struct FaultyBody {
    inner: Option<ReplyBody>,
    /// Frames until the error; never with `u16::MAX`.
    left: u16,
}

impl http_body::Body for FaultyBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(inner).poll_frame(cx) else { return Poll::Pending };
        let Some(frame) = frame else { return Poll::Ready(None) };
        if self.left == 0 {
            return Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())));
        }
        self.left = if self.left == u16::MAX { u16::MAX } else { self.left - 1 };
        Poll::Ready(Some(frame.map_err(|never| match never {})))
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}
