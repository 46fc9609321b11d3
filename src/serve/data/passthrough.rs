//! Requests that go to the engine's own endpoint unchanged. Where the engine tells the ids of a chat, they are recorded.

mod recorder;
mod stream;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header, response};

use crate::api::openai_chat::passthrough::PassthroughRequest;
use crate::api::openai_chat::sglext::{EngineIds, Remainder};
use crate::engine::client::{self, Reply, ReplyBody};
use crate::engine::forwarded::Forwarded;
use crate::engine::headers;
use crate::engine::request::SessionNames;
use crate::engine::upstream::{failed, send};
use crate::error::Error;
use crate::generation::buffered::{BufferedReply, collect};
use crate::generation::generator::SESSION;
use crate::generation::session_limits;
use crate::json::Object;
use crate::long_work::on_body;
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::data::api_call::ApiCall;
use crate::serve::data::forward::{Unseen, forwarded, target, upstream_headers};
use crate::serve::data::generate::is_last;
use crate::serve::data::identity::InvalidName;
use crate::serve::proxy_state::ProxyState;
use recorder::PassthroughRecorder;
pub use stream::PassthroughStream;

/// Hands a call to the engine's own endpoint.
///
/// # Errors
/// The error for the client, where the engine gave no answer.
pub(super) async fn pass_through(
    state: &Arc<ProxyState>,
    call: ApiCall,
    record: &AccessRecord,
) -> Result<Response<Body>, Error> {
    let length = call.request.body().len();
    let records = state.config.sessions.record && call.api.reads_passthrough();
    let read = || {
        let body = call.request.body();
        // a body that is no object is the engine's to refuse
        let object = Object::parse(body).ok();
        let identity = match call.identity.clone() {
            Some(identity) => identity,
            None => {
                let names = object.as_ref().map(|object| SessionNames::of(body, object));
                call.identify(state, names.as_ref())?
            }
        };
        let object = object.filter(|_| records && identity.explicit);
        let asked = object
            .map(|object| PassthroughRequest::of(body, &object, call.request.headers(), &state.upstream.borrow().chat));
        Ok::<_, InvalidName>((identity, asked))
    };
    let (identity, asked) = on_body(length, read).await?;
    identity.report_ignored(state);
    let unnamed = Some(state.tools.flights.unnamed());
    let unseen = Unseen::new(state, call.route, &identity);
    let (head, body) = call.request.into_parts();
    let Some(asked) = asked else {
        let forward = client::Call::whole(head.method, target(&head.uri), upstream_headers(head.headers), body);
        let reply = send(&state.client, &state.metrics, call.route, forward).await?;
        unseen.answered(reply.status());
        return Ok(forwarded(state, reply).map(|body| body.holding(unnamed)));
    };
    session_limits::check(&state.config.sessions, &state.sessions, &identity.session, 1)?;
    let name = HeaderValue::try_from(&*identity.session);
    let mut turns = crate::session::Call::new(Arc::clone(&state.sessions), identity.session);
    if is_last(&head.headers) {
        turns.last();
    }
    let mut headers = upstream_headers(head.headers);
    // what is read must come as it is
    headers.remove(header::ACCEPT_ENCODING);
    asked.wanted.ask_for_all(&mut headers);
    let recorder = PassthroughRecorder::new(state, (asked, call.remembered), turns, unseen);
    let reply = send(
        &state.client,
        &state.metrics,
        call.route,
        client::Call::whole(head.method, target(&head.uri), headers, body),
    )
    .await?;
    let mut reply = recorded(recorder, reply, record).await?.map(|body| body.holding(unnamed));
    if let Ok(name) = name {
        reply.headers_mut().insert(SESSION, name);
    }
    Ok(reply)
}

/// The reply to a call that is recorded.
async fn recorded(recorder: PassthroughRecorder, reply: Reply, record: &AccessRecord) -> Result<Response<Body>, Error> {
    if reply.status() != StatusCode::OK || reply.headers().contains_key(header::CONTENT_ENCODING) {
        let state = Arc::clone(&recorder.state);
        recorder.unread(reply.status());
        return Ok(forwarded(&state, reply));
    }
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    if headers::is_event_stream(&head.headers) {
        record.set_streaming();
        head.headers.remove(header::CONTENT_LENGTH);
        return Ok(Response::from_parts(head, Body::passthrough(PassthroughStream::new(body, recorder))));
    }
    whole(recorder, head, body).await
}

/// A reply that is read to its end first.
async fn whole(
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
            return Ok(Response::from_parts(head, Body::forwarded(Forwarded::patient(&state.metrics, read, rest))));
        }
    };
    let mut engine_ids = EngineIds::default();
    let read = on_body(body.len(), || {
        catch_unwind(AssertUnwindSafe(|| engine_ids.read(&body, 0..body.len(), recorder.asked.wanted)))
    })
    .await;
    let left = match read {
        Ok(Ok(left)) => left,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a reply of the engine's own endpoint could not be read and passes as it came");
            return Ok(Response::from_parts(head, Body::full(body)));
        }
        Err(_) => {
            state.metrics.panics.inc();
            return Ok(Response::from_parts(head, Body::full(body)));
        }
    };
    state.generator.log_wait.wait(recorder.record(engine_ids)).await;
    let body = match left {
        // a reply without a choice is no less a reply
        Remainder::Same | Remainder::Nothing => body,
        Remainder::Changed(changed) => state.budget.hold(changed),
    };
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::full(body)))
}
