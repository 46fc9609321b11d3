//! The data port: everything SGLang serves, under the same paths.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tower::Service;

use crate::error::Error;
use crate::http::body::Body;
use crate::http::forward::forward;
use crate::http::generate::generate;
use crate::http::identity::InvalidName;
use crate::http::misdirected::Asked;
use crate::http::served::Served;
use crate::http::{Parts, access, error_reply, gate, identity, openai, redact, sound};
use crate::sglang::routes::{self, Kind, Route};
use crate::trajectory::is_name;

/// The service of the data port.
#[derive(Debug, Clone)]
pub struct Data(pub Arc<Parts>);

/// What a service's call becomes.
pub type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Service<Request<Incoming>> for Data {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Answer {
        Box::pin(answer(Arc::clone(&self.0), request))
    }
}

async fn answer(parts: Arc<Parts>, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let sound = sound::check(&request);
    let is_sound = sound.is_ok();
    let session = bind(&mut request);
    let route = routes::route(request.uri().path());
    let one_at_a_time = request.version() < http::Version::HTTP_2;
    let allowed = access::agent(&parts, request.headers_mut());
    // who may not come in takes nobody's place
    let (mut served, admitted) = match allowed {
        Ok(()) => admit(&parts, route, request.method()),
        Err(_) => (Served::new(Arc::clone(&parts), route, request.method(), None), Ok(())),
    };
    let reply = if let Err(denied) = allowed {
        let mut reply =
            error_reply(&Error::Client { status: StatusCode::UNAUTHORIZED, message: denied.message().to_owned() });
        reply.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        Ok(reply)
    } else if let Err(error) = admitted.and(sound) {
        Err(error)
    } else if is_tunnel(&request) {
        let message = "tokentap neither tunnels nor speaks over web sockets".to_owned();
        Err(Error::Client { status: StatusCode::NOT_IMPLEMENTED, message })
    } else if let Err(error) = session {
        Err(error)
    } else if let Err(error) = may_pass(&parts, route) {
        Err(error)
    } else if route.kind == Kind::Generate && matches!(*request.method(), Method::POST | Method::PUT) {
        generate(&parts, request, session.unwrap_or_default(), &mut served).await
    } else if openai::serves(&parts, route, &request, session.as_ref().ok().and_then(Option::as_ref)) {
        Ok(openai::serve(&parts, route, request, session.unwrap_or_default(), &mut served).await)
    } else if route.kind == Kind::Control && !parts.config.keys.allow_control {
        gate::control(&parts, route, request).await
    } else if route.kind == Kind::Info {
        // what is searched must come as it is
        request.headers_mut().remove(header::ACCEPT_ENCODING);
        match forward(&parts, route, request, None).await {
            Ok(reply) => redact::redacted(&parts, reply).await,
            Err(error) => Err(error),
        }
    } else {
        let session = session.unwrap_or_default();
        let asked = Asked::new(&parts, &request, session.as_ref());
        let generates = route.kind == Kind::Uncaptured && request.method() == Method::POST;
        served.unnamed = generates.then(|| parts.tools.flights.unnamed());
        match forward(&parts, route, request, session).await {
            Ok(reply) => asked.answer(route, reply).await,
            Err(error) => Err(error),
        }
    };
    let reply = reply.unwrap_or_else(|error| {
        served.leave();
        error_reply(&error)
    });
    served.status = Some(reply.status());
    let draining = *parts.phase.borrow() != crate::server::Phase::Serving;
    let mut reply = reply.map(|body| body.with(served));
    if (draining || !is_sound) && one_at_a_time {
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(reply)
}

/// Whether a request may be answered before sessions are restored: only where it is neither recorded nor changes the policy.
fn may_pass(parts: &Parts, route: Route) -> Result<(), Error> {
    if matches!(route.kind, Kind::Info | Kind::Other) { Ok(()) } else { is_restored(parts) }
}

/// Fails while sessions are restored from the log: a call would begin a session anew that the log holds.
///
/// # Errors
/// A 503.
pub fn is_restored(parts: &Parts) -> Result<(), Error> {
    let Some(progress) = parts.sessions.restore_progress() else { return Ok(()) };
    let message = format!(
        "sessions are restored from the log, {} of {} bytes are read; try again in a moment, or when /readyz is 200",
        progress.read, progress.total
    );
    Err(Error::Unavailable { message })
}

/// Whether a request is for something else than HTTP. An upgrade to a later HTTP is an offer that may be ignored.
fn is_tunnel(request: &Request<Incoming>) -> bool {
    let offers = request.headers().get_all(header::UPGRADE).iter();
    let mut offers = offers.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    request.method() == Method::CONNECT
        || offers.any(|offer| !offer.trim_ascii().to_ascii_lowercase().starts_with(b"h2c"))
}

/// Starts the clock of a request and takes a permit for it; the second part says whether there was one.
pub fn admit(parts: &Arc<Parts>, route: Route, method: &Method) -> (Box<Served>, Result<(), Error>) {
    let permit = Arc::clone(&parts.permits).try_acquire_owned();
    let admitted = permit.as_ref().map(|_| ()).map_err(|_| {
        parts.metrics.shed.with_label_values(&["max_requests"]).inc();
        let limit = parts.config.limits.max_requests;
        let message =
            format!("tokentap is at its limit of {limit} concurrent requests; try again, or raise --max-requests");
        Error::Unavailable { message }
    });
    (Served::new(Arc::clone(parts), route, method, permit.ok()), admitted)
}

/// Takes `/sessions/{id}` from the path; the rest is what SGLang is asked.
fn bind(request: &mut Request<Incoming>) -> Result<Option<Arc<str>>, Error> {
    let Some((id, rest)) = identity::in_path(request.uri().path()) else { return Ok(None) };
    let id = routes::decode(id);
    if !is_name(&id) {
        return Err(InvalidName::new(&id, "the path").into());
    }
    let id = Arc::from(&*id);
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let rest = format!("{rest}{query}");
    let bad = |_| Error::Client { status: StatusCode::NOT_FOUND, message: format!("{rest:?} is no path") };
    *request.uri_mut() = rest.parse().map_err(bad)?;
    Ok(Some(id))
}
