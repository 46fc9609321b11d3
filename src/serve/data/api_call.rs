// SPDX-License-Identifier: Apache-2.0
//! Serves the requests of the agents' APIs: the part that all APIs share.

mod encoding;
mod passthrough;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::api::{Api, ApiGeneration, ApiPlan, ApiRequest, LocalReply, ReplyEncoder, client_headers, engine_chat};
use crate::budget::Work;
use crate::chat::{RequestError, RequestSession};
use crate::engine::sglang::routes::{self, Route};
use crate::error::Error;
use crate::generation::event::EventAccess;
use crate::generation::request::{EngineChat, Source};
use crate::long_work::{BodyLength, on_body, on_thread};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::data::api_call::passthrough::pass_through;
use crate::serve::data::generation::{self, CallIdentity, ReceivedCall};
use crate::serve::identity::Identity;
use crate::serve::misdirected::UnsupportedRequest;
use crate::serve::proxy::Proxy;
use crate::serve::response::{json_response, response};
use crate::session::{Labels, Session, fill_label};

/// Bytes of a request that block a runtime thread for too long.
const LONG: usize = 8 << 10;

/// Whether a request is read here. `session` is the session in its path. Other requests are forwarded unread.
pub(crate) fn reads(
    proxy: &Proxy,
    api: &dyn Api,
    route: Route,
    request: &Request<Incoming>,
    session: Option<&Arc<str>>,
) -> bool {
    if api.not_served().is_none() {
        return true;
    }
    let records = route.reports_ids() && proxy.config.sessions.record;
    let length = request.body().size_hint().exact();
    let may_be_held = length.is_some_and(|length| length <= proxy.config.limits.max_request_bytes);
    let identity = || Identity::find(&proxy.config, session, request.uri().query(), request.headers(), None);
    // an invalid name is refused too, in the error format of the API
    records && may_be_held && identity().map_or(true, |identity| identity.explicit)
}

/// Serves a request of an API. `session` is the session in the path.
///
/// # Errors
/// The error for the client.
pub(crate) async fn handle(
    proxy: &Arc<Proxy>,
    api: Arc<dyn Api>,
    route: Route,
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    let received = ReceivedCall::read(proxy, request, session).await?;
    dispatch(proxy, ApiCall { api, route, received, identity: None }, None, record).await
}

/// A call of an API.
#[derive(Clone)]
struct ApiCall {
    api: Arc<dyn Api>,
    route: Route,
    received: ReceivedCall,
    /// Its session and its labels, set once the body is decoded.
    identity: Option<CallIdentity>,
}

/// Decodes a call, then replies, generates or forwards it. `refusal` is why the engine refused its tokens: its own endpoint then serves the call.
async fn dispatch(
    proxy: &Arc<Proxy>,
    call: ApiCall,
    refusal: Option<String>,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    if let Some(reason) = call.api.not_served() {
        // forwarded without decoding
        return pass_through(proxy, call, None, &reason, record).await;
    }
    let (prepared, call) = prepare(proxy, call, refusal).await?;
    match prepared {
        Ok(PreparedCall::Local(LocalReply { encoded, stored })) => {
            proxy.wait_written(stored).await;
            let (status, body) = encoded.map_or_else(|error| (error.status, error.body), |body| (StatusCode::OK, body));
            Ok(json_response(status, proxy.budget.hold(body)))
        }
        Ok(PreparedCall::Events(events)) => Ok(response(StatusCode::OK, "text/event-stream", Body::full(events))),
        Ok(PreparedCall::Generation { source, encoder }) => run(proxy, call, source, encoder, record).await,
        Ok(PreparedCall::Forwarded { reason, chat }) => forward(proxy, call, reason, chat, record).await,
        Err(RequestError::Unsupported(reason)) => {
            // after a panic nothing that was decoded is used
            let call = ApiCall { identity: None, ..call };
            forward(proxy, call, reason, None, record).await
        }
        Err(RequestError::Invalid(message)) => Err(Error::bad_request(message)),
        Err(RequestError::TooLong { tokens, context }) => {
            Err(Error::bad_request(call.api.prompt_too_long(tokens, context)))
        }
        Err(RequestError::Stopped(stopped)) => Err(stopped.into()),
        Err(RequestError::LimitReached { limit, message }) => {
            proxy.metrics.chat.refusals.with_label_values(&[limit]).inc();
            Err(Error::Forbidden { message })
        }
    }
}

/// Runs a generation and encodes its reply.
async fn run(
    proxy: &Arc<Proxy>,
    call: ApiCall,
    source: Source,
    mut encoder: Box<dyn ReplyEncoder>,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    let (endpoint, fallback) = match &source {
        Source::Generate { request, .. } if request.has_media() => (routes::GENERATE.endpoint, Some(call.clone())),
        Source::Generate { .. } => (routes::GENERATE.endpoint, None),
        // the engine may report no ids, from which the reply is encoded; the endpoint of the call's API needs none
        Source::EngineChat(_) => (routes::CHAT, Some(call.clone())),
    };
    let has_images = matches!(source, Source::Generate { .. }) && fallback.is_some();
    let ApiCall { api, mut received, identity, .. } = call;
    let identity = identity.ok_or_else(|| Error::Internal { message: "a call without a session".into() })?;
    *received.request.method_mut() = Method::POST;
    *received.request.uri_mut() = Uri::from_static(endpoint);
    received.request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // what the source takes is counted, and no longer the body of the client
    *received.request.body_mut() = Bytes::new();
    received.work = received.work.following();
    let request = received.into_generation(proxy, source, identity, EventAccess::Fields);
    let generation = generation::run(proxy, request, record).await?;
    if let Some(rid) = record.rid().get() {
        encoder.set_rid(&rid);
    }
    match (encoding::encode(proxy, api, generation, encoder, has_images).await, fallback) {
        (Err(error @ Error::NoTokenIds), Some(call)) => forward(proxy, call, error.to_string(), None, record).await,
        (Err(error @ Error::ImagesRefused { .. }), Some(mut call)) => {
            call.received.work = call.received.work.following();
            Box::pin(dispatch(proxy, call, Some(error.to_string()), record)).await
        }
        (encoded, _) => encoded,
    }
}

/// Passes a call that tokentap cannot serve, for `reason`, to the engine's own endpoint. `chat` is the request for it, if its reply can be
/// recorded and the body is decoded.
async fn forward(
    proxy: &Proxy,
    call: ApiCall,
    reason: String,
    chat: Option<Box<EngineChat>>,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    tracing::debug!(%reason, endpoint = call.route.endpoint, "forwarding a call to the engine's own endpoint");
    let (api, path) = (Arc::clone(&call.api), call.received.request.uri().path().to_owned());
    let reply = pass_through(proxy, call, chat, &reason, record).await?;
    UnsupportedRequest { api, path, reason }.explain(reply).await
}

/// How a decoded call is served.
enum PreparedCall {
    /// A generation whose reply is encoded.
    Generation { source: Source, encoder: Box<dyn ReplyEncoder> },
    /// No generation: this is the reply.
    Local(LocalReply),
    /// No generation: these are the events of the stream.
    Events(String),
    /// The engine's own endpoint, for `reason`.
    Forwarded {
        reason: String,
        /// The request for it, if its reply is recorded.
        chat: Option<Box<EngineChat>>,
    },
}

/// Decodes a call and builds its generation, unless the engine refused it. Long calls are processed on a blocking thread.
async fn prepare(
    proxy: &Arc<Proxy>,
    mut call: ApiCall,
    refusal: Option<String>,
) -> Result<(Result<PreparedCall, RequestError>, ApiCall), Error> {
    let length = call.received.request.body().len();
    let work = call.received.work.clone();
    let _guard = work.until_dropped();
    let mut memory = work.share();
    let decoded = on_body(BodyLength::Request(length), || {
        catch_panic(proxy, || {
            let request = &call.received.request;
            work.add(&mut memory, call.api.decoded_bytes(request.body()))?;
            let decoded = call.api.decode(request)?;
            let session = call.received.identify(proxy, Some(&decoded.session_names()));
            let session = session.map_err(|invalid| RequestError::invalid(invalid.to_string()))?;
            call.identity = Some(CallIdentity { session, labels: call.labels(proxy, Some(&*decoded)) });
            Ok(decoded)
        })
    });
    let decoded = match decoded.await {
        Ok(decoded) => decoded,
        Err(error) => return Ok((Err(error), call)),
    };
    if let Some(name) = call.session_name()
        && let Err(error) = proxy.sessions.refresh_for_call(name).await
    {
        // the generation continues with the turns in memory
        tracing::debug!(%error, session = %name, "a shared session was not read");
    }
    let session = call.existing_session(proxy);
    let is_long = length > LONG || decoded.is_long(session.as_deref());
    let own = Arc::clone(proxy);
    let make = move || {
        let _memory = memory;
        let prepared = catch_panic(&own, || {
            let is_named = call.session_name().is_some();
            let named = RequestSession { is_named, existing: session.as_ref(), omits_media: false };
            let plan = match refusal {
                Some(reason) => Err(RequestError::Unsupported(reason)),
                None => decoded.plan(named, &work),
            };
            match plan {
                Ok(ApiPlan::Local(reply)) => Ok(PreparedCall::Local(reply)),
                Ok(ApiPlan::Generation(ApiGeneration { request, chat, encoder })) => {
                    Ok(PreparedCall::Generation { source: Source::Generate { request, chat }, encoder })
                }
                Err(error) if !call.api.generates() => Err(error),
                Err(RequestError::Unsupported(reason)) => call.choose_endpoint(&own, &*decoded, named, &work, reason),
                Err(error) => decoded.encode_failed_stream(&error).map(PreparedCall::Events).ok_or(error),
            }
        });
        (prepared, call)
    };
    if !is_long {
        return Ok(make());
    }
    let made = on_thread(length, make).await;
    made.map_err(|error| Error::Internal { message: error.to_string() })
}

/// Runs a step and turns a panic into an error that sends the call to the engine's own endpoint.
fn catch_panic<T>(proxy: &Proxy, step: impl FnOnce() -> Result<T, RequestError>) -> Result<T, RequestError> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| {
        proxy.metrics.panics.inc();
        Err(RequestError::Unsupported("tokentap panicked".to_owned()))
    })
}

impl ApiCall {
    /// Chooses the endpoint of the engine that serves a call which tokentap cannot render: its chat endpoint, if only that one can report the token
    /// ids, or else the one of the call's API.
    fn choose_endpoint(
        &self,
        proxy: &Proxy,
        decoded: &dyn ApiRequest,
        session: RequestSession<'_>,
        work: &Work,
        reason: String,
    ) -> Result<PreparedCall, RequestError> {
        let is_recorded = proxy.config.sessions.record && session.is_named;
        let engine = Arc::clone(&proxy.upstream.borrow());
        if self.route.reports_ids() {
            decoded.check_passthrough()?;
            let chat = if is_recorded { decoded.client_chat(self.route, session, work, &engine) } else { None };
            return Ok(PreparedCall::Forwarded { reason, chat: chat.map(Box::new) });
        }
        let may_translate = is_recorded && engine.chat.reports_ids;
        let chat = if may_translate { decoded.forwarded_chat(session, work) } else { None };
        let translated =
            chat.and_then(|chat| engine_chat::translate(decoded, self.route, chat, session, work, &engine));
        let Some((chat, encoder)) = translated else {
            decoded.check_passthrough()?;
            return Ok(PreparedCall::Forwarded { reason, chat: None });
        };
        tracing::debug!(%reason, endpoint = self.route.endpoint, "sending a call to the engine's chat endpoint");
        let chat = EngineChat { reason: reason.into(), ..chat };
        Ok(PreparedCall::Generation { source: Source::EngineChat(Box::new(chat)), encoder })
    }

    /// The labels of the turns of the call: from its headers, and from its body if it is decoded here.
    fn labels(&self, proxy: &Proxy, decoded: Option<&dyn ApiRequest>) -> Option<Arc<Labels>> {
        if !proxy.config.sessions.record || !self.api.generates() {
            return None;
        }
        let headers = self.received.request.headers();
        let mut labels = client_headers::labels(headers).unwrap_or_default();
        labels.dialect = self.api.dialect();
        if let Some(client) = client_headers::client(headers) {
            fill_label(&mut labels.client, &client);
        }
        if let Some(decoded) = decoded {
            decoded.add_labels(&mut labels);
        }
        (labels != Labels::default()).then(|| Arc::new(labels))
    }

    /// The name of the session that the client gave; `None` before the body is decoded.
    fn session_name(&self) -> Option<&Arc<str>> {
        let session = self.identity.as_ref().map(|identity| &identity.session);
        session.filter(|session| session.explicit).map(|session| &session.session)
    }

    /// The session that the client named, if it exists.
    fn existing_session(&self, proxy: &Proxy) -> Option<Arc<Session>> {
        proxy.sessions.session(self.session_name()?)
    }
}
