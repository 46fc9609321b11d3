//! Serves a call that only the engine can render, such as one with an image, by the engine's chat endpoint. The token ids that the engine
//! reports become a turn, and the reply is encoded from them for the API of the call.
//!
//! The engine reports the ids at the end of a reply, also in streams. So a stream of the client waits for the whole reply, and sends events
//! that keep the connection alive.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header, response};

use super::passthrough::recorder::PassthroughRecorder;
use super::passthrough::{begin_turns, pass_through};
use super::{ApiCall, reply};
use crate::api::openai::error::OpenAiError;
use crate::api::openai_chat::passthrough::PassthroughRequest;
use crate::api::openai_chat::sglext::{EngineIds, SglextOptions};
use crate::api::openai_chat::translation::{TranslatedChat, generate_reply};
use crate::api::{ApiGeneration, ApiRequest, ReplyEncoder, RequestSession};
use crate::budget::Work;
use crate::engine::sglang::routes::Route;
use crate::engine::transport::client::UpstreamCall;
use crate::engine::transport::headers;
use crate::engine::upstream::{failed, send};
use crate::error::Error;
use crate::generation::buffered::{BufferedReply, collect};
use crate::generation::event::{EventAccess, GenerationEvent};
use crate::generation::events::{DeferredEvents, Events, Generation};
use crate::generation::generator::SESSION;
use crate::generation::in_flight::UnknownRidGuard;
use crate::long_work::{BodyLength, on_body};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::data::forward::{UncapturedGeneration, upstream_headers};
use crate::serve::proxy_state::ProxyState;

/// The engine's chat endpoint.
const CHAT: &str = "/v1/chat/completions";

/// A call as a chat of the engine, and the encoder of its reply.
#[derive(Debug)]
pub(super) struct TranslatedCall {
    body: Bytes,
    sampling: Box<str>,
    lora_path: Option<Arc<str>>,
    /// The client expects a stream.
    streams: bool,
    encoder: Box<dyn ReplyEncoder>,
}

impl TranslatedCall {
    /// Translates a call of a named session. `None` if its conversation has no media, if the engine's own endpoint of its API reports ids
    /// itself, or if the engine reports none.
    pub(super) fn of(
        state: &ProxyState,
        call: &mut ApiCall,
        decoded: &dyn ApiRequest,
        (session, work): (RequestSession<'_>, &Work),
    ) -> Option<Self> {
        let forwarded_chat = call.forwarded_chat.as_mut()?;
        let conversation = forwarded_chat.take_conversation()?;
        let engine = Arc::clone(&state.upstream.borrow());
        if !state.config.sessions.record || call.api.records_passthrough() || !engine.chat.reports_ids {
            return None;
        }
        let session = RequestSession { omits_media: true, ..session };
        let ApiGeneration { request, chat, mut encoder } = decoded.generation(session, work).ok()?;
        let TranslatedChat { body, sampling, rid } = TranslatedChat::of(&conversation, &request, &engine)?;
        if let Some(chat) = chat {
            forwarded_chat.complete(*chat);
        }
        encoder.set_rid(&rid);
        let lora_path = request.adapter(0);
        let streams = request.stream == Some(true);
        Some(Self { body: state.budget.hold(body), sampling, lora_path, streams, encoder })
    }
}

/// Serves a translated call.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(super) async fn serve(
    state: &Arc<ProxyState>,
    call: ApiCall,
    translated: TranslatedCall,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    let TranslatedCall { body, sampling, lora_path, streams, encoder } = translated;
    let identity = call.identity.clone();
    let identity = identity.ok_or_else(|| Error::Internal { message: "a call without a session".into() })?;
    identity.report_ignored(state);
    let name = HeaderValue::try_from(&*identity.session);
    let turns = begin_turns(state, call.request.headers(), Arc::clone(&identity.session))?;
    let uncaptured = UncapturedGeneration::new(state, call.route, &identity);
    let mut headers = upstream_headers(call.request.headers().clone());
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // the reply is parsed, so it must not be compressed
    headers.remove(header::ACCEPT_ENCODING);
    let request = PassthroughRequest { sglext: SglextOptions::default(), n: 1, sampling, lora_path };
    let recorder = PassthroughRecorder::new(
        state,
        (request, call.forwarded_chat.clone(), call.labels(state, None)),
        turns,
        uncaptured,
    );
    let chat = EngineChat {
        state: Arc::clone(state),
        route: call.route,
        call: UpstreamCall::whole(Method::POST, CHAT.into(), headers, body),
        recorder,
        _unnamed: state.tools.flights.unnamed(),
    };
    let api = Arc::clone(&call.api);
    let mut generation = if streams {
        record.set_streaming();
        stream(chat)
    } else {
        match chat.reply().await {
            Ok(generation) => generation,
            Err(ChatError::NoIds) => return pass_through(state, call, record).await,
            Err(ChatError::Failed(error)) => return Err(error),
        }
    };
    if let Ok(name) = name {
        generation.head.headers.insert(SESSION, name);
    }
    Ok(reply::reply(state, api, generation, encoder).await)
}

/// A chat to be sent to the engine.
struct EngineChat {
    state: Arc<ProxyState>,
    /// The route of the client's call.
    route: Route,
    call: UpstreamCall,
    recorder: PassthroughRecorder,
    /// The request id is not one of those in flight.
    _unnamed: UnknownRidGuard,
}

/// Why a chat has no reply.
#[derive(Debug, thiserror::Error)]
enum ChatError {
    /// The reply has no token ids from which it could be encoded.
    #[error("the engine's chat endpoint reported no token ids")]
    NoIds,
    #[error(transparent)]
    Failed(#[from] Error),
}

impl EngineChat {
    /// Sends the chat and records its reply. Returns a reply of /generate, or the engine's error.
    async fn reply(self) -> Result<Generation, ChatError> {
        let Self { state, route, call, recorder, _unnamed } = self;
        let reply = send(&state.client, &state.metrics, route, call).await?;
        let (mut head, body) = reply.into_parts();
        headers::end_hop(&mut head.headers);
        if head.status != StatusCode::OK {
            recorder.skip(head.status);
            return Ok(Generation::unparsed(head, &state.metrics, Bytes::new(), body));
        }
        let limit = state.config.limits.max_reply_bytes;
        let body = collect(body, &head.headers, limit, state.budget.reply()).await;
        let BufferedReply::All(body) = body.map_err(|failure| failed(&state.metrics, failure))? else {
            return Err(ChatError::NoIds);
        };
        let parsed = on_body(BodyLength::Reply(body.len()), || {
            catch_unwind(AssertUnwindSafe(|| {
                let mut engine_ids = EngineIds::default();
                engine_ids.read(&body, 0..body.len(), SglextOptions::default()).ok()?;
                let reply = generate_reply(&body, &engine_ids)?;
                let event = GenerationEvent::outline(reply.into(), EventAccess::Fields).ok()?;
                Some((engine_ids, event))
            }))
        })
        .await;
        let (engine_ids, event) = parsed
            .unwrap_or_else(|_| {
                state.metrics.panics.inc();
                None
            })
            .ok_or(ChatError::NoIds)?;
        state.generator.context.log_wait.wait(recorder.record(engine_ids)).await;
        Ok(Generation { head, events: Events::Whole { event: Some(Arc::new(event)), observed: None } })
    }
}

/// The stream of a chat. Its events come when the chat has ended.
fn stream(chat: EngineChat) -> Generation {
    let state = Arc::clone(&chat.state);
    let (mut head, ()): (response::Parts, ()) = Response::new(()).into_parts();
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    let events = async move {
        let (status, message) = match chat.reply().await {
            Ok(Generation { head, mut events }) => {
                if let Some(event) = events.take_whole() {
                    return vec![event, Arc::new(GenerationEvent::done(Bytes::new()))];
                }
                let body = events.gather(reply::LARGEST_ERROR, state.budget.reply()).await.unwrap_or_default();
                let OpenAiError { status, message } = OpenAiError::from_engine(head.status, &body);
                (status, message)
            }
            Err(ChatError::Failed(error)) => (error.status(), error.to_string()),
            Err(error @ ChatError::NoIds) => (StatusCode::BAD_GATEWAY, error.to_string()),
        };
        let error = serde_json::json!({ "error": { "message": message, "code": status.as_u16() } });
        let event = GenerationEvent::outline(error.to_string().into(), EventAccess::Fields);
        event.into_iter().map(Arc::new).collect()
    };
    Generation { head, events: Events::Deferred(DeferredEvents::new(events)) }
}
