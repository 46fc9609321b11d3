//! Requests that go to the engine's own endpoint unchanged. Where the engine tells the ids of a chat, they are recorded.

mod overheard;
mod witness;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header, response};

use crate::api::openai_chat::passthrough::Foreign;
use crate::api::openai_chat::sglext::{Left, Told};
use crate::error::Error;
use crate::generation::buffered::{BufferedReply, collect};
use crate::generation::generator::SESSION;
use crate::generation::session_limits;
use crate::http::access_log::AccessRecord;
use crate::http::api::ApiCall;
use crate::http::body::Body;
use crate::http::forward::{Unseen, forwarded, target, upstream_headers};
use crate::http::generate::is_last;
use crate::http::identity::InvalidName;
use crate::http::proxy_state::ProxyState;
use crate::json::Object;
use crate::long_work::on_body;
use crate::sglang::client::{self, Reply, ReplyBody};
use crate::sglang::forwarded::Forwarded;
use crate::sglang::headers;
use crate::sglang::request::SessionNames;
use crate::sglang::upstream::{failed, send};
use crate::trajectory;
pub use overheard::Overheard;
use witness::Witness;

/// Hands a call to the engine's own endpoint.
///
/// # Errors
/// The answer for the client, where there is none of the engine's.
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
        let asked =
            object.map(|object| Foreign::of(body, &object, call.request.headers(), &state.upstream.borrow().chat));
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
    let mut turns = trajectory::Call::new(Arc::clone(&state.sessions), identity.session);
    if is_last(&head.headers) {
        turns.last();
    }
    let mut headers = upstream_headers(head.headers);
    // what is read must come as it is
    headers.remove(header::ACCEPT_ENCODING);
    asked.wanted.ask_for_all(&mut headers);
    let witness = Witness::new(state, (asked, call.remembered), turns, unseen);
    let reply = send(
        &state.client,
        &state.metrics,
        call.route,
        client::Call::whole(head.method, target(&head.uri), headers, body),
    )
    .await?;
    let mut reply = recorded(witness, reply, record).await?.map(|body| body.holding(unnamed));
    if let Ok(name) = name {
        reply.headers_mut().insert(SESSION, name);
    }
    Ok(reply)
}

/// The reply to a call that a witness records.
async fn recorded(witness: Witness, reply: Reply, record: &AccessRecord) -> Result<Response<Body>, Error> {
    if reply.status() != StatusCode::OK || reply.headers().contains_key(header::CONTENT_ENCODING) {
        let state = Arc::clone(&witness.state);
        witness.unread(reply.status());
        return Ok(forwarded(&state, reply));
    }
    let (mut head, body) = reply.into_parts();
    headers::end_hop(&mut head.headers);
    if headers::is_event_stream(&head.headers) {
        record.set_streaming();
        head.headers.remove(header::CONTENT_LENGTH);
        return Ok(Response::from_parts(head, Body::overheard(Overheard::new(body, witness))));
    }
    whole(witness, head, body).await
}

/// A reply that is read to its end first.
async fn whole(witness: Witness, mut head: response::Parts, body: ReplyBody) -> Result<Response<Body>, Error> {
    let state = Arc::clone(&witness.state);
    let limit = state.config.limits.max_reply_bytes;
    let whole = collect(body, &head.headers, limit, state.budget.reply()).await;
    let body = match whole.map_err(|failure| failed(&state.metrics, failure))? {
        BufferedReply::All(body) => body,
        BufferedReply::Passing { head: read, rest, .. } => {
            return Ok(Response::from_parts(head, Body::forwarded(Forwarded::patient(&state.metrics, read, rest))));
        }
    };
    let mut told = Told::default();
    let read = on_body(body.len(), || {
        catch_unwind(AssertUnwindSafe(|| told.read(&body, 0..body.len(), witness.asked.wanted)))
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
    state.generator.log_wait.wait(witness.record(told)).await;
    let body = match left {
        // a reply without a choice is no less a reply
        Left::Same | Left::Nothing => body,
        Left::Changed(changed) => state.budget.hold(changed),
    };
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::full(body)))
}
