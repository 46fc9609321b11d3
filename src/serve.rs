//! The ports. Each port is one stack of layers around its routes.
//!
//! A request, over HTTP or gRPC, passes the layers from the top:
//!
//! | layer | what it does |
//! |---|---|
//! | [`Classify`] | finds the route, removes the session from the path, and sets what the next layers need |
//! | [`Observe`] | starts the clock; when the reply ends, records its metrics and writes the access log line |
//! | [`Close`] | closes HTTP/1 connections while the server drains |
//! | [`validate`] | refuses requests that a proxy could parse in another way |
//! | [`authenticate`] | checks the tokens and, on the control port, the origin |
//! | [`check_restored`] | refuses requests that need sessions while sessions are being restored |
//! | [`Admit`] | acquires a permit, which the body of the reply holds |
//! | `Routes` | waits for the engine's first answer after the start; the routes of the port |

pub(crate) mod access_log;
pub(crate) mod body;
mod client_route;
pub mod connection;
pub mod control;
pub(crate) mod control_route;
pub mod data;
pub(crate) mod discovery;
pub mod grpc;
pub(crate) mod identity;
pub(crate) mod layers;
mod misdirected;
pub(crate) mod offload;
pub(crate) mod problem;
pub mod proxy;
mod rejection;
mod reply_body;
pub(crate) mod request_info;
pub(crate) mod response;
mod routes;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::{Semaphore, watch};
use tower::{Service, ServiceBuilder};

use crate::api::Apis;
use crate::serve::connection::Phase;
use crate::serve::grpc::Services;
use crate::serve::proxy::Proxy;
use crate::serve::request_info::Port;
use layers::admit::{Admit, Permits, check_restored};
use layers::authenticate::authenticate;
use layers::classify::Classify;
use layers::close::Close;
use layers::observe::Observe;
use layers::{CheckLayer, validate};
use rejection::Rejection;
pub use reply_body::ReplyBody;
use routes::Routes;

/// The state that both ports share.
#[derive(Debug, Clone)]
pub struct SharedState {
    /// The parts that the routes use.
    pub proxy: Arc<Proxy>,
    /// The APIs of the data port, by path.
    pub apis: Arc<Apis>,
    /// The request permits.
    pub permits: Arc<Semaphore>,
    /// True once the drain time of the data port has passed and it closes the remaining connections.
    pub cutting: Arc<AtomicBool>,
}

/// Returns the service of a port. It drains when `phase` requires it.
pub fn port(
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
    ServiceBuilder::new()
        .layer_fn(|inner| Classify { port, apis: Arc::clone(&apis), inner })
        .layer_fn(|inner| Observe { metrics: Arc::clone(&metrics), cutting: Arc::clone(&cutting), inner })
        .layer_fn(|inner| Close { phase: phase.clone(), inner })
        .layer(CheckLayer(|request: &mut Request<Incoming>| validate::check(request).map_err(Rejection::Invalid)))
        .layer(CheckLayer(move |request: &mut Request<Incoming>| {
            authenticate(&config, &client, request).map_err(Rejection::Denied)
        }))
        .layer(CheckLayer(move |request: &mut Request<Incoming>| {
            check_restored(&sessions, request).map_err(Rejection::Refused)
        }))
        .layer_fn(|inner| Admit { permits: permits.clone(), inner })
        .service(Routes::new(port, proxy, grpc))
}
