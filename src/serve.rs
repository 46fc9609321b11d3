//! The ports: each is one stack of layers around its routes.
//!
//! A request passes the layers from the top, HTTP and gRPC alike:
//!
//! | layer | what it does |
//! |---|---|
//! | [`Classify`] | names the route, takes the session off the path, says what the next layers need |
//! | [`Observe`] | starts the clock; at the end of the reply come its metrics and its line in the access log |
//! | [`Close`] | ends HTTP/1 connections while the server drains |
//! | [`layers::validate`] | refuses requests that proxies could read in two ways |
//! | [`layers::authenticate`] | checks the tokens, and on the control port the origin |
//! | [`layers::restored`] | refuses what needs sessions while those are restored |
//! | [`Admit`] | takes a permit, which the body of the reply holds |
//! | `Routes` | the routes of the port |

pub mod access_log;
pub mod body;
pub mod connection;
pub mod control;
pub mod data;
pub mod denied;
pub mod grpc;
pub mod layers;
mod misdirected;
pub mod proxy_state;
pub mod readiness;
mod rejection;
pub mod reply;
mod reply_body;
pub mod request_info;
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
use crate::serve::control::Control;
use crate::serve::grpc::Services;
use crate::serve::request_info::Port;
use layers::admit::{Admit, Permits};
use layers::authenticate::authenticate;
use layers::check::CheckLayer;
use layers::classify::Classify;
use layers::close::Close;
use layers::observe::Observe;
use layers::{restored, validate};
use rejection::Rejection;
pub use reply_body::ReplyBody;
use routes::Routes;

/// What both ports share.
#[derive(Debug, Clone)]
pub struct Shared {
    /// What the routes are served with.
    pub states: Control,
    /// The APIs of the data port, by their paths.
    pub apis: Arc<Apis>,
    /// Permits of requests.
    pub permits: Arc<Semaphore>,
    /// Set when the data port cuts the connections that have not ended.
    pub cutting: Arc<AtomicBool>,
}

/// The service of a port, which drains by `phase`.
pub fn port(
    shared: &Shared,
    port: Port,
    phase: watch::Receiver<Phase>,
) -> impl Service<Request<Incoming>, Response = Response<ReplyBody>, Error = Infallible, Future: Send + 'static>
+ Clone
+ Send
+ 'static {
    let Shared { states, apis, permits, cutting } = shared.clone();
    let proxy = &states.proxy;
    let (config, client, sessions) = (Arc::clone(&proxy.config), proxy.client.clone(), Arc::clone(&proxy.sessions));
    let metrics = Arc::clone(&proxy.metrics);
    let limit = proxy.config.limits.max_requests;
    let permits = Permits { semaphore: permits, limit, metrics: Arc::clone(&metrics) };
    let grpc = Services::new(states.clone(), port, phase.clone());
    ServiceBuilder::new()
        .layer_fn(|inner| Classify { port, apis: Arc::clone(&apis), inner })
        .layer_fn(|inner| Observe { metrics: Arc::clone(&metrics), cutting: Arc::clone(&cutting), inner })
        .layer_fn(|inner| Close { phase: phase.clone(), inner })
        .layer(CheckLayer(|request: &mut Request<Incoming>| validate::check(request).map_err(Rejection::Invalid)))
        .layer(CheckLayer(move |request: &mut Request<Incoming>| {
            authenticate(&config, &client, request).map_err(Rejection::Denied)
        }))
        .layer(CheckLayer(move |request: &mut Request<Incoming>| {
            restored::check(&sessions, request).map_err(Rejection::Refused)
        }))
        .layer_fn(|inner| Admit { permits: permits.clone(), inner })
        .service(Routes { port, states, grpc })
}
