// SPDX-License-Identifier: Apache-2.0
//! The ports. Each port is one stack of layers around its routes.
//!
//! A request, over HTTP or gRPC, passes the layers from the top:
//!
//! | layer | what it does |
//! |---|---|
//! | [`classify`] | finds the route, removes the session from the path, and sets what the next layers need |
//! | [`AccessRecord`] | starts the clock; when the reply ends, records its metrics and writes the access log line |
//! | [`CloseConnection`] | closes HTTP/1 connections while the server drains |
//! | [`validate::check`] | refuses requests that a proxy could parse in another way |
//! | [`authenticate`] | checks the tokens and, on the control port, the origin |
//! | [`check_restored`] | refuses requests that need sessions while sessions are being restored |
//! | [`Permits::acquire`] | acquires a permit, which the body of the reply holds |
//! | [`route`] | waits for the engine's first answer after the start; dispatches to the routes of the port |

pub(crate) mod access_log;
pub(crate) mod body;
mod client_route;
pub mod connection;
pub mod control;
pub(crate) mod control_route;
pub mod data;
pub(crate) mod discovery;
pub mod grpc;
pub(crate) mod host;
pub(crate) mod identity;
pub(crate) mod layers;
mod misdirected;
pub(crate) mod offload;
pub(crate) mod problem;
pub mod proxy;
mod reply_body;
pub(crate) mod request_info;
pub(crate) mod response;
pub(crate) mod teacher;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::{Semaphore, watch};
use tower::{Service, ServiceBuilder, service_fn};

use crate::api::Apis;
use crate::serve::access_log::AccessRecord;
use crate::serve::connection::Phase;
use crate::serve::grpc::Services;
use crate::serve::proxy::Proxy;
use crate::serve::request_info::{Port, PortRequest, Protocol};
use layers::admit::{Permits, check_restored};
use layers::authenticate::authenticate;
use layers::{CloseConnection, Rejection, RequestLayer, classify, validate};
use reply_body::ReplyBody;

/// The state that both ports share.
#[derive(Debug, Clone)]
pub(crate) struct SharedState {
    pub proxy: Arc<Proxy>,
    /// The APIs of the data port, by path.
    pub apis: Arc<Apis>,
    pub permits: Arc<Semaphore>,
    /// True once the drain time of the data port has passed and it closes the remaining connections.
    pub cutting: Arc<AtomicBool>,
}

/// Returns the service of a port. It drains when `phase` requires it.
pub(crate) fn port(
    shared: &SharedState,
    port: Port,
    phase: watch::Receiver<Phase>,
) -> impl Service<Request<Incoming>, Response = Response<ReplyBody>, Error = Infallible, Future: Send + 'static>
+ Clone
+ Send
+ 'static {
    let SharedState { proxy, apis, permits, cutting } = shared.clone();
    let (config, client, sessions) = (Arc::clone(&proxy.config), proxy.client.clone(), Arc::clone(&proxy.sessions));
    let metrics = Arc::clone(&proxy.metrics);
    let limit = proxy.config.limits.max_requests;
    let permits = Permits { semaphore: permits, limit, metrics: Arc::clone(&metrics) };
    let grpc = Services::new(Arc::clone(&proxy), port, phase.clone());
    let routes = Arc::new(Routes { port, proxy, grpc });
    ServiceBuilder::new()
        .map_request(move |mut request: Request<Incoming>| {
            let info = classify(port, &apis, &mut request);
            let record = AccessRecord::start(&metrics, &cutting, info.route.endpoint, info.is_probe, request.method());
            PortRequest { info, record, request }
        })
        .layer(RequestLayer(|received: &mut PortRequest| Ok(received.record.clone())))
        .layer(RequestLayer(move |received: &mut PortRequest| Ok(CloseConnection::new(&phase, &received.request))))
        .layer(RequestLayer(|received: &mut PortRequest| {
            validate::check(&received.request).map_err(Rejection::Invalid)
        }))
        .layer(RequestLayer(move |received: &mut PortRequest| {
            let PortRequest { info, request, .. } = received;
            authenticate(&config, &client, info.access, request).map_err(Rejection::Denied)
        }))
        .layer(RequestLayer(move |received: &mut PortRequest| {
            check_restored(&sessions, &received.info).map_err(Rejection::Refused)
        }))
        .layer(RequestLayer(move |received: &mut PortRequest| {
            permits.acquire(&received.info).map_err(Rejection::Refused)
        }))
        // the future is copied into its box, so rare routes have separate boxes
        .service(service_fn(move |received| Box::pin(route(Arc::clone(&routes), received))))
}

/// The routes of a port.
#[derive(Debug)]
struct Routes {
    port: Port,
    proxy: Arc<Proxy>,
    grpc: Services,
}

/// Dispatches gRPC calls to the services of the port, and other requests to its HTTP routes. Not an async fn, which would hold its arguments
/// twice.
fn route(
    routes: Arc<Routes>,
    received: PortRequest,
) -> impl Future<Output = Result<Response<ReplyBody>, Infallible>> + Send {
    let need = received.info.need();
    async move {
        let Routes { port, proxy, grpc } = &*routes;
        if let Some(need) = need {
            discovery::wait(&proxy.discovery, need).await;
        }
        Ok(match (received.info.protocol, port) {
            (Protocol::Grpc, _) => Box::pin(grpc.handle(received)).await.map(ReplyBody::grpc),
            (Protocol::Http, Port::Data) => data::handle(proxy, received).await.map(ReplyBody::http),
            (Protocol::Http, Port::Control) => Box::pin(control::handle(proxy, received)).await.map(ReplyBody::http),
        })
    }
}
