// SPDX-License-Identifier: Apache-2.0
//! The data port: all routes of SGLang, under the same paths.

pub(crate) mod abort;
pub(crate) mod api_call;
pub(crate) mod forward;
pub(crate) mod generate;
pub(crate) mod generation;
pub(crate) mod policy;
pub mod redact;

use std::sync::Arc;

use http::{Method, Request, Response, header};
use hyper::body::Incoming;

use crate::api::{Api, Apis};
use crate::engine::sglang::routes::{self, Route, RouteKind};
use crate::error::Error;
use crate::json::percent_decode;
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::data::forward::forward;
use crate::serve::identity::{self, InvalidName};
use crate::serve::misdirected::MisdirectedRequest;
use crate::serve::proxy::Proxy;
use crate::serve::request_info::{Access, Port, PortRequest, Protocol, RequestInfo};
use crate::session::is_name;

/// Classifies a request to the data port. Removes the session from its path.
pub(crate) fn classify<B>(apis: &Apis, request: &mut Request<B>) -> RequestInfo {
    let session = take_session(request);
    let path = request.uri().path();
    let known = routes::route(path);
    let api = match known.kind {
        // no API serves it
        RouteKind::Generate => None,
        _ => apis.get(known.endpoint).or_else(|| apis.get(path)),
    };
    let route = api.map_or(known, |(endpoint, api)| Route {
        endpoint,
        kind: if api.generates() { RouteKind::Generating } else { RouteKind::Other },
    });
    RequestInfo {
        route,
        api: api.map(|(_, api)| Arc::clone(api)),
        session,
        access: Access::Agent,
        needs_permit: true,
        // requests that are neither recorded nor change the policy need no sessions
        needs_sessions: api.is_some() || !matches!(route.kind, RouteKind::Info | RouteKind::Other),
        ..RequestInfo::open(Port::Data, Protocol::Http, route.endpoint)
    }
}

/// Serves a request that passed the layers. Not an async fn, which would hold its arguments twice.
pub(crate) fn handle(proxy: &Arc<Proxy>, received: PortRequest) -> impl Future<Output = Response<Body>> + Send {
    let PortRequest { info, record, request } = received;
    let RequestInfo { route, session, api, .. } = info;
    async move {
        let response = match session.transpose() {
            _ if is_tunnel(&request) => {
                let message = "tokentap supports neither CONNECT nor web sockets".to_owned();
                Err(Error::NotImplemented { message })
            }
            Err(invalid) => Err(invalid.into()),
            Ok(session) if is_native(route, request.method()) => {
                generate::handle(proxy, request, session, &record).await
            }
            // the futures of other routes are large
            Ok(session) => Box::pin(serve_other(proxy, route, api.as_ref(), request, session, &record)).await,
        };
        let response = response.unwrap_or_else(|error| match api {
            Some(api) => error.into_api_response(&*api),
            None => error.into_response(),
        });
        response.map(|body| body.with_record(record))
    }
}

/// Whether a request is a generation of the native API.
fn is_native(route: Route, method: &Method) -> bool {
    route.kind == RouteKind::Generate && matches!(*method, Method::POST | Method::PUT)
}

/// Serves a request that is not a native generation.
async fn serve_other(
    proxy: &Arc<Proxy>,
    route: Route,
    api: Option<&Arc<dyn Api>>,
    mut request: Request<Incoming>,
    session: Option<Arc<str>>,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    if let Some(api) = api.filter(|api| api.accepts(request.method()))
        && api_call::reads(proxy, &**api, route, &request, session.as_ref())
    {
        return api_call::handle(proxy, Arc::clone(api), route, request, session, record).await;
    }
    if route.kind == RouteKind::Control && !proxy.config.keys.allow_control {
        return Box::pin(abort::handle_control(proxy, route, request)).await;
    }
    if route.kind == RouteKind::Info {
        // the reply is searched for keys, so it must not be compressed
        request.headers_mut().remove(header::ACCEPT_ENCODING);
        let reply = Box::pin(forward(proxy, route, request, None)).await?;
        return Box::pin(redact::redacted(proxy, reply)).await;
    }
    let original = MisdirectedRequest::new(proxy, &request, session.as_ref());
    let generates = route.kind == RouteKind::Generating && request.method() == Method::POST;
    let unnamed = generates.then(|| proxy.generator.context.flights.unnamed());
    let reply = Box::pin(forward(proxy, route, request, session)).await?;
    Ok(Box::pin(original.explain(reply)).await?.map(|body| body.with_unnamed(unnamed)))
}

/// Whether a request asks for a tunnel or another protocol. An upgrade to HTTP/2 is optional and ignored.
fn is_tunnel(request: &Request<Incoming>) -> bool {
    let offers = request.headers().get_all(header::UPGRADE).iter();
    let mut offers = offers.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    request.method() == Method::CONNECT
        || offers.any(|offer| !offer.trim_ascii().to_ascii_lowercase().starts_with(b"h2c"))
}

/// Removes `/sessions/{id}` from the path. SGLang gets the rest of the path.
fn take_session<B>(request: &mut Request<B>) -> Option<Result<Arc<str>, InvalidName>> {
    let (id, rest) = identity::in_path(request.uri().path())?;
    let id = percent_decode(id);
    let id = if is_name(&id) { Ok(Arc::from(&*id)) } else { Err(InvalidName::new(&id, "the path")) };
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    *request.uri_mut() = format!("{rest}{query}").parse().ok()?;
    Some(id)
}
