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

use crate::api::Apis;
use crate::engine::sglang::routes::{self, Route, RouteKind};
use crate::error::Error;
use crate::json::percent_decode;
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::data::forward::forward;
use crate::serve::identity::{self, InvalidName};
use crate::serve::misdirected::MisdirectedRequest;
use crate::serve::proxy::Proxy;
use crate::serve::request_info::{Access, Port, Protocol, RequestInfo};
use crate::session::is_name;

/// Classifies a request to the data port. Removes the session from its path.
pub(crate) fn classify<B>(apis: &Apis, request: &mut Request<B>) -> RequestInfo {
    let session = take_session(request);
    let path = request.uri().path();
    let known = routes::route(path);
    let api = apis.get(known.endpoint).or_else(|| apis.get(path));
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

/// Serves a request that passed the layers.
pub(crate) async fn handle(proxy: &Arc<Proxy>, request: Request<Incoming>) -> Response<Body> {
    let record = AccessRecord::of(request.extensions());
    let api = RequestInfo::of(&request).api.clone();
    let response = route(proxy, request, &record).await.unwrap_or_else(|error| match api {
        Some(api) => error.into_api_response(&*api),
        None => error.into_response(),
    });
    response.map(|body| body.with_record(record))
}

async fn route(
    proxy: &Arc<Proxy>,
    mut request: Request<Incoming>,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    if is_tunnel(&request) {
        let message = "tokentap supports neither CONNECT nor web sockets".to_owned();
        return Err(Error::NotImplemented { message });
    }
    let RequestInfo { route, session, api, .. } = RequestInfo::of(&request).clone();
    let session = session.transpose()?;
    if route.kind == RouteKind::Generate && matches!(*request.method(), Method::POST | Method::PUT) {
        return generate::handle(proxy, request, session, record).await;
    }
    if let Some(api) = api.filter(|api| api.accepts(request.method()))
        && api_call::reads(proxy, &*api, &request, session.as_ref())
    {
        return Box::pin(api_call::handle(proxy, api, request, session, record)).await;
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
