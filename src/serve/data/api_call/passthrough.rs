//! Forwards calls to the engine's own endpoint unchanged. If the engine reports the token ids of a chat, they are recorded.

pub(super) mod recorder;
mod stream;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header, response};

use crate::api::openai_chat::sglext::{EngineIds, Remainder};
use crate::engine::sglang::request::SessionNames;
use crate::engine::transport::client::{self, Reply, ReplyBody};
use crate::engine::transport::forwarded::ForwardedBody;
use crate::engine::transport::headers;
use crate::engine::upstream::{failed, send};
use crate::error::Error;
use crate::generation::buffered::{BufferedReply, collect};
use crate::generation::generator::SESSION;
use crate::generation::session_limits;
use crate::json::Object;
use crate::long_work::{BodyLength, on_body};
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::data::api_call::ApiCall;
use crate::serve::data::forward::{UncapturedGeneration, forwarded, target, upstream_headers};
use crate::serve::data::generate::is_last;
use crate::serve::identity::InvalidName;
use crate::serve::proxy_state::ProxyState;
use recorder::PassthroughRecorder;
use stream::PassthroughStream;

/// Forwards a call to the engine's own endpoint.
///
/// # Errors
/// The error for the client, if the engine did not reply.
pub(super) async fn pass_through(
    state: &Arc<ProxyState>,
    call: ApiCall,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    if !call.api.generates() {
        let (head, body) = call.request.into_parts();
        let forward = client::UpstreamCall::whole(head.method, target(&head.uri), upstream_headers(head.headers), body);
        return Ok(forwarded(state, send(&state.client, &state.metrics, call.route, forward).await?));
    }
    let length = call.request.body().len();
    let records = state.config.sessions.record && call.api.records_passthrough();
    let read = || {
        let body = call.request.body();
        // the engine refuses a body that is not an object
        let object = Object::parse(body).ok();
        let identity = match call.identity.clone() {
            Some(identity) => identity,
            None => {
                let names = object.as_ref().map(|object| SessionNames::of(body, object));
                call.identify(state, names.as_ref())?
            }
        };
        let object = object.filter(|_| records && identity.explicit);
        let request = object.and_then(|object| call.api.passthrough(body, &object, call.request.headers()));
        Ok::<_, InvalidName>((identity, request))
    };
    let labels = call.labels(state, None);
    let (identity, request) = on_body(BodyLength::Request(length), read).await?;
    identity.report_ignored(state);
    let unnamed = Some(state.tools.flights.unnamed());
    let uncaptured = UncapturedGeneration::new(state, call.route, &identity);
    let (head, body) = call.request.into_parts();
    let Some(request) = request else {
        let forward = client::UpstreamCall::whole(head.method, target(&head.uri), upstream_headers(head.headers), body);
        let reply = send(&state.client, &state.metrics, call.route, forward).await?;
        uncaptured.answered(reply.status());
        return Ok(forwarded(state, reply).map(|body| body.with_unnamed(unnamed)));
    };
    let name = HeaderValue::try_from(&*identity.session);
    let turns = begin_turns(state, &head.headers, identity.session)?;
    let mut headers = upstream_headers(head.headers);
    // the reply is parsed, so it must not be compressed
    headers.remove(header::ACCEPT_ENCODING);
    request.sglext.request_all_ids(&mut headers);
    let recorder = PassthroughRecorder::new(state, (request, call.forwarded_chat, labels), turns, uncaptured);
    let reply = send(
        &state.client,
        &state.metrics,
        call.route,
        client::UpstreamCall::whole(head.method, target(&head.uri), headers, body),
    )
    .await?;
    let mut reply = record_reply(recorder, reply, record).await?.map(|body| body.with_unnamed(unnamed));
    if let Ok(name) = name {
        reply.headers_mut().insert(SESSION, name);
    }
    Ok(reply)
}

/// Begins the turns of a call. `headers` are the client's.
///
/// # Errors
/// When the session has reached a limit.
pub(super) fn begin_turns(
    state: &ProxyState,
    headers: &HeaderMap,
    session: Arc<str>,
) -> Result<crate::session::Call, Error> {
    session_limits::check(state.generator.context.settings.session, &state.sessions, &session, 1)?;
    let mut turns = crate::session::Call::new(Arc::clone(&state.sessions), session);
    if is_last(headers) {
        turns.mark_last();
    }
    Ok(turns)
}

/// Forwards a reply and records its turns.
async fn record_reply(
    recorder: PassthroughRecorder,
    reply: Reply,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    if reply.status() != StatusCode::OK || reply.headers().contains_key(header::CONTENT_ENCODING) {
        let state = Arc::clone(&recorder.state);
        recorder.skip(reply.status());
        return Ok(forwarded(&state, reply));
    }
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    if headers::is_event_stream(&head.headers) {
        record.set_streaming();
        head.headers.remove(header::CONTENT_LENGTH);
        return Ok(Response::from_parts(head, Body::stream(PassthroughStream::new(body, recorder))));
    }
    record_whole(recorder, head, body).await
}

/// Reads a reply that does not stream, records it, then forwards it.
async fn record_whole(
    recorder: PassthroughRecorder,
    mut head: response::Parts,
    body: ReplyBody,
) -> Result<Response<Body>, Error> {
    let state = Arc::clone(&recorder.state);
    let limit = state.config.limits.max_reply_bytes;
    let whole = collect(body, &head.headers, limit, state.budget.reply()).await;
    let body = match whole.map_err(|failure| failed(&state.metrics, failure))? {
        BufferedReply::All(body) => body,
        BufferedReply::Passing { head: read, rest, .. } => {
            return Ok(Response::from_parts(
                head,
                Body::forwarded(ForwardedBody::unlimited(&state.metrics, read, rest)),
            ));
        }
    };
    let mut engine_ids = EngineIds::default();
    let read = on_body(BodyLength::Reply(body.len()), || {
        catch_unwind(AssertUnwindSafe(|| engine_ids.read(&body, 0..body.len(), recorder.request.sglext)))
    })
    .await;
    let remainder = match read {
        Ok(Ok(remainder)) => remainder,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a reply of the engine's own endpoint could not be parsed and passes unchanged");
            return Ok(Response::from_parts(head, Body::full(body)));
        }
        Err(_) => {
            state.metrics.panics.inc();
            return Ok(Response::from_parts(head, Body::full(body)));
        }
    };
    state.generator.context.log_wait.wait(recorder.record(engine_ids)).await;
    let body = match remainder {
        // a reply without choices is forwarded too
        Remainder::Same | Remainder::Nothing => body,
        Remainder::Changed(changed) => state.budget.hold(changed),
    };
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::full(body)))
}
