//! Serves the requests of the agents' APIs: the part that all APIs share.

mod encoding;
mod passthrough;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::api::{Api, ApiGeneration, ApiPlan, ApiRequest, LocalReply, ReplyEncoder, client_headers, engine_chat};
use crate::budget::Work;
use crate::chat::forwarded::ForwardedChat;
use crate::chat::{RequestError, RequestSession};
use crate::engine::sglang::request::SessionNames;
use crate::engine::sglang::routes::{self, Route};
use crate::error::Error;
use crate::generation::event::EventAccess;
use crate::generation::request::{BodyDigest, RequestHead, Source};
use crate::long_work::{BodyLength, on_body, on_thread};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::{Body, read_body};
use crate::serve::data::api_call::passthrough::pass_through;
use crate::serve::data::generate::{self, DecodedGeneration};
use crate::serve::identity::{Identity, InvalidName};
use crate::serve::misdirected::UnsupportedRequest;
use crate::serve::proxy::Proxy;
use crate::serve::request_info::RequestInfo;
use crate::serve::response::{json_response, response};
use crate::session::{Labels, Session, fill_label};

/// Bytes of a request that block a runtime thread for too long.
const LONG: usize = 8 << 10;

/// Whether a request is read here. `session` is the session in its path. Other requests are forwarded unread.
pub(crate) fn reads(proxy: &Proxy, api: &dyn Api, request: &Request<Incoming>, session: Option<&Arc<str>>) -> bool {
    if api.is_served() {
        return true;
    }
    let records = RequestInfo::of(request).route.reports_ids() && proxy.config.sessions.record;
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
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    let route = RequestInfo::of(&request).route;
    let (head, body) = request.into_parts();
    let limits = &proxy.config.limits;
    let work = &Work::new(&proxy.budget);
    let body = read_body(body, limits, Some(work.share()), limits.max_request_bytes).await?;
    let request = Request::from_parts(head, body);
    let call = ApiCall { api, route, request, session, identity: None, labels: None };
    dispatch(CallContext { proxy, work, record }, call).await
}

/// The context that the stages of a call share.
#[derive(Clone, Copy)]
pub(super) struct CallContext<'a> {
    pub(super) proxy: &'a Arc<Proxy>,
    /// Counts the memory of the call.
    pub(super) work: &'a Work,
    pub(super) record: &'a AccessRecord,
}

/// A request whose body has been read.
#[derive(Clone)]
pub(super) struct ApiCall {
    pub(super) api: Arc<dyn Api>,
    pub(super) route: Route,
    pub(super) request: Request<Bytes>,
    /// The session in the path.
    session: Option<Arc<str>>,
    /// The session of the call, set once the body is decoded.
    pub(super) identity: Option<Identity>,
    /// The labels of its turns, set once the body is decoded.
    labels: Option<Arc<Labels>>,
}

/// Decodes a call, then replies, generates or forwards it.
async fn dispatch(context: CallContext<'_>, call: ApiCall) -> Result<Response<Body>, Error> {
    let CallContext { proxy, .. } = context;
    if !call.api.is_served() {
        // forwarded without decoding
        return pass_through(context, call, None).await;
    }
    let (prepared, call) = prepare(context, call).await?;
    match prepared {
        Ok(PreparedCall::Local(LocalReply { encoded, stored })) => {
            proxy.wait_written(stored).await;
            let (status, body) = encoded.map_or_else(|error| (error.status, error.body), |body| (StatusCode::OK, body));
            Ok(json_response(status, proxy.budget.hold(body)))
        }
        Ok(PreparedCall::Events(events)) => Ok(response(StatusCode::OK, "text/event-stream", Body::full(events))),
        Ok(PreparedCall::Generation(generation)) => run(context, call, generation).await,
        Ok(PreparedCall::Forwarded { reason, chat }) => forward(context, call, reason, chat).await,
        Err(RequestError::Unsupported(reason)) => forward(context, call, reason, None).await,
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
async fn run(context: CallContext<'_>, call: ApiCall, prepared: PreparedGeneration) -> Result<Response<Body>, Error> {
    let CallContext { proxy, work, record } = context;
    let PreparedGeneration { source, mut encoder, digest } = prepared;
    let (target, fallback) = match &source {
        Source::Generate { .. } => (routes::GENERATE.endpoint, None),
        // the engine may report no ids, from which the reply is encoded; the endpoint of the call's API needs none
        Source::EngineChat(_) => (routes::CHAT, Some(call.clone())),
    };
    let ApiCall { api, request, identity, labels, .. } = call;
    let identity = identity.ok_or_else(|| Error::Internal { message: "a call without a session".into() })?;
    let mut headers = request.into_parts().0.headers;
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let head = RequestHead { method: Method::POST, target: target.into(), headers };
    let (work, reads) = (work.following(), EventAccess::Fields);
    let decoded = DecodedGeneration { work, source, identity, digest, labels, reads };
    let generation = generate::run(proxy, head, decoded, record).await?;
    if let Some(rid) = record.rid().get().and_then(|rid| rid.get()) {
        encoder.set_rid(rid);
    }
    match (encoding::encode(proxy, api, generation, encoder).await, fallback) {
        (Err(error @ Error::NoTokenIds), Some(call)) => forward(context, call, error.to_string(), None).await,
        (encoded, _) => encoded,
    }
}

/// Passes a call that tokentap cannot serve, for `reason`, to the engine's own endpoint.
async fn forward(
    context: CallContext<'_>,
    call: ApiCall,
    reason: String,
    chat: Option<ForwardedChat>,
) -> Result<Response<Body>, Error> {
    tracing::debug!(%reason, endpoint = call.route.endpoint, "forwarding a call to the engine's own endpoint");
    let (api, path) = (Arc::clone(&call.api), call.request.uri().path().to_owned());
    let unsupported = UnsupportedRequest { api, path, reason };
    unsupported.explain(pass_through(context, call, chat).await?).await
}

/// How a decoded call is served.
enum PreparedCall {
    Generation(PreparedGeneration),
    /// No generation: this is the reply.
    Local(LocalReply),
    /// No generation: these are the events of the stream.
    Events(String),
    /// The engine's own endpoint, for `reason`.
    Forwarded {
        reason: String,
        /// The conversation that the turns continue.
        chat: Option<ForwardedChat>,
    },
}

/// A generation whose reply is encoded.
struct PreparedGeneration {
    source: Source,
    encoder: Box<dyn ReplyEncoder>,
    /// Set if the call may be retried.
    digest: Option<BodyDigest>,
}

/// Decodes a call and builds its generation. Long calls are processed on a blocking thread.
async fn prepare(
    CallContext { proxy, work, .. }: CallContext<'_>,
    mut call: ApiCall,
) -> Result<(Result<PreparedCall, RequestError>, ApiCall), Error> {
    let length = call.request.body().len();
    let work = work.clone();
    let _guard = work.until_dropped();
    let mut memory = work.share();
    let decoded = on_body(BodyLength::Request(length), || {
        catch_panic(proxy, || {
            work.add(&mut memory, call.api.decoded_bytes(call.request.body()))?;
            let decoded = call.api.decode(&call.request)?;
            let identity = call.identify(proxy, Some(&decoded.session_names()));
            call.identity = Some(identity.map_err(|invalid| RequestError::invalid(invalid.to_string()))?);
            call.labels = call.labels(proxy, Some(&*decoded));
            Ok(decoded)
        })
    });
    let decoded = match decoded.await {
        Ok(decoded) => decoded,
        Err(error) => return Ok((Err(error), call)),
    };
    if let Some(name) = call.session_name()
        && let Err(error) = proxy.sessions.refresh([name]).await
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
            match decoded.plan(named, &work) {
                Ok(ApiPlan::Local(reply)) => Ok(PreparedCall::Local(reply)),
                Ok(ApiPlan::Generation(ApiGeneration { request, chat, encoder })) => {
                    let digest = generate::digest(&own, call.identity.as_ref(), &request.bytes);
                    let source = Source::Generate { request, chat };
                    Ok(PreparedCall::Generation(PreparedGeneration { source, encoder, digest }))
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
        let mut chat = if session.is_named { decoded.forwarded_chat(session, work) } else { None };
        let engine = Arc::clone(&proxy.upstream.borrow());
        let may_translate = proxy.config.sessions.record && engine.chat.reports_ids && !self.route.reports_ids();
        let translated = chat.take_if(|_| may_translate);
        let translated =
            translated.and_then(|chat| engine_chat::translate(decoded, self.route, chat, session, work, &engine));
        let Some((chat, encoder)) = translated else {
            decoded.check_passthrough()?;
            return Ok(PreparedCall::Forwarded { reason, chat });
        };
        tracing::debug!(%reason, endpoint = self.route.endpoint, "sending a call to the engine's chat endpoint");
        let digest = generate::digest(proxy, self.identity.as_ref(), &chat.body);
        let generation = PreparedGeneration { source: Source::EngineChat(Box::new(chat)), encoder, digest };
        Ok(PreparedCall::Generation(generation))
    }

    /// Finds the session of the call. `names` are those in the body, which has the same members as a native request.
    pub(super) fn identify(&self, proxy: &Proxy, names: Option<&SessionNames>) -> Result<Identity, InvalidName> {
        let head = &self.request;
        Identity::find(&proxy.config, self.session.as_ref(), head.uri().query(), head.headers(), names)
    }

    /// The labels of the turns of the call: from its headers, and from its body if it is decoded here.
    pub(super) fn labels(&self, proxy: &Proxy, decoded: Option<&dyn ApiRequest>) -> Option<Arc<Labels>> {
        if !proxy.config.sessions.record || !self.api.generates() {
            return None;
        }
        if self.labels.is_some() {
            return self.labels.clone();
        }
        let headers = self.request.headers();
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
        self.identity.as_ref().filter(|identity| identity.explicit).map(|identity| &identity.session)
    }

    /// The session that the client named, if it exists.
    fn existing_session(&self, proxy: &Proxy) -> Option<Arc<Session>> {
        proxy.sessions.session(self.session_name()?)
    }
}
