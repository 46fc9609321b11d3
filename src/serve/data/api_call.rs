//! Requests of the APIs that agents speak: what is the same for all of them.

mod reply;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::api::{Api, ApiGeneration, ApiRequest, RequestSession};
use crate::chat::RequestError;
use crate::chat::remembered::Remembered;
use crate::engine::client::{Failure, UploadError};
use crate::engine::request::SessionNames;
use crate::engine::routes::{self, Route};
use crate::error::Error;
use crate::generation::event::Reads;
use crate::generation::request::Head;
use crate::generation::retries::Digest;
use crate::long_work::{on_body, on_thread};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::{Body, Upload};
use crate::serve::data::generate::{self, DecodedGeneration};
use crate::serve::data::identity::{Identity, InvalidName};
use crate::serve::data::passthrough::pass_through;
use crate::serve::proxy_state::ProxyState;
use crate::serve::reply::error_reply;
use crate::session::Session;

/// How many times its length a body takes while it is taken apart.
const VALUES: usize = 2;

/// Bytes of a call that keep a thread busy for longer than others should wait.
const LONG: usize = 8 << 10;

/// Whether a request is read here: `session` is the one that its path names. Others are forwarded unread.
#[must_use]
pub fn reads(state: &ProxyState, api: &dyn Api, request: &Request<Incoming>, session: Option<&Arc<str>>) -> bool {
    if api.is_served() {
        return true;
    }
    let records = api.reads_passthrough() && state.config.sessions.record;
    let length = request.body().size_hint().exact();
    let may_be_held = length.is_some_and(|length| length <= state.config.limits.max_request_bytes);
    let identity = || Identity::of(&state.config, session, request.uri(), request.headers(), None);
    // a name that cannot be one is refused in the shape that the API's clients read
    records && may_be_held && identity().map_or(true, |identity| identity.explicit)
}

/// Serves a request of an API; `session` is the one that the path names. Errors have the shape of the API.
pub async fn serve(
    state: &Arc<ProxyState>,
    (api, route): (&Arc<dyn Api>, Route),
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    record: &AccessRecord,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let limits = &state.config.limits;
    let upload = Upload::new(body, limits.client_body_timeout).counted(Some(state.budget.request()));
    let answered = match upload.read(limits.max_request_bytes).await {
        Ok(body) => {
            let request = Request::from_parts(head, body);
            let call = ApiCall { api: Arc::clone(api), route, request, session, identity: None, remembered: None };
            answer(state, call, record).await
        }
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| {
        let told = api.error(error.status(), error.to_string());
        let mut reply = error_reply(&error);
        *reply.status_mut() = told.status;
        *reply.body_mut() = Body::full(told.body);
        reply
    })
}

/// A request whose body has been read.
pub(super) struct ApiCall {
    pub(super) api: Arc<dyn Api>,
    pub(super) route: Route,
    pub(super) request: Request<Bytes>,
    /// The session that the path names.
    session: Option<Arc<str>>,
    /// Its session, once the body was decoded.
    pub(super) identity: Option<Identity>,
    /// What its turn remembers where the engine's own endpoint serves it.
    pub(super) remembered: Option<Remembered>,
}

async fn answer(state: &Arc<ProxyState>, call: ApiCall, record: &AccessRecord) -> Result<Response<Body>, Error> {
    if !call.api.is_served() {
        // nothing of it is decoded
        return pass_through(state, call, record).await;
    }
    let (prepared, call) = prepare(state, call).await?;
    match prepared {
        Ok((ApiGeneration { request, chat, encoder }, digest)) => {
            let mut headers = call.request.into_parts().0.headers;
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let head = Head { method: Method::POST, target: routes::GENERATE.endpoint.to_owned(), headers };
            let identity =
                call.identity.ok_or_else(|| Error::Internal { message: "a call without a session".into() })?;
            let decoded = DecodedGeneration { request, identity, digest, chat, reads: Reads::Fields };
            let generation = generate::run(state, head, decoded, record).await?;
            Ok(reply::reply(state, call.api, generation, encoder).await)
        }
        Err(RequestError::Invalid(message)) => Err(Error::bad_request(message)),
        Err(RequestError::LimitReached { limit, message }) => {
            state.metrics.chat.refusals.with_label_values(&[limit]).inc();
            Err(Error::Client { status: StatusCode::FORBIDDEN, message })
        }
        Err(RequestError::Unsupported(what)) => {
            tracing::debug!(%what, endpoint = call.route.endpoint, "a call goes to the engine's own endpoint");
            pass_through(state, call, record).await
        }
    }
}

/// The generation, and the digest of its request where it may be retried.
type Prepared = (ApiGeneration, Option<Digest>);

/// Makes the generation. What takes long is done on a blocking thread.
async fn prepare(
    state: &Arc<ProxyState>,
    mut call: ApiCall,
) -> Result<(Result<Prepared, RequestError>, ApiCall), Error> {
    let length = call.request.body().len();
    let mut share = state.budget.request();
    // as values a body takes more than its length, and one that is let in must find room
    if length > LONG && share.grow(VALUES * length).is_err() {
        share.shed();
        return Err(Failure::from(UploadError::NoRoom).into());
    }
    let decoded = on_body(length, || {
        guarded(state, || {
            let decoded = call.api.decode(&call.request)?;
            let identity = call.identify(state, Some(&decoded.session_names()));
            call.identity = Some(identity.map_err(|invalid| RequestError::invalid(invalid.to_string()))?);
            Ok(decoded)
        })
    });
    let decoded = match decoded.await {
        Ok(decoded) => decoded,
        Err(error) => return Ok((Err(error), call)),
    };
    let session = call.existing_session(state);
    let is_long = length > LONG || decoded.is_long(session.as_deref());
    let own = Arc::clone(state);
    let make = move || {
        let generation = guarded(&own, || generation(&mut call, &*decoded, session.as_ref()));
        let prepared = generation.map(|generation| {
            let digest = generate::digest(&own, call.identity.as_ref(), &generation.request);
            (generation, digest)
        });
        (prepared, call)
    };
    if !is_long {
        return Ok(make());
    }
    let made = on_thread(length, make).await;
    made.map_err(|error| Error::Internal { message: error.to_string() })
}

/// The generation of a request. Where the engine's own endpoint has to serve it, the call gets what its turn remembers.
fn generation(
    call: &mut ApiCall,
    decoded: &dyn ApiRequest,
    session: Option<&Arc<Session>>,
) -> Result<ApiGeneration, RequestError> {
    let is_named = call.named().is_some();
    let generation = decoded.generation(RequestSession { is_named, existing: session });
    if is_named && matches!(generation, Err(RequestError::Unsupported(_))) {
        call.remembered = decoded.remembered(session.map(|session| &**session));
    }
    generation
}

/// Runs a step where a panic does not cost the client its generation: the engine's own endpoint has not been asked yet.
fn guarded<T>(state: &ProxyState, step: impl FnOnce() -> Result<T, RequestError>) -> Result<T, RequestError> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| {
        state.metrics.panics.inc();
        Err(RequestError::Unsupported("a panic of ours".to_owned()))
    })
}

impl ApiCall {
    /// The session, by what the body names. Sessions are named as they are in a native request.
    pub(super) fn identify(&self, state: &ProxyState, names: Option<&SessionNames>) -> Result<Identity, InvalidName> {
        let head = &self.request;
        Identity::of(&state.config, self.session.as_ref(), head.uri(), head.headers(), names)
    }

    /// The session that the request names, once its body was decoded.
    fn named(&self) -> Option<&Arc<str>> {
        self.identity.as_ref().filter(|identity| identity.explicit).map(|identity| &identity.session)
    }

    /// The same, where it exists.
    fn existing_session(&self, state: &ProxyState) -> Option<Arc<Session>> {
        state.sessions.session(self.named()?)
    }
}
