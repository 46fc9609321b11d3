// SPDX-License-Identifier: Apache-2.0
//! The control port: probes, metrics, the page, the `/v1` routes, and SGLang's own control routes for trainers.

pub mod openapi;
pub mod page;
mod probes;
pub(crate) mod v1;

use std::sync::Arc;

use http::{Method, Request, Response};
use hyper::body::Incoming;

use crate::engine::sglang::routes::{self, Route, RouteKind};
use crate::error::Error;
use crate::generation::interruptions::Interruption;
use crate::serve::body::Body;
use crate::serve::control_route::{self, PROBES};
use crate::serve::data::forward::forward;
use crate::serve::misdirected;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::request_info::{Access, Port, PortRequest, Protocol, RequestInfo};

/// The route of SGLang that the page uses to show the text of ids.
const DETOKENIZE: &str = "/detokenize";

/// The header of the requests of viewers, such as the page and `tokentap top`, which repeat them every few seconds.
const VIEWER: &str = "x-tokentap-viewer";

/// Routes whose POST changes nothing: a viewer repeats them as well.
const READING_POSTS: [&str; 2] = [DETOKENIZE, "/v1/advantages"];

/// Classifies a request to the control port.
pub(crate) fn classify<B>(request: &Request<B>) -> RequestInfo {
    let path = request.uri().path();
    let open = |endpoint| RequestInfo::open(Port::Control, Protocol::Http, endpoint);
    let probe = if path == "/metrics/" { "/metrics" } else { path };
    if let Some((endpoint, access)) = PROBES.into_iter().find(|(path, _)| *path == probe) {
        return RequestInfo { access, is_probe: true, ..open(endpoint) };
    }
    if path == openapi::PATH {
        return RequestInfo { access: Access::Page, is_probe: true, ..open(openapi::PATH) };
    }
    // the page needs no token: it asks the user for the token that its data needs
    if page::asset(path).is_some() {
        return RequestInfo { access: Access::Page, is_probe: true, ..open("/page") };
    }
    let forwarded = routes::route(path);
    let route = if forwarded.kind == RouteKind::Control || forwarded.endpoint == DETOKENIZE {
        forwarded
    } else {
        let endpoint = control_route::below_v1(path).map_or("other", |route| route.pattern);
        Route { endpoint, kind: RouteKind::Other }
    };
    let only_reads = request.method() == Method::GET || READING_POSTS.contains(&route.endpoint);
    let is_probe = only_reads && request.headers().contains_key(VIEWER);
    RequestInfo { route, access: Access::Control, needs_sessions: true, is_probe, ..open(route.endpoint) }
}

/// Serves a request that passed the layers.
pub(crate) async fn handle(proxy: &Arc<Proxy>, received: PortRequest) -> Response<Body> {
    let PortRequest { info, record, request } = received;
    self::route(proxy, info.route, request).await.map(|body| body.with_record(record))
}

async fn route(proxy: &Arc<Proxy>, route: Route, mut request: Request<Incoming>) -> Response<Body> {
    if let Some(response) = probes::handle(proxy, route.endpoint, &request) {
        return response;
    }
    if route.endpoint == openapi::PATH {
        return openapi::handle(&request);
    }
    if let Some(response) = page::handle(&request) {
        return response;
    }
    if route.kind == RouteKind::Control || route.endpoint == DETOKENIZE {
        if proxy.config.keys.control_token().is_some() {
            // the token of this port is not the engine's key
            match route.kind {
                RouteKind::Control => proxy.client.sign(request.headers_mut()),
                _ => proxy.client.sign_generation(request.headers_mut()),
            }
        }
        // the aborts of agents come through the data port
        let interruptions = &proxy.generator.context.interruptions;
        let _call = Interruption::of(route).map(|kind| interruptions.begin_call(kind));
        return forward(proxy, route, request, None).await.unwrap_or_else(Error::into_response);
    }
    if let Some(control) = control_route::of(route) {
        return v1::handle(proxy, control, request).await;
    }
    let path = request.uri().path();
    let no_route = || Problem::new(ErrorCode::NOT_FOUND, "there is no such route on the control port").into_response();
    misdirected::on_control(proxy, request.method(), path, routes::route(path)).unwrap_or_else(no_route)
}
