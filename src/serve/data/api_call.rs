//! Serves the requests of the agents' APIs: the part that all APIs share.

mod passthrough;
mod reply;

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
use crate::serve::body::{Body, Upload};
use crate::serve::data::api_call::passthrough::pass_through;
use crate::serve::data::generate::{self, DecodedGeneration};
use crate::serve::identity::{Identity, InvalidName};
use crate::serve::misdirected::UnsupportedRequest;
use crate::serve::proxy::Proxy;
use crate::serve::reply::{error_reply, in_format_of};
use crate::session::{Labels, Session, fill_label};

/// Bytes of a request that block a runtime thread for too long.
const LONG: usize = 8 << 10;

/// Whether a request is read here. `session` is the session in its path. Other requests are forwarded unread.
#[must_use]
pub(crate) fn reads(
    state: &Proxy,
    (api, route): (&dyn Api, Route),
    request: &Request<Incoming>,
    session: Option<&Arc<str>>,
) -> bool {
    if api.is_served() {
        return true;
    }
    let records = route.reports_ids() && state.config.sessions.record;
    let length = request.body().size_hint().exact();
    let may_be_held = length.is_some_and(|length| length <= state.config.limits.max_request_bytes);
    let identity = || Identity::of(&state.config, session, request.uri().query(), request.headers(), None);
    // an invalid name is refused too, in the error format of the API
    records && may_be_held && identity().map_or(true, |identity| identity.explicit)
}

/// Serves a request of an API. `session` is the session in the path. Errors have the format of the API.
pub(crate) async fn serve(
    state: &Arc<Proxy>,
    (api, route): (&Arc<dyn Api>, Route),
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    record: &AccessRecord,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let limits = &state.config.limits;
    let work = Work::new(&state.budget);
    let upload = Upload::new(body, limits.client_body_timeout).with_share(Some(work.share()));
    let answered = match upload.read(limits.max_request_bytes).await {
        Ok(body) => {
            let request = Request::from_parts(head, body);
            let call = ApiCall { api: Arc::clone(api), route, request, session, identity: None, labels: None };
            answer(state, call, (&work, record)).await
        }
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| in_format_of(&**api, error_reply(&error), error.to_string()))
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

async fn answer(
    state: &Arc<Proxy>,
    call: ApiCall,
    (work, record): (&Work, &AccessRecord),
) -> Result<Response<Body>, Error> {
    if !call.api.is_served() {
        // forwarded without decoding
        return pass_through(state, call, None, (work, record)).await;
    }
    let (prepared, call) = prepare(state, call, work).await?;
    match prepared {
        Ok(PreparedCall::Reply(LocalReply { encoded, stored })) => {
            state.generator.context.log_wait.wait(vec![stored]).await;
            Ok(reply::without_generation(state, encoded))
        }
        Ok(PreparedCall::Events(events)) => Ok(reply::stream_without_generation(events)),
        Ok(PreparedCall::Generation(generation)) => run(state, call, generation, (work, record)).await,
        Ok(PreparedCall::Forwarded { reason, chat }) => forward(state, call, reason, chat, (work, record)).await,
        Err(RequestError::Unsupported(reason)) => forward(state, call, reason, None, (work, record)).await,
        Err(RequestError::Invalid(message)) => Err(Error::bad_request(message)),
        Err(RequestError::TooLong { tokens, context }) => {
            Err(Error::bad_request(call.api.prompt_too_long(tokens, context)))
        }
        Err(RequestError::Stopped(stopped)) => Err(stopped.into()),
        Err(RequestError::LimitReached { limit, message }) => {
            state.metrics.chat.refusals.with_label_values(&[limit]).inc();
            Err(Error::Client { status: StatusCode::FORBIDDEN, message })
        }
    }
}

/// Runs a generation and encodes its reply.
async fn run(
    state: &Arc<Proxy>,
    call: ApiCall,
    PreparedGeneration { source, mut encoder, digest }: PreparedGeneration,
    (work, record): (&Work, &AccessRecord),
) -> Result<Response<Body>, Error> {
    let (target, own) = match &source {
        Source::Generate { .. } => (routes::GENERATE.endpoint, None),
        // the engine may report no ids, from which the reply is encoded; the endpoint of the call's API needs none
        Source::EngineChat(_) => (routes::CHAT, Some(call.clone())),
    };
    let ApiCall { api, request, identity, labels, .. } = call;
    let identity = identity.ok_or_else(|| Error::Internal { message: "a call without a session".into() })?;
    let mut headers = request.into_parts().0.headers;
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let head = RequestHead { method: Method::POST, target: target.into(), headers };
    let (following, reads) = (work.following(), EventAccess::Fields);
    let decoded = DecodedGeneration { work: following, source, identity, digest, labels, reads };
    let generation = generate::run(state, head, decoded, record).await?;
    if let Some(rid) = record.rid().get().and_then(|rid| rid.get()) {
        encoder.set_rid(rid);
    }
    match (reply::reply(state, api, generation, encoder).await, own) {
        (Ok(reply), _) => Ok(reply),
        (Err(_), Some(call)) => forward(state, call, Error::NoTokenIds.to_string(), None, (work, record)).await,
        (Err(_), None) => Err(Error::NoTokenIds),
    }
}

/// Passes a call that tokentap cannot serve, for `reason`, to the engine's own endpoint.
async fn forward(
    state: &Arc<Proxy>,
    call: ApiCall,
    reason: String,
    chat: Option<ForwardedChat>,
    context: (&Work, &AccessRecord),
) -> Result<Response<Body>, Error> {
    tracing::debug!(%reason, endpoint = call.route.endpoint, "forwarding a call to the engine's own endpoint");
    let (api, path) = (Arc::clone(&call.api), call.request.uri().path().to_owned());
    let unsupported = UnsupportedRequest { api, path, reason };
    unsupported.answer(pass_through(state, call, chat, context).await?).await
}

/// What a decoded call needs.
enum PreparedCall {
    Generation(PreparedGeneration),
    /// Nothing more: this is the reply.
    Reply(LocalReply),
    /// Nothing more: these are the events of the stream.
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
    state: &Arc<Proxy>,
    mut call: ApiCall,
    work: &Work,
) -> Result<(Result<PreparedCall, RequestError>, ApiCall), Error> {
    let length = call.request.body().len();
    let work = work.clone();
    let _guard = work.until_dropped();
    let mut memory = work.share();
    let decoded = on_body(BodyLength::Request(length), || {
        catch_panic(state, || {
            work.add(&mut memory, call.api.decoded_bytes(call.request.body()))?;
            let decoded = call.api.decode(&call.request)?;
            let identity = call.identify(state, Some(&decoded.session_names()));
            call.identity = Some(identity.map_err(|invalid| RequestError::invalid(invalid.to_string()))?);
            call.labels = call.labels(state, Some(&*decoded));
            Ok(decoded)
        })
    });
    let decoded = match decoded.await {
        Ok(decoded) => decoded,
        Err(error) => return Ok((Err(error), call)),
    };
    if let Some(name) = call.session_name()
        && let Err(error) = state.sessions.refresh([name]).await
    {
        // the generation goes on with what is in memory
        tracing::debug!(%error, session = %name, "a shared session was not read");
    }
    let session = call.existing_session(state);
    let is_long = length > LONG || decoded.is_long(session.as_deref());
    let own = Arc::clone(state);
    let make = move || {
        let _memory = memory;
        let prepared = catch_panic(&own, || {
            let is_named = call.session_name().is_some();
            let named = RequestSession { is_named, existing: session.as_ref(), omits_media: false };
            match decoded.plan(named, &work) {
                Ok(ApiPlan::Local(reply)) => Ok(PreparedCall::Reply(reply)),
                Ok(ApiPlan::Generation(ApiGeneration { request, chat, encoder })) => {
                    let digest = generate::digest(&own, call.identity.as_ref(), &request.bytes);
                    let source = Source::Generate { request, chat };
                    Ok(PreparedCall::Generation(PreparedGeneration { source, encoder, digest }))
                }
                Err(error) if !call.api.generates() => Err(error),
                Err(RequestError::Unsupported(reason)) => unsupported(&own, &call, &*decoded, (named, &work), reason),
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

/// Chooses the endpoint of the engine that serves a call which tokentap cannot render: its chat endpoint, if only that one can report the token
/// ids, or else the one of the call's API.
fn unsupported(
    state: &Proxy,
    call: &ApiCall,
    decoded: &dyn ApiRequest,
    (session, work): (RequestSession<'_>, &Work),
    reason: String,
) -> Result<PreparedCall, RequestError> {
    let mut chat = if session.is_named { decoded.forwarded_chat(session, work) } else { None };
    let engine = Arc::clone(&state.upstream.borrow());
    let may_translate = state.config.sessions.record && engine.chat.reports_ids && !call.route.reports_ids();
    let translated = chat.take_if(|_| may_translate);
    let translated =
        translated.and_then(|chat| engine_chat::translate(decoded, call.route, chat, session, work, &engine));
    let Some((chat, encoder)) = translated else {
        decoded.check_passthrough()?;
        return Ok(PreparedCall::Forwarded { reason, chat });
    };
    tracing::debug!(%reason, endpoint = call.route.endpoint, "sending a call to the engine's chat endpoint");
    let digest = generate::digest(state, call.identity.as_ref(), &chat.body);
    let generation = PreparedGeneration { source: Source::EngineChat(Box::new(chat)), encoder, digest };
    Ok(PreparedCall::Generation(generation))
}

/// Runs a step and turns a panic into an error that sends the call to the engine's own endpoint.
fn catch_panic<T>(state: &Proxy, step: impl FnOnce() -> Result<T, RequestError>) -> Result<T, RequestError> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| {
        state.metrics.panics.inc();
        Err(RequestError::Unsupported("tokentap panicked".to_owned()))
    })
}

impl ApiCall {
    /// Finds the session of the call. `names` are those in the body, which has the same members as a native request.
    pub(super) fn identify(&self, state: &Proxy, names: Option<&SessionNames>) -> Result<Identity, InvalidName> {
        let head = &self.request;
        Identity::of(&state.config, self.session.as_ref(), head.uri().query(), head.headers(), names)
    }

    /// The labels of the turns of the call: from its headers, and from its body if it is decoded here.
    pub(super) fn labels(&self, state: &Proxy, decoded: Option<&dyn ApiRequest>) -> Option<Arc<Labels>> {
        if !state.config.sessions.record || !self.api.generates() {
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
    fn existing_session(&self, state: &Proxy) -> Option<Arc<Session>> {
        state.sessions.session(self.session_name()?)
    }
}
