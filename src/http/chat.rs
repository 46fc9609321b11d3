//! `POST /v1/chat/completions`: a conversation becomes tokens, the tokens a native generation, and its reply a chat's.

mod spoken;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header, response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use crate::error::Error;
use crate::http::body::{Body, Upload};
use crate::http::forward::{Unseen, forwarded, send, target, upstream_headers};
use crate::http::generate::{self, Origin};
use crate::http::identity::Identity;
use crate::http::served::Served;
use crate::http::{Parts, error_reply, headers};
use crate::openai::model::{ChatModel, Chats};
use crate::openai::problem::{LARGEST, Problem};
use crate::openai::prompt::Preparation;
use crate::openai::reading::Stops;
use crate::openai::reply::Making;
use crate::openai::request::{ChatRequest, Unserved};
use crate::openai::speaker::Speaker;
use crate::sglang::client::Call;
use crate::sglang::request::GenerateRequest;
use crate::sglang::routes;

pub use spoken::Spoken;

/// Serves a chat completion; `session` is the one that the path names.
///
/// # Errors
/// Never: what goes wrong is told in the shape that OpenAI's clients read.
pub async fn chat(
    parts: &Arc<Parts>,
    request: Request<Incoming>,
    session: Option<Arc<str>>,
    served: &mut Served,
) -> Result<Response<Body>, Error> {
    let (head, body) = request.into_parts();
    let limits = &parts.config.limits;
    let upload = Upload::new(body, limits.client_body_timeout).counted(Some(parts.budget.request()));
    let answered = match upload.read(limits.max_request_bytes).await {
        Ok(body) => answer(parts, Request::from_parts(head, body), session, served).await,
        Err(error) => Err(error),
    };
    Ok(answered.unwrap_or_else(|error| told(&error)))
}

/// An error of ours, as OpenAI's clients read it.
fn told(error: &Error) -> Response<Body> {
    let mut reply = error_reply(error);
    let problem = Problem::new(error.status(), error.to_string());
    *reply.status_mut() = problem.status;
    *reply.body_mut() = Body::full(problem.body());
    reply
}

/// An error of the engine's; its headers say when to come back.
fn refused(mut head: response::Parts, problem: &Problem) -> Response<Body> {
    head.status = problem.status;
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(head, Body::full(problem.body()))
}

async fn answer(
    parts: &Arc<Parts>,
    request: Request<Bytes>,
    session: Option<Arc<str>>,
    served: &mut Served,
) -> Result<Response<Body>, Error> {
    let chats = Arc::clone(&parts.chats.borrow());
    let model = match &*chats {
        Chats::Rendered(model) => model,
        Chats::Forwarded(_) => return passed(parts, request, session, served).await,
    };
    let chat = match ChatRequest::parse(request.body().clone()) {
        Ok(chat) => chat,
        Err(Unserved::Wrong(message)) => return Err(Error::bad_request(message)),
        Err(Unserved::Foreign(what)) => {
            tracing::debug!(%what, "a chat completion goes to the engine's own endpoint");
            return passed(parts, request, session, served).await;
        }
    };
    rendered(parts, model, chat, request, session, served).await
}

/// Hands a request to the engine's own endpoint, whose tokens are not seen.
async fn passed(
    parts: &Arc<Parts>,
    request: Request<Bytes>,
    session: Option<Arc<str>>,
    served: &mut Served,
) -> Result<Response<Body>, Error> {
    let (head, body) = request.into_parts();
    let named = GenerateRequest::parse(body.clone()).ok();
    let identity = Identity::of(&parts.config, session.as_ref(), &head.uri, &head.headers, named.as_ref());
    served.unnamed = Some(parts.tools.flights.unnamed());
    let route = routes::route(routes::CHAT);
    let unseen = Unseen::new(parts, route, &identity);
    let call = Call::whole(head.method, target(&head.uri), upstream_headers(head.headers), body);
    let reply = send(parts, route, call).await?;
    unseen.answered(reply.status());
    Ok(forwarded(parts, reply))
}

/// Serves a request from tokens.
async fn rendered(
    parts: &Arc<Parts>,
    model: &Arc<ChatModel>,
    chat: ChatRequest,
    request: Request<Bytes>,
    session: Option<Arc<str>>,
    served: &mut Served,
) -> Result<Response<Body>, Error> {
    let (mut head, body) = request.into_parts();
    // sessions are named in a chat as they are in a native request
    let named = GenerateRequest::parse(body.clone()).ok();
    drop(body);
    let identity = Identity::of(&parts.config, session.as_ref(), &head.uri, &head.headers, named.as_ref());
    drop(named);
    let known = identity.explicit.then(|| parts.sessions.session(&identity.session)).flatten();
    let preparation = Preparation {
        renderer: &model.renderer,
        session: known.as_deref(),
        earlier_thinking: parts.config.chat.earlier_thinking,
        told: model.told.clone(),
    };
    let unserved = |unserved: Unserved| Error::bad_request(unserved.to_string());
    let prepared = preparation.prepare(&chat).map_err(unserved)?;
    parts.metrics.chat_prompts.with_label_values(&[prepared.how()]).inc();
    if prepared.chat.retokenised && !parts.retokenised.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "what an assistant said went into a prompt as text and was tokenised anew; in a session (/sessions/ID/v1, or X-Session-Id) it is kept as it was sampled"
        );
    }
    let reading = prepared.chat.reading.clone();
    let native = chat.native(&prepared.ids, &model.defaults, reading.skip_special).map_err(unserved)?;
    let wants_prompt = chat.wants.prompt_ids || chat.wants.token_ids;
    let making = Making {
        renderer: Arc::clone(&model.renderer),
        reading,
        stops: Stops::of(chat.sampling()),
        model: chat.model.clone(),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        prompt: wants_prompt.then(|| Arc::from(&*prepared.ids)),
        logprobs: chat.logprobs,
        wants: chat.wants,
        n: chat.samples(),
    };
    let speaker = chat.stream.then(|| Speaker::new(making.clone(), chat.include_usage, chat.running_usage));
    drop(chat);
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut asked = Request::new(parts.budget.hold(native));
    *asked.method_mut() = Method::POST;
    *asked.uri_mut() = Uri::from_static(routes::GENERATE.endpoint);
    *asked.headers_mut() = head.headers;
    let origin = Origin { session: identity.explicit.then_some(identity.session), chat: Some(Box::new(prepared.chat)) };
    let reply = generate::answer(parts, asked, origin, served).await?;
    let limit = usize::try_from(parts.config.limits.max_reply_bytes).unwrap_or(usize::MAX);
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    head.headers.remove(header::CONTENT_LENGTH);
    if head.status != StatusCode::OK {
        let read = Limited::new(body, LARGEST).collect().await;
        let said = read.map(|read| read.to_bytes()).unwrap_or_default();
        let problem = Problem::from_engine(head.status, &said);
        return Ok(refused(head, &problem));
    }
    let is_stream =
        head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let spoken = match speaker.filter(|_| is_stream) {
        Some(speaker) => match Spoken::stream(body, speaker).await? {
            Ok(spoken) => spoken,
            Err(problem) => return Ok(refused(head, &problem)),
        },
        None => {
            head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Spoken::whole(body, &making, limit).await?
        }
    };
    Ok(Response::from_parts(head, Body::spoken(spoken)))
}
