//! OpenAI's routes: a call becomes a native generation, and its reply is said as the client expects it.

mod chat;
mod completions;
mod encoder;
mod overheard;
mod passed;
mod sampling;
mod witness;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::api::openai::problem::Problem;
use crate::api::openai_chat::request::ChatRequest;
use crate::api::openai_completions::request::CompletionRequest;
use crate::api::voice::Voice;
use crate::chat::RequestError;
use crate::chat::model::Chats;
use crate::chat::remembered::Remembered;
use crate::config::ChatMode;
use crate::error::Error;
use crate::generation::event::Reads;
use crate::generation::request::Head;
use crate::generation::retries::Digest;
use crate::http::access_log::AccessRecord;
use crate::http::body::{Body, Upload};
use crate::http::generate::{self, Decoded};
use crate::http::identity::{Identity, InvalidName};
use crate::http::{Parts, error_reply};
use crate::long_work::{on_body, on_thread};
use crate::sglang::client::{Failure, UploadError};
use crate::sglang::request::{GenerateRequest, SessionNames};
use crate::sglang::routes::{self, Route};
use crate::trajectory::{Chat, Session};

use passed::passed;

pub use overheard::Overheard;
pub use sampling::Sampling;

/// How many times its length a body takes while it is taken apart.
const VALUES: usize = 2;

/// Bytes of a call that keep a thread busy for longer than others should wait.
const LONG: usize = 8 << 10;

/// Replies of a session that are read at once; more keep a thread busy for too long. After a restart none have been read.
const READ_AT_ONCE: usize = 8;

/// Whether a call is served here: `session` is the one that its path names. One that is not is forwarded as it comes, unread; but a
/// chat whose path or headers name a session is read where it says that it may be held, because the engine may tell its ids.
#[must_use]
pub fn serves(parts: &Parts, route: Route, request: &Request<Incoming>, session: Option<&Arc<str>>) -> bool {
    let is_read = || {
        let length = request.body().size_hint().exact();
        let identity = Identity::of(&parts.config, session, request.uri(), request.headers(), None);
        // a name that cannot be one is refused in the shape that OpenAI's clients read
        let named = identity.map_or(true, |identity| identity.explicit);
        let may_be_held = length.is_some_and(|length| length <= parts.config.limits.max_request_bytes);
        parts.config.sessions.record && named && may_be_held
    };
    *request.method() == Method::POST
        && match route.endpoint {
            routes::CHAT => matches!(&**parts.chats.borrow(), Chats::Rendered(_)) || is_read(),
            routes::COMPLETIONS => parts.config.chat.chat != ChatMode::Passthrough,
            _ => false,
        }
}

/// Serves a call of such a route; `session` is the one that the path names. What goes wrong is told in the shape that OpenAI's clients
/// read.
pub async fn serve(
    parts: &Arc<Parts>,
    route: Route,
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    record: &AccessRecord,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let limits = &parts.config.limits;
    let upload = Upload::new(body, limits.client_body_timeout).counted(Some(parts.budget.request()));
    let answered = match upload.read(limits.max_request_bytes).await {
        Ok(body) => {
            let request = Request::from_parts(head, body);
            let call = Call { route, request, session, identity: None, remembered: None };
            answer(parts, call, record).await
        }
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| told(&error))
}

/// A call whose body has been read.
struct Call {
    route: Route,
    request: Request<Bytes>,
    /// The session that the path names.
    session: Option<Arc<str>>,
    /// Its session, once the body was decoded.
    identity: Option<Identity>,
    /// What its turn remembers where the engine's own endpoint serves it.
    remembered: Option<Remembered>,
}

/// The body of a call.
enum DecodedBody {
    Chat(Arc<ChatRequest>),
    Completion(Box<CompletionRequest>),
}

/// The native request that a call becomes.
struct Native {
    request: GenerateRequest,
    /// What its turn remembers, where it is a turn of a chat.
    chat: Option<Box<Chat>>,
    /// Encodes the reply.
    voice: Voice,
}

async fn answer(parts: &Arc<Parts>, call: Call, record: &AccessRecord) -> Result<Response<Body>, Error> {
    let is_forwarded = matches!(&**parts.chats.borrow(), Chats::Forwarded(_));
    if is_forwarded && call.route.endpoint == routes::CHAT {
        // nothing of it is taken apart
        return passed(parts, call, record).await;
    }
    let (native, call) = prepare(parts, call).await?;
    match native {
        Ok((native, digest)) => {
            let Native { request, chat, voice } = native;
            let mut headers = call.request.into_parts().0.headers;
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let head = Head { method: Method::POST, target: routes::GENERATE.endpoint.to_owned(), headers };
            let identity =
                call.identity.ok_or_else(|| Error::Internal { message: "a call without a session".into() })?;
            let decoded = Decoded { request, identity, digest, chat, reads: Reads::Fields };
            let generation = generate::run(parts, head, decoded, record).await?;
            Ok(encoder::reply(parts, generation, voice).await)
        }
        Err(RequestError::Invalid(message)) => Err(Error::bad_request(message)),
        Err(RequestError::LimitReached { limit, message }) => {
            parts.metrics.chat.refusals.with_label_values(&[limit]).inc();
            Err(Error::Client { status: StatusCode::FORBIDDEN, message })
        }
        Err(RequestError::Unsupported(what)) => {
            tracing::debug!(%what, endpoint = call.route.endpoint, "a call goes to the engine's own endpoint");
            passed(parts, call, record).await
        }
    }
}

/// The native request, and the digest of its body where it may be retried.
type Prepared = (Native, Option<Digest>);

/// Makes the native request. What takes long is done on a thread of its own.
async fn prepare(parts: &Arc<Parts>, mut call: Call) -> Result<(Result<Prepared, RequestError>, Call), Error> {
    let length = call.request.body().len();
    let mut share = parts.budget.request();
    // as values a body takes more than its length, and one that is let in must find room
    if length > LONG && share.grow(VALUES * length).is_err() {
        share.shed();
        return Err(Failure::from(UploadError::NoRoom).into());
    }
    let decoded = match on_body(length, || guarded(parts, || decode(parts, &mut call))).await {
        Ok(decoded) => decoded,
        Err(unserved) => return Ok((Err(unserved), call)),
    };
    let long = length > LONG || has_unread_replies(parts, &call);
    let own = Arc::clone(parts);
    let made = move || {
        let native = guarded(&own, || match decoded {
            DecodedBody::Chat(chat) => chat::native(&own, &mut call, &chat),
            DecodedBody::Completion(completion) => completions::native(&own, &completion),
        });
        let digest = |native: &Native| generate::digest(&own, call.identity.as_ref(), &native.request);
        (
            native.map(|native| {
                let digest = digest(&native);
                (native, digest)
            }),
            call,
        )
    };
    if !long {
        return Ok(made());
    }
    let made = on_thread(length, made).await;
    made.map_err(|error| Error::Internal { message: error.to_string() })
}

/// Runs a step where a panic does not cost the client its generation: the engine's own endpoint has not been asked yet.
fn guarded<T>(parts: &Parts, step: impl FnOnce() -> Result<T, RequestError>) -> Result<T, RequestError> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| {
        parts.metrics.panics.inc();
        Err(RequestError::Unsupported("a panic of ours".to_owned()))
    })
}

/// Decodes the body, and finds the session that the call names.
fn decode(parts: &Parts, call: &mut Call) -> Result<DecodedBody, RequestError> {
    let body = call.request.body().clone();
    let decoded = match call.route.endpoint {
        routes::CHAT => DecodedBody::Chat(Arc::new(ChatRequest::parse(body)?)),
        _ => DecodedBody::Completion(Box::new(CompletionRequest::parse(body)?)),
    };
    let names = match &decoded {
        DecodedBody::Chat(chat) => SessionNames::of(&chat.bytes, &chat.object),
        DecodedBody::Completion(completion) => completion.session_names(),
    };
    let identity = call.identify(parts, Some(&names)).map_err(|invalid| RequestError::Invalid(invalid.to_string()))?;
    call.identity = Some(identity);
    Ok(decoded)
}

/// Whether many replies of the call's session may have to be read before its prompt can be made.
fn has_unread_replies(parts: &Parts, call: &Call) -> bool {
    call.route.endpoint == routes::CHAT
        && call.known_session(parts).is_some_and(|session| session.unread_replies() > READ_AT_ONCE)
}

impl Call {
    /// Whose session it is, by what its body names. Sessions are named as they are in a native request.
    fn identify(&self, parts: &Parts, names: Option<&SessionNames>) -> Result<Identity, InvalidName> {
        let head = &self.request;
        Identity::of(&parts.config, self.session.as_ref(), head.uri(), head.headers(), names)
    }

    /// The session that the call names, once its body was decoded.
    fn named(&self) -> Option<&Arc<str>> {
        self.identity.as_ref().filter(|identity| identity.explicit).map(|identity| &identity.session)
    }

    /// The same, where it exists.
    fn known_session(&self, parts: &Parts) -> Option<Arc<Session>> {
        parts.sessions.session(self.named()?)
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An error of ours, as OpenAI's clients read it.
fn told(error: &Error) -> Response<Body> {
    let mut reply = error_reply(error);
    let problem = Problem::new(error.status(), error.to_string());
    *reply.status_mut() = problem.status;
    *reply.body_mut() = Body::full(problem.body());
    reply
}
